"""What a generator of models for `head_reads` hands on: a model, its inputs, and what the framework gives inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CLASSES = 3


@dataclass(frozen=True)
class Inside:
    """What a framework gives for some rows, in arrays of NumPy or tensors of its own.

    Attributes:
        output: of the model, [rows, classes].
        own: the input of its last layer, [rows, inputs].
        reads: by layer with a kernel, in the order of use: what it reads, rows first and channels last.
        mask: what positions of a text are weighted by, [rows, positions]; None where all count alike.
    """

    output: Any
    own: Any
    reads: dict[str, Any]
    mask: Any = None


@dataclass(frozen=True)
class Drawn:
    """A random model.

    Attributes:
        model: as for `build`.
        rows: draws inputs of so many rows, as a session takes them.
        inside: computes what the framework gives for them.
        live: the same with other parameters, as tensors of PyTorch that have derivatives; None of another framework.
        token: the position of a text that it reads; None: the mean.
        positions: of what is read by a token or a mask; None where it is the mean.
        options: of the build.
        story: what it is made of.
    """

    model: Any
    rows: Callable[[int], Any]
    inside: Callable[[Any], Inside]
    token: int | None = None
    positions: int | None = None
    live: Callable[[Any, Any], Inside] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    story: str = ""


class Dice:
    """Draws."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, *of: Any) -> Any:
        """Return one of some things."""
        return of[self.rng.integers(len(of))]

    def yes(self, part: float = 0.5) -> bool:
        """Return True in so many of all draws."""
        return bool(self.rng.random() < part)

    def size(self, low: int, high: int) -> int:
        """Return a number from low to high, both among them."""
        return int(self.rng.integers(low, high + 1))
