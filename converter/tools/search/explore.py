"""Search procedure: parts alone, costs of combinations, the best of them trained and evaluated on other rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from converter.support.errors import UsageError
from converter.tools.search import clock
from converter.tools.search.additive import Chosen, Gains, LinearCost, best_within
from converter.tools.search.analysis import (
    Unit,
    gains_of,
    guesses,
    rankings,
    units_of,
)
from converter.tools.search.budgets import RESOURCES, Budget, check_head
from converter.tools.search.effort import Effort
from converter.tools.search.evaluator import Evaluator
from converter.tools.search.evolution import evolve
from converter.tools.search.findings import (
    Costs,
    SearchFindings,
    Trained,
    best_of,
    difference,
    is_undominated,
    order,
)
from converter.tools.search.space import Candidate, Space, Update, as_rules
from converter.tools.search.subject import Trial

#: Shares of the way from the cost of the head to the budgets, at which the best combinations are trained too.
_LEVELS = (0.25, 0.5, 0.75)
#: Proposals that are judged at the budgets, and at each share of them, at the most; for each of `Effort.combinations`.
_PROPOSALS = 25
#: Random combinations that the linear costs are fitted to, for each group of choices.
_FITTED = 3


class Explorer:
    """One search."""

    def __init__(self, space: Space, evaluator: Evaluator, effort: Effort, budgets: Sequence[Budget]) -> None:
        """Asks for nothing yet.

        Args:
            space: to choose from.
            evaluator: where it is found out.
            effort: how much is tried.
            budgets: what a step may take.
        """
        self._space, self._evaluator, self._effort, self._budgets = space, evaluator, effort, budgets
        self._limits: dict[str, float] = {}
        self._trained: dict[str, Trained] = {}  # by the scheme as text

    def run(self, named: Sequence[str], prior: Mapping[str, float]) -> SearchFindings:
        """Return all of it.

        Args:
            named: schemes to compare with beside `full` and `head`.
            prior: what the scheme of the architecture grants each parameter.

        Raises:
            UsageError: not even the head is within the budgets, or it diverges.
        """
        names = list(dict.fromkeys(("full", "head", *named)))
        fitted = self._set_clock(names) if self._effort.measure else ()
        priced = self._evaluator.costs(names, must=True)
        costs = {name: each["costs"] for name, each in zip(names, priced, strict=True) if "costs" in each}
        refused = {name: each["error"] for name, each in zip(names, priced, strict=True) if "error" in each}
        for name in {"full", "head"} & refused.keys():
            raise UsageError(f"the scheme {name} is not for this model: {refused[name]}", page="search")
        self._limits = {RESOURCES[budget.resource]: budget.limit(costs) for budget in self._budgets}
        check_head(self._budgets, costs)
        head = self._train([Wanted("head", "head", costs["head"])], must=True)[0]
        if head is None:
            raise UsageError(
                f"the head diverges with each learning rate, {self._effort.rates}: give smaller ones", page="search"
            )
        self._train([Wanted(name, name, costs[name]) for name in names if name in costs])
        units = [] if self._effort.named else units_of(self._space)
        of_units = self._priced(units)
        units = [unit for unit in units if unit.name in of_units]
        alone = self._train([Wanted(unit.name, unit.update, of_units[unit.name]) for unit in units])
        gains = {part.name: difference(part.scores, head.scores) for part in alone if part is not None}
        extra = {name: each["step_cost"] - costs["head"]["step_cost"] for name, each in of_units.items()}
        table = guesses(units, self._evaluator.proxies() if units else {}, extra, prior)
        adding_up = gains_of(units, gains)
        shorter = self._shorter(prior)
        self._scores(shorter, adding_up)
        nothing = Chosen([], 0, True, {})
        chosen = self._combine(adding_up, costs["head"], costs["full"], shorter) if units else nothing
        trained = list(self._trained.values())
        best = min((each for each in trained if each.within), key=order)
        front = [each.name for each in trained if is_undominated(each, trained)]
        reported = [each for each in trained if each.name in {best.name, *names, *front}]
        held_out = self._judged(reported)
        return SearchFindings(
            limits=self._limits,
            found=best_of(reported, held_out) or best,
            trained=tuple(trained),
            refused=refused,
            pareto=tuple(front),
            held_out=held_out,
            units=tuple(units),
            gains=gains,
            guesses=table,
            rankings=tuple(rankings(table, gains)),
            chosen=chosen,
            measured=self._measured({t.name: t.update for t in reported}) if self._effort.measure else {},
            fitted=fitted,
            full=costs["full"],
            cut=self._evaluator.cut,
        )

    def _judged(self, reported: Sequence[Trained]) -> dict[str, tuple[float, ...]]:
        """Return scores on the held-out rows by name, without schemes that diverge there; the likeliest are first."""
        self._evaluator.limit.judge()
        ordered = sorted(reported, key=lambda each: (not each.within, *order(each)))
        trials = [self._trials("held_out", each.rate) for each in ordered]
        found = zip(ordered, self._evaluator.scores([each.update for each in ordered], trials), strict=True)
        whole = {each.name: [s for s in scores or () if s is not None] for each, scores in found}
        return {each.name: tuple(whole[each.name]) for each in reported if len(whole[each.name]) == self._effort.seeds}

    def _set_clock(self, names: Sequence[str]) -> tuple[str, ...]:
        """From now on steps are foreseen by those that these schemes take; the ones of them that the model allows."""
        found = zip(names, self._evaluator.costs(names, must=True), strict=True)
        able = {name: each["costs"] for name, each in found if "costs" in each}
        self._evaluator.clock = clock.fitted(
            [*able.values()], [*self._measured({name: name for name in able}).values()]
        )
        return tuple(able)

    def _measured(self, updates: Mapping[str, Update]) -> dict[str, float]:
        return dict(zip(updates, self._evaluator.steps(updates.values()), strict=True))

    def _priced(self, units: Sequence[Unit]) -> dict[str, Costs]:
        """Return costs by name of the parts that the model allows; where only affordable ones are wanted, of these.

        Of a layer more channels cost more, and so do more biases: what is more than too much is not even looked at.
        """
        found: dict[str, Costs] = {}
        if not self._effort.affordable:
            each = self._evaluator.costs([unit.update for unit in units])
            return {u.name: priced["costs"] for u, priced in zip(units, each, strict=True) if "costs" in priced}
        growing: dict[object, list[Unit]] = {}  # blocks, which have no choice, are by themselves
        for unit in units:
            growing.setdefault(unit.name if unit.choice is None else unit.choice[0], []).append(unit)
        left = list(growing.values())
        while left:
            each = self._evaluator.costs([some[0].update for some in left])
            fits = ["costs" not in priced or self._fits(priced["costs"]) for priced in each]
            pairs = [(some, priced, fit) for some, priced, fit in zip(left, each, fits, strict=True) if fit]
            found |= {some[0].name: priced["costs"] for some, priced, _ in pairs if "costs" in priced}
            left = [some[1:] for some, _, _ in pairs if some[1:]]
        return found

    def _fits(self, costs: Costs) -> bool:
        return all(costs[figure] <= limit for figure, limit in self._limits.items())

    def _trials(self, on: Literal["selection", "held_out"], rate: float) -> list[Trial]:
        return [Trial(on, seed, rate) for seed in range(self._effort.seeds)]

    def _known(self, update: Update) -> Trained | None:
        return self._trained.get(json.dumps(update))

    def _train(self, wanted: Sequence[Wanted], must: bool = False) -> list[Trained | None]:
        """Trains schemes with the learning rates that are best for them; None of those that diverge with each.

        None also of those that the time does not suffice for, unless they must be trained.

        The rate that did best so far is trained with all seeds, until that is so of the one that did best.
        """
        effort = self._effort
        new: dict[str, Wanted] = {}
        for each in wanted:
            if self._known(each.update) is None:
                new.setdefault(json.dumps(each.update), each)
        best: dict[str, float] = {}
        scores: dict[str, dict[float, list[float]]] = {key: {} for key in new}
        asked = [(key, rate, effort.rate_seeds or effort.seeds) for key in new for rate in effort.rates]
        while asked:
            self._race(new, scores, asked, must)
            best = {key: _leader(by_rate) for key, by_rate in scores.items() if by_rate}
            asked = [(key, r, effort.seeds) for key, r in best.items() if len(scores[key][r]) < effort.seeds]
        for key, rate in best.items():
            name, update, costs, predicted = new[key]
            made = (name, update, costs, self._fits(costs), rate, tuple(scores[key][rate]))
            self._trained[key] = Trained(*made, predicted)
        return [self._known(each.update) for each in wanted]

    def _race(
        self,
        schemes: Mapping[str, Wanted],
        scores: Mapping[str, dict[float, list[float]]],
        asked: Sequence[tuple[str, float, int]],
        must: bool,
    ) -> None:
        """Adds scores by rate, of so many first seeds, without rates that diverge and what was not done in time."""
        trials: dict[str, list[Trial]] = {}
        for key, rate, seeds in asked:
            trials.setdefault(key, []).extend(self._trials("selection", rate)[:seeds])
        told = partial(self._heard, schemes)
        found = self._evaluator.scores([schemes[key].update for key in trials], [*trials.values()], must, told)
        for key, each in zip(trials, found, strict=True):
            if each is None:
                scores[key].clear()
                continue
            for rate in dict.fromkeys(trial.rate for trial in trials[key]):
                some = [score for score, trial in zip(each, trials[key], strict=True) if trial.rate == rate]
                scores[key][rate] = [score for score in some if score is not None]
                if None in some:
                    del scores[key][rate]

    def _heard(self, schemes: Mapping[str, Wanted], update: Update, found: Mapping[Trial, float | None]) -> None:
        """Keeps the best scheme within the budgets so far, by the best of its rates, for those who wait."""
        wanted = schemes[json.dumps(update)]
        by_rate: dict[float, list[float]] = {}
        for trial, score in found.items():
            by_rate.setdefault(trial.rate, []).append(float("-inf") if score is None else score)
        score = max(float(np.mean(each)) for each in by_rate.values())
        best = self._evaluator.best
        if self._fits(wanted.costs) and score > (float("-inf") if best is None else best[1]):
            self._evaluator.best = (wanted.name, score)

    def _shorter(self, prior: Mapping[str, float]) -> list[Candidate]:
        """As much of what the scheme of the architecture grants as can be chosen and is within the budgets.

        All of it is left out: that is the scheme, which has a name.
        """
        whole = as_rules(dict.fromkeys(self._space.head, 1.0) | {name: share for name, share in prior.items() if share})
        return self._able([c for c in self._space.shortened(prior) if self._space.update(c) != whole])

    def _able(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return those within the budgets."""
        costs = zip(candidates, self._costs(candidates), strict=True)
        return [candidate for candidate, cost in costs if cost is not None and self._fits(cost)]

    def _scores(self, candidates: Sequence[Candidate], gains: Gains) -> list[float | None]:
        """Of candidates that the model allows, after their training; None of one that diverges."""
        wanted = [
            Wanted(self._space.describe(c), self._space.update(c), cost, gains.total(c))
            for c, cost in zip(candidates, self._costs(candidates), strict=True)
            if cost is not None
        ]
        return [None if each is None else each.mean for each in self._train(wanted)]

    def _combine(self, gains: Gains, head: Costs, full: Costs, others: Sequence[Candidate]) -> Chosen:
        """Trains what integer programming proposes at the budgets and at shares of them, and what evolution makes.

        Parents are others beside.
        """
        models = self._cost_models(gains)
        if self._evaluator.limit.is_over():
            return Chosen([], 0, False, {})
        effort, space = self._effort, self._space

        def best(limits: Mapping[str, float], want: int) -> Chosen:
            return best_within(space, gains, models, limits, self._costs, want, _PROPOSALS * effort.combinations)

        chosen = best(self._limits, effort.combinations)
        proposed = list(chosen.best)
        tops = {figure: self._limits.get(figure, full[figure]) for figure in RESOURCES.values()}
        for level in _LEVELS:
            limits = {figure: head[figure] + level * (top - head[figure]) for figure, top in tops.items()}
            proposed += best(limits, effort.combinations // 2).best

        singles = [space.alone(group, choice) for group, choice in space.columns]
        singles = [single for single in singles if gains.total(single) is not None]
        first, scores = [*proposed, *others, *self._able(singles)], partial(self._scores, gains=gains)
        evolve(space, first, self._able, scores, effort.generations, effort.children)
        return chosen

    def _costs(self, candidates: Sequence[Candidate]) -> list[Costs | None]:
        return [found.get("costs") for found in self._evaluator.costs([self._space.update(c) for c in candidates])]

    def _cost_models(self, gains: Gains) -> dict[str, LinearCost]:
        """Linear costs, fitted to each choice alone and to combinations at random, of those that may be proposed."""
        rng, space = np.random.default_rng(0), self._space
        columns = [column for column in space.columns if gains.of.get(column) is not None]
        groups = [[0.0, *(c for g, c in columns if g == group)] for group in range(len(space.groups))]
        drawn = [
            space.candidate([rng.choice(choices) for choices in groups])
            for _ in range(_FITTED * sum(len(choices) > 1 for choices in groups))
        ]
        points = [space.candidate([0] * len(groups)), *(space.alone(g, c) for g, c in columns), *drawn]
        points = list(dict.fromkeys(points))
        known = [(c, cost) for c, cost in zip(points, self._costs(points), strict=True) if cost is not None]
        if self._evaluator.limit.is_over():
            return {}
        return {figure: LinearCost(space, {c: cost[figure] for c, cost in known}) for figure in RESOURCES.values()}


class Wanted(NamedTuple):
    """A scheme that is to be trained; see `Trained`."""

    name: str
    update: Update
    costs: Costs
    predicted: float | None = None


def _leader(by_rate: Mapping[float, Sequence[float]]) -> float:
    """Return the rate with the best mean; of equal ones the smaller."""
    return max(by_rate, key=lambda rate: (np.mean(by_rate[rate]), -rate))
