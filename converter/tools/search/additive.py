"""Integer programming: the best combination if gains add up, with the compiler's own costs.

    max  gain(biases of the last k) + sum of gains(layer, ratio)   within the budgets

What a combination costs is no sum: where training begins decides how far back the backward pass goes, and the planner
packs what is alive together. So a linear model of each cost, fitted to exact ones, only proposes, with room for its
largest error; the compiler says what each proposal really costs, and what is over a budget is excluded. As proposals
come in the order of their gain, the first ones within the budgets are the best there are, unless the model is off by
more than it ever was on what it was fitted to; `Chosen.worst` says how far off it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from converter.tools.search.space import Candidate, Space

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

#: Proposals whose costs are computed together.
_AT_ONCE = 4
#: Room for the model's error, in its largest one on what it was fitted to.
_ROOM = 1.5
#: What one choice more must gain to be proposed before the same without it.
_LEAST = 1e-6

#: Exact costs of candidates by resource; None where the model does not allow one.
Costs = Callable[[Sequence[Candidate]], Sequence[Mapping[str, float] | None]]


@dataclass(frozen=True)
class Gains:
    """Gain of each choice over the score of the head alone; None if unknown, and such a choice is never taken.

    Attributes:
        of: by group and choice, as `Space.groups`.
    """

    of: Mapping[tuple[int, float], float | None]

    def total(self, candidate: Candidate) -> float | None:
        """Return the sum for a candidate."""
        parts = [self.of.get((g, c)) for g, c in enumerate(candidate.choices()) if c]
        return None if None in parts else float(sum(p for p in parts if p is not None))


@dataclass(frozen=True)
class Chosen:
    """What came of it.

    Attributes:
        best: within the budgets, by their gain.
        proposals: how many were judged.
        complete: whether these are all that were asked for, or there are no more.
        worst: the largest error of the linear model on the proposals, by resource, as a share of the exact cost.
    """

    best: list[Candidate]
    proposals: int
    complete: bool
    worst: dict[str, float]


class LinearCost:
    """cost = head + sum over blocks that the backward pass reaches + sum over choices, by least squares."""

    def __init__(self, space: Space, known: Mapping[Candidate, float]) -> None:
        self._space = space
        rows, costs = np.array([self.features(c) for c in known]), np.array(list(known.values()), float)
        scale = max(float(np.abs(costs).max()), 1.0)
        self.weights: np.ndarray = np.linalg.lstsq(rows, costs / scale, rcond=None)[0] * scale
        self.room = _ROOM * float(np.abs(rows @ self.weights - costs).max()) + 1e-9 * scale

    def features(self, candidate: Candidate) -> list[float]:
        """1, whether each block is reached, whether each choice is made."""
        chosen = [(g, c) for g, c in enumerate(candidate.choices()) if c]
        first = min((self._space.first_block(g, c) for g, c in chosen), default=len(self._space.blocks))
        reached = [float(block >= first) for block in range(len(self._space.blocks))]
        return [1.0, *reached, *(float(column in chosen) for column in self._space.columns)]

    def of(self, candidate: Candidate) -> float:
        """Return the cost by the model."""
        return float(self.weights @ self.features(candidate))


def propose(
    space: Space,
    gains: Gains,
    models: Sequence[tuple[LinearCost, float]],
    excluded: Sequence[Candidate] = (),
) -> Candidate | None:
    """Return the candidate of the largest gain whose linear costs are within the limits; None where there is none.

    Args:
        space: to choose from.
        gains: of each choice.
        models: costs with their limits.
        excluded: candidates that are not to be proposed again.
    """
    from scipy import optimize

    columns, blocks = space.columns, len(space.blocks)
    known = [gains.of.get(column) for column in columns]
    worth = np.concatenate([np.zeros(blocks), [0.0 if gain is None else gain - _LEAST for gain in known]])
    upper = np.concatenate([np.ones(blocks), [float(gain is not None) for gain in known]])
    found = optimize.milp(
        -worth,
        integrality=np.ones(blocks + len(columns)),
        bounds=optimize.Bounds(0, upper),
        constraints=_constraints(space, models, excluded),
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    choices = [0.0] * len(space.groups)
    for (group, choice), value in zip(columns, found.x[blocks:], strict=True):
        if value > 0.5:
            choices[group] = choice
    return space.candidate(choices)


def _constraints(
    space: Space, models: Sequence[tuple[LinearCost, float]], excluded: Sequence[Candidate]
) -> LinearConstraint:
    """Return what a candidate must hold, over 0 or 1 for each block that is reached and each column that is chosen."""
    from scipy import optimize

    columns = space.columns
    blocks = len(space.blocks)
    first = [space.first_block(g, c) for g, c in columns]
    rows: list[np.ndarray] = []
    limits: list[float] = []

    def at_most(limit: float, **parts: np.ndarray | list[float]) -> None:
        rows.append(
            np.concatenate([parts.get("reached", np.zeros(blocks)), parts.get("chosen", np.zeros(len(columns)))])
        )
        limits.append(limit)

    def one(where: int, many: int) -> np.ndarray:
        return (np.arange(many) == where).astype(float)

    for group in range(len(space.groups)):
        at_most(1, chosen=[float(g == group) for g, _ in columns])
    for place, block in enumerate(first):  # what is chosen is reached
        at_most(0, chosen=one(place, len(columns)), reached=-one(block, blocks))
    for block in range(blocks):  # what is reached is behind something chosen, and so is all behind it
        at_most(0, reached=one(block, blocks), chosen=[-float(b <= block) for b in first])
        if block:
            at_most(0, reached=one(block - 1, blocks) - one(block, blocks))
    for model, limit in models:
        scale = max(abs(limit), 1.0)
        at_most(
            (limit + model.room - model.weights[0]) / scale,
            reached=model.weights[1 : 1 + blocks] / scale,
            chosen=model.weights[1 + blocks :] / scale,
        )
    for candidate in excluded:
        made = [candidate.choices()[g] == c for g, c in columns]
        at_most(sum(made) - 1, chosen=[1.0 if m else -1.0 for m in made])
    return optimize.LinearConstraint(np.array(rows), -np.inf, np.array(limits))


def best_within(
    space: Space,
    gains: Gains,
    models: Mapping[str, LinearCost],
    limits: Mapping[str, float],
    costs: Costs,
    want: int,
    most: int,
) -> Chosen:
    """Return the candidates of the largest gain within the limits.

    Args:
        space: to choose from.
        gains: of each choice.
        models: of each resource that has a limit.
        limits: by resource.
        costs: exact ones.
        want: how many.
        most: proposals at the most.
    """
    bounded = [(models[name], limit) for name, limit in limits.items()]
    proposed: list[Candidate] = []
    best: list[Candidate] = []
    worst = dict.fromkeys(limits, 0.0)
    exhausted = False
    while len(best) < want and len(proposed) < most and not exhausted:
        fresh: list[Candidate] = []
        while len(fresh) < min(_AT_ONCE, most - len(proposed)) and not exhausted:
            candidate = propose(space, gains, bounded, [*proposed, *fresh])
            exhausted = candidate is None
            fresh += [] if candidate is None else [candidate]
        for candidate, cost in zip(fresh, costs(fresh), strict=True):
            if cost is None:
                continue
            for name in limits:
                worst[name] = max(worst[name], abs(models[name].of(candidate) - cost[name]) / cost[name])
            if all(cost[name] <= limit for name, limit in limits.items()):
                best.append(candidate)
        proposed += fresh
    return Chosen(best[:want], len(proposed), exhausted or len(best) >= want, worst)
