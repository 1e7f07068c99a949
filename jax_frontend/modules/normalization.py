"""Batch normalization of Flax, as both of its libraries have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from converter.ir.batch_norm import BatchNorm


def batch_norm(
    layer: Any, name: str, mean: str, variance: str, weights: Sequence[str], is_masked: bool = False
) -> BatchNorm:
    """Return what there is to know of a layer.

    Args:
        layer: an `nnx.BatchNorm` or `linen.BatchNorm`.
        name: its path.
        mean: name of its moving mean.
        variance: name of its moving variance.
        weights: names of its scale and its shift, where it has them.
        is_masked: whether it is called with a mask.
    """
    problem = "it is called with a mask" if is_masked else None
    along_one = isinstance(layer.axis, int)
    return BatchNorm(
        layer=name,
        mean=mean,
        variance=variance,
        weights=weights,
        axis=layer.axis if along_one else -1,
        momentum=float(layer.momentum),
        problem=problem if along_one else "its channels lie along several axes",
    )
