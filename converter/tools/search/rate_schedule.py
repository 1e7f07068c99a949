"""Learning rate schedule of the trainings of a search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from converter.support.errors import UsageError

#: What the rate does once it has risen, in words.
SCHEDULES = {"constant": "stays", "cosine": "falls to 0 along a cosine"}


@dataclass(frozen=True)
class RateSchedule:
    """How the rate goes from the first step to the last.

    Attributes:
        schedule: `constant`, or `cosine`: it falls to 0.
        warmup: the share of the steps in which it rises before that.

    Raises:
        UsageError: there is no such schedule, or the share is not below 1.
    """

    schedule: str = "constant"
    warmup: float = 0.0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise UsageError(f"schedule: expected {' or '.join(SCHEDULES)}, got {self.schedule!r}", page="search")
        if not 0 <= self.warmup < 1:
            raise UsageError(
                f"warmup: expected a share of the steps, 0.1 for a tenth of them; got {self.warmup:g}", page="search"
            )

    def rates(self, rate: float, steps: int) -> list[float]:
        """Return the rate of each step, of which the highest is given."""
        rising = round(self.warmup * steps)
        rise = np.linspace(rate / max(rising, 1), rate, rising, endpoint=False)
        part = np.arange(steps - rising) / (steps - rising)
        fall = (1 + np.cos(np.pi * part)) / 2 if self.schedule == "cosine" else np.ones_like(part)
        return [*map(float, (*rise, *(rate * fall)))]

    def describe(self, rate: float) -> str:
        """Return the course in words."""
        if self == RateSchedule():
            return f"the learning rate {rate:g}"
        rises = f"rises for {self.warmup:.0%} of the steps, then " if self.warmup else ""
        return f"a learning rate of {rate:g} that {rises}{SCHEDULES[self.schedule]}"
