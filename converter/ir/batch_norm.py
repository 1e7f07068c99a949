"""Batch normalization layers, as front ends describe them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchNorm:
    """A batch normalization layer.

    Attributes:
        layer: its path.
        mean: name of its moving mean.
        variance: name of its moving variance.
        weights: names of its scale and its shift, where it has them.
        axis: that of the channels.
        momentum: the part of a moving average that stays in a step; None: what makes it the mean of all batches.
        trainable: False where the model itself says that the layer keeps its statistics.
        problem: why its statistics cannot be those of the batch, if so.
        unbiased: whether the moving variance follows the unbiased variance of a batch, by which none is normalized.
        counter: name of its number of batches, where it counts them.
        counted: that number.
    """

    layer: str
    mean: str
    variance: str
    weights: Sequence[str]
    axis: int
    momentum: float | None
    trainable: bool = True
    problem: str | None = None
    unbiased: bool = False
    counter: str | None = None
    counted: int = 0
