"""An interval of positive numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`, both above 0."""

    low: float
    high: float

    def __mul__(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.high * factor)

    def widened(self, factor: float) -> Interval:
        """As far to both sides as a factor says."""
        return Interval(self.low / factor, self.high * factor)

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    @staticmethod
    def around(numbers: Iterable[float]) -> Interval:
        """Return the smallest with all of them."""
        numbers = list(numbers)
        return Interval(min(numbers), max(numbers))
