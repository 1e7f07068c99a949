"""What a loss takes for a target, as a manifest says it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from converter.program.manifest.schema import LIMITS


@dataclass(frozen=True)
class TargetLabels:
    """What a loss takes for a target: labels of classes where it is of int32, numbers where it is of float32.

    Attributes:
        count: how many classes there are: labels go from 0 to one less, and of numbers there is one a class along the
            last axis; None where numbers tell no classes apart.
        masked: whether labels below 0 are left out.
        ignored: one more label that is left out, be it among the others or beyond them.
        least: the least number; None where there is none.
        most: the largest; None where there is none.
        only: the only numbers that there are, where these are few.
        advice: what to pass in the place of other numbers; empty where nothing is to be said.
    """

    count: int | None = None
    masked: bool = False
    ignored: int | None = None
    least: float | None = None
    most: float | None = None
    only: tuple[float, ...] = ()
    advice: str = ""

    def fit(self, values: np.ndarray) -> np.ndarray:
        """Return which of some labels or numbers are such, [the same shape] of bool."""
        if values.dtype.kind == "f":
            return self._fit_numbers(values)
        within = np.ones(values.shape, bool) if self.count is None else values < self.count
        within &= self.masked or values >= 0
        return within if self.ignored is None else within | (values == self.ignored)

    def _fit_numbers(self, values: np.ndarray) -> np.ndarray:
        if self.only:
            return np.isin(values, np.array(self.only, values.dtype))
        fits = np.ones(values.shape, bool)
        if self.least is not None:
            fits &= values >= self.least - LIMITS["slack"]
        if self.most is not None:
            fits &= values <= self.most + LIMITS["slack"]
        return fits

    @property
    def words(self) -> str:
        """Say which numbers are such."""
        if self.only:
            said = " or ".join(f"{number:g}" for number in self.only)
        elif self.most is None:
            said = "numbers" if self.least is None else f"numbers from {self.least:g} on"
        else:
            said = f"numbers {'' if self.least is None else f'from {self.least:g} '}to {self.most:g}"
        return f"{said}{'' if self.count is None else ', one a class'}{f' ({self.advice})' if self.advice else ''}"
