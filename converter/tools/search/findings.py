"""Search findings: trained schemes, their scores on both sides of the split, and the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from converter.tools.search.additive import Chosen
from converter.tools.search.analysis import MeanEstimate, Ranking, Unit, estimate
from converter.tools.search.budgets import RESOURCES
from converter.tools.search.space import Update

Costs = Mapping[str, float]


@dataclass(frozen=True)
class Trained:
    """A scheme that was trained.

    Attributes:
        name: how tables call it.
        update: the scheme.
        costs: the costs of its program.
        within: whether the costs are within the budgets.
        rate: the best learning rate on the selection rows.
        scores: the scores at this rate, one for each seed.
        predicted: for a combination, the sum of its parts' gains over the head.
    """

    name: str
    update: Update
    costs: Costs
    within: bool
    rate: float
    scores: tuple[float, ...]
    predicted: float | None = None

    @property
    def mean(self) -> float:
        """The mean score on the rows that select."""
        return float(np.mean(self.scores))


@dataclass(frozen=True)
class SearchFindings:
    """What a search found.

    Attributes:
        limits: the budgets by the figure of `converter.backend.costs.costs` that they limit.
        found: the scheme that does best within the budgets, of those that were judged on both sides of the split.
        trained: all that was trained, the named schemes first, `head` among them.
        refused: named schemes that the model does not allow, and why.
        pareto: names of those that no other beats in score and step, or in score and memory.
        held_out: scores of the found and the named schemes and of `pareto`, on rows that chose neither rates nor parts;
            without those that diverge there, and those that the time did not suffice for.
        units: the parts that were trained alone.
        gains: of each part over the head.
        guesses: cheap figures of each part.
        rankings: how well these rank the gains.
        chosen: what integer programming proposed at the budgets.
        measured: nanoseconds of a step of what is in `held_out`, if they were measured, by name.
        fitted: names of those by which steps of others are foreseen.
        full: costs of full training.
        cut: whether the time was over before all was tried and judged.
    """

    limits: Mapping[str, float]
    found: Trained
    trained: tuple[Trained, ...]
    refused: Mapping[str, str]
    pareto: tuple[str, ...]
    held_out: Mapping[str, tuple[float, ...]]
    units: tuple[Unit, ...]
    gains: Mapping[str, MeanEstimate]
    guesses: Mapping[str, Mapping[str, float]]
    rankings: tuple[Ranking, ...]
    chosen: Chosen
    measured: Mapping[str, float]
    fitted: tuple[str, ...]
    full: Costs
    cut: bool

    def judged(self, trained: Trained) -> tuple[float, ...]:
        """Return all scores of a scheme, of both sides of the split; those that select where there are no others."""
        return (*trained.scores, *self.held_out.get(trained.name, ()))

    @property
    def reported(self) -> list[Trained]:
        """Those that were judged on both sides, all where none was; the best first."""
        both = [each for each in self.trained if each.name in self.held_out] or list(self.trained)
        return sorted(both, key=lambda each: -float(np.mean(self.judged(each))))

    def against(self) -> dict[str, MeanEstimate]:
        """Return the difference of the found scheme from each other reported one, training by training."""
        mine = self.judged(self.found)
        others = {each.name: self.judged(each) for each in self.reported if each.name != self.found.name}
        # Those of the rows that select come first; a found scheme that diverges on the others has these alone.
        return {name: difference(mine, scores[: len(mine)]) for name, scores in others.items()}

    def alike(self) -> list[Trained]:
        """Return the schemes within the budgets that intervals do not tell from the found one, the cheapest first."""
        by = self.against()
        same = [t for t in self.reported if t.within and t.name in by and abs(by[t.name].mean) <= by[t.name].error]
        return sorted(same, key=self._share)

    def _share(self, trained: Trained) -> float:
        """Return the larger of the shares of full training's memory and step that a scheme takes."""
        return max(trained.costs[figure] / self.full[figure] for figure in RESOURCES.values())

    @property
    def additivity(self) -> list[tuple[Trained, float]]:
        """Combinations with what they gain less what they would if gains added up."""
        head = next(each for each in self.trained if each.name == "head")
        return [(t, t.mean - head.mean - t.predicted) for t in self.trained if t.predicted is not None]


def difference(scores: Sequence[float], others: Sequence[float]) -> MeanEstimate:
    """Return how much larger scores are than others, pair by pair."""
    return estimate(np.subtract(scores, others).tolist())


def best_of(reported: Sequence[Trained], held_out: Mapping[str, Sequence[float]]) -> Trained | None:
    """Return the best within the budgets on both sides of the split, of equal ones the cheaper; None: none was."""
    both = [each for each in reported if each.within and each.name in held_out]
    return min(both, key=lambda t: (-float(np.mean([*t.scores, *held_out[t.name]])), *_costs_of(t)), default=None)


def _costs_of(trained: Trained) -> tuple[float, ...]:
    return tuple(trained.costs[figure] for figure in RESOURCES.values())


def order(trained: Trained) -> tuple[float, ...]:
    """Return the best score first; of equal ones the smaller."""
    return (-trained.mean, *_costs_of(trained))


def is_undominated(trained: Trained, others: Sequence[Trained]) -> bool:
    """Return whether in score and memory, or in score and step, no other is as good in both and better in one."""

    def beats(other: Trained, figure: str) -> bool:
        mine, theirs = (trained.mean, -trained.costs[figure]), (other.mean, -other.costs[figure])
        return theirs != mine and all(a >= b for a, b in zip(theirs, mine, strict=True))

    return any(not any(beats(other, figure) for other in others) for figure in RESOURCES.values())
