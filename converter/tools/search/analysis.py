"""Contribution analysis: what training each part alone, with the head, gains over the head; and cheap guesses of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from converter.tools.search.additive import Gains
from converter.tools.search.space import Space, Update, as_rules


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over trainings with the half width of its 95% interval (Student's t)."""

    mean: float
    error: float

    def __str__(self) -> str:
        return self.text(100, 1, sign=True)

    def text(self, factor: float, digits: int, sign: bool) -> str:
        """Return a multiple of it, rounded; `sign`: also of a positive mean. A zero has none."""
        mean = round(factor * self.mean, digits) + 0.0
        return f"{mean:{'+' if sign and mean else ''}.{digits}f} ± {factor * self.error:.{digits}f}"


def estimate(values: Sequence[float]) -> MeanEstimate:
    """Return the mean of values and its interval."""
    spread = float(np.std(values, ddof=1)) / sqrt(len(values))
    return MeanEstimate(float(np.mean(values)), student_t(len(values)) * spread)


def student_t(count: int) -> float:
    """Return how many standard errors of the mean of so many values half of its 95% interval is."""
    from scipy import stats

    return float(stats.t.ppf(0.975, count - 1))


@dataclass(frozen=True)
class Unit:
    """A part that is trained alone.

    Attributes:
        kind: `layer`, `block` or `biases`.
        name: in words.
        update: it, with the head.
        parameters: what of each parameter trains, without the head.
        choice: the group and choice of the space that it is, None of a block.
    """

    kind: str
    name: str
    update: Update
    parameters: Mapping[str, float]
    choice: tuple[int, float] | None


def units_of(space: Space) -> list[Unit]:
    """Return each block, each range of biases, each layer with each ratio."""
    units = []
    for block in space.blocks:
        rules = dict.fromkeys((*space.head, *block.parameters), 1.0)
        grants = dict.fromkeys(block.parameters, 1.0)
        units.append(Unit("block", f"block {block.name}", as_rules(rules), grants, None))
    for group, choices in enumerate(space.groups):
        for choice in choices:
            candidate = space.alone(group, choice)
            if group == 0:
                blocks = space.with_biases[-candidate.biases :]
                grants = {parameter: 1.0 for block in blocks for parameter in space.blocks[block].biases}
            else:
                grants = {space.layers[group - 1].parameter: choice}
            kind, words = "layer" if group else "biases", space.describe(candidate, head=False)
            units.append(Unit(kind, words, space.update(candidate), grants, (group, choice)))
    return units


def gains_of(units: Sequence[Unit], gains: Mapping[str, MeanEstimate]) -> Gains:
    """Return the gains of the choices of a space."""
    return Gains({u.choice: gains[u.name].mean if u.name in gains else None for u in units if u.choice is not None})


@dataclass(frozen=True)
class Ranking:
    """How well a guess ranks the measured gains.

    Attributes:
        guess: its name.
        rho: Spearman's rank correlation; None where there is too little to rank.
        units: how many parts it has a figure for.
    """

    guess: str
    rho: float | None
    units: int


#: What stands in a table for each guess.
GUESSES = {
    "fisher": "Fisher information of its channels",
    "gradient": "squared norm of its gradient by what it adds to the cost of a step",
    "prior": "share of it that the scheme pockengine trains",
}


def guesses(
    units: Sequence[Unit],
    found: Mapping[str, Any],
    extra: Mapping[str, float],
    prior: Mapping[str, float],
) -> dict[str, dict[str, float]]:
    """Return the figures of each guess by the name of the unit, where there is one.

    Args:
        units: the parts.
        found: `information` and `gradients`, see `Subject`.
        extra: what each part adds to the cost of a step, by its name.
        prior: what the scheme of the architecture grants each parameter.
    """
    information, gradients = found.get("information", {}), found.get("gradients", {})
    table: dict[str, dict[str, float]] = {guess: {} for guess in GUESSES}
    for unit in units:
        weighed = [name for name in unit.parameters if name in information]
        if weighed and unit.kind != "biases":
            table["fisher"][unit.name] = sum(_first(information[name], unit.parameters[name]) for name in weighed)
        squares = [share * gradients[name] for name, share in unit.parameters.items() if name in gradients]
        if squares and extra.get(unit.name, 0) > 0:
            table["gradient"][unit.name] = sum(squares) / extra[unit.name]
        granted = [min(share, prior.get(name, 0.0)) for name, share in unit.parameters.items()]
        table["prior"][unit.name] = float(np.mean(granted))
    return table


def _first(channels: Sequence[float], share: float) -> float:
    """Of the first channels, which are those that train."""
    return float(sum(channels[: max(round(share * len(channels)), 1)]))


def rankings(table: Mapping[str, Mapping[str, float]], gains: Mapping[str, MeanEstimate]) -> list[Ranking]:
    """Return how well each guess ranks the measured gains."""
    from scipy import stats

    ranked = []
    for guess, figures in table.items():
        both = [name for name in figures if name in gains]
        x, y = [figures[name] for name in both], [gains[name].mean for name in both]
        differ = len(set(x)) > 1 and len(set(y)) > 1 and len(both) > 2
        ranked.append(Ranking(guess, float(stats.spearmanr(x, y).statistic) if differ else None, len(both)))
    return ranked
