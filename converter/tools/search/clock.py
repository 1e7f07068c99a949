"""Step timing on this machine, against the figures of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Clock:
    """Nanoseconds of this machine for what the table counts.

    Attributes:
        products: for each unit of `product_cost`.
        rest: for each unit of the rest of `step_cost`.
    """

    products: float
    rest: float

    def corrected(self, costs: Mapping[str, float]) -> dict[str, float]:
        """Return the costs with the step that this machine takes."""
        rest = costs["step_cost"] - costs["product_cost"]
        step = round(self.products * costs["product_cost"] + self.rest * rest)
        return {**costs, "step_cost": step}


def fitted(costs: Sequence[Mapping[str, float]], steps: Sequence[float]) -> Clock:
    """Return the clock that is least off, in proportion, where steps of such costs took so many nanoseconds."""
    from scipy import optimize

    parts = [[each["product_cost"], each["step_cost"] - each["product_cost"]] for each in costs]
    factors, _ = optimize.nnls(np.array(parts) / np.array(steps)[:, None], np.ones(len(steps)))
    return Clock(*map(float, factors))
