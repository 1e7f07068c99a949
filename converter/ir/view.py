"""Views: how a stored tensor is cut out of the tensor that the user knows."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

#: ("transpose", perm) | ("reshape", shape) | ("slice", axis, start, stop)
Step = tuple


@dataclass(frozen=True)
class View:
    """A chain of transposes, reshapes and slices from the model's tensor to the stored one.

    The compiler stores a weight as its kernel reads it (OHWI filters, a trained slice); the user always sees the
    model's own layout and full shape.
    """

    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> View:
        """Return this view followed by one more step."""
        return View((*self.steps, step))

    def apply(self, array: np.ndarray) -> np.ndarray:
        """Model layout -> stored layout; an array that is stored as it is stays where it lies."""
        if not self.steps:
            return array
        array = self.of(array)
        # One number that is repeated stays one.
        return np.asarray(array, order="C") if any(array.strides) else array

    def of(self, array: np.ndarray) -> np.ndarray:
        """Return the same elements in the same order, where they lie if they can."""
        for kind, *arguments in self.steps:
            if kind == "transpose":
                array = np.transpose(array, arguments[0])
            elif kind == "reshape":
                array = np.reshape(array, arguments[0])
            elif kind == "slice":
                axis, start, stop = arguments
                array = array[(slice(None),) * axis + (slice(start, stop),)]
            else:
                raise ValueError(f"unknown view step {kind!r}")
        return array

    @property
    def is_cut(self) -> bool:
        """Whether what is stored is a part of the tensor."""
        return any(kind == "slice" for kind, *_ in self.steps)

    def places(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return where each stored element lies in a contiguous tensor of this shape: int64 [elements]."""
        return self.apply(np.arange(prod(shape)).reshape(shape)).reshape(-1)

    def rest(self, array: np.ndarray) -> View:
        """Return, for a view that ends by cutting the first channels off a tensor: the view of those after."""
        *before, (kind, axis, start, stop) = self.steps
        whole = View(tuple(before))
        assert (kind, start) == ("slice", 0), self
        return whole.then(("slice", axis, stop, whole.apply(array).shape[axis]))

    def scatter(self, into: np.ndarray, stored: np.ndarray) -> None:
        """Writes the stored tensor to its place in a contiguous tensor of the model's layout, in place."""
        into.reshape(-1)[self.places(into.shape)] = stored.reshape(-1)

    def to_json(self) -> list[list[Any]]:
        """Return the entry of the manifest."""
        return [[list(part) if isinstance(part, tuple) else part for part in step] for step in self.steps]

    @staticmethod
    def from_json(steps: list[list[Any]]) -> View:
        """Inverse of `to_json`."""
        return View(tuple(tuple(tuple(p) if isinstance(p, list) else p for p in step) for step in steps))
