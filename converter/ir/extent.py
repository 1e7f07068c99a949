"""Extents: known bounds of the numbers that a value can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from math import inf, isnan

import numpy as np


@dataclass(frozen=True)
class Extent:
    """Between which numbers all elements of a value lie.

    Attributes:
        low: none is below it.
        high: none is above it.
        nonzero: whether none is 0, though it may lie between them.
    """

    low: float = -inf
    high: float = inf
    nonzero: bool = False

    @property
    def without_zero(self) -> bool:
        """Whether no element is 0."""
        return self.nonzero or self.low > 0 or self.high < 0

    @property
    def positive(self) -> bool:
        """Whether every element is above 0."""
        return self.low > 0 or (self.low == 0 and self.nonzero)

    def within(self, low: float, high: float) -> Extent:
        """Return what is known of the same elements where they lie between two numbers as well."""
        return replace(self, low=max(self.low, low), high=min(self.high, high))

    def through(self, function: Callable[..., np.ndarray]) -> Extent:
        """Return the extent of a function that never falls."""
        with np.errstate(all="ignore"):
            low, high = (float(function(np.float64(end))) for end in (self.low, self.high))
        return Extent(-inf if isnan(low) else low, inf if isnan(high) else high)

    @staticmethod
    def of_array(array: np.ndarray) -> Extent:
        """Return the extent of known numbers."""
        if not array.size or np.isnan(low := array.min()):
            return Extent()
        return Extent(float(low), float(array.max()), bool((array != 0).all()))


def one_of(extents: Iterable[Extent]) -> Extent:
    """Return the extent of elements of which each is one of several values'."""
    parts = list(extents)
    if not parts:
        return Extent()
    lows, highs = [part.low for part in parts], [part.high for part in parts]
    return Extent(min(lows), max(highs), all(part.without_zero for part in parts))


def at_corners(function: Callable[..., np.ndarray], *extents: Extent) -> Extent:
    """Return the extent of a function whose ends lie where every operand is at one of its own."""
    with np.errstate(all="ignore"):  # what infinite ends leave open lies between the other corners
        ends = product(*((extent.low, extent.high) for extent in extents))
        known = [end for end in (float(function(*map(np.float64, corner))) for corner in ends) if not isnan(end)]
    return Extent(min(known), max(known)) if known else Extent()


class Pole(Enum):
    """What may be infinite or NaN of an op whose operands are finite."""

    NONE = 0
    SLOPE = 1
    VALUE = 2  # and then its slope
