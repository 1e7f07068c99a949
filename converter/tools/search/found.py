"""Search results: as JSON, as rows of a table, and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from converter.tools.search.analysis import GUESSES, MeanEstimate, estimate, student_t
from converter.tools.search.budgets import RESOURCES
from converter.tools.search.effort import Effort
from converter.tools.search.findings import SearchFindings, Trained, difference
from converter.tools.search.rate_schedule import RateSchedule
from converter.tools.search.space import Update

#: Schemes that the found one is measured against.
_RIVALS = ("head", "bias-only", "last-2", "last-3", "pockengine")
#: Trainings of a scheme whose intervals tell schemes apart.
_ENOUGH = 4


@dataclass(frozen=True)
class Found:
    """A scheme, and all that was found out on the way to it.

    Attributes:
        findings: all of it.
        model: its name.
        unit: of `step_cost`: `ns`, `instructions`, or empty.
        counted: whether scores are accuracies; else they are losses, below zero.
        effort: how much was tried.
        setting: what was searched for.
        frozen: what the frozen layers of the found scheme are, as for `pocketune.build`: `int8` where that was asked
            for and some of them are.
    """

    findings: SearchFindings
    model: str
    unit: str
    counted: bool
    effort: Effort
    setting: Mapping[str, Any]
    frozen: str = "float32"

    @property
    def update(self) -> Update:
        """The scheme, as for `pocketune.build`."""
        return self.findings.found.update

    @property
    def learning_rate(self) -> float:
        """The rate that it did best with, the highest of its course."""
        return self.findings.found.rate

    @property
    def course(self) -> str:
        """The learning rate over the training in which it did best, in words."""
        return RateSchedule(**self.setting["course"]).describe(self.learning_rate)

    def score(self, trained: Trained) -> MeanEstimate:
        """Return the score of a scheme over all its trainings with its best rate, none on rows that it learned from."""
        return estimate(self.findings.judged(trained))

    def held_out(self, name: str) -> MeanEstimate | None:
        """Return the score of a scheme on rows that nothing was chosen with; None of what was not judged on them."""
        scores = self.findings.held_out.get(name)
        return None if scores is None else estimate(scores)

    def sentences(self) -> list[str]:
        """Return whether the found scheme is better than the others, and how far gains added up."""
        findings, found = self.findings, self.findings.found
        said = []
        against = findings.against()
        if findings.cut:
            said.append("the time was over before all was tried: the same command goes on from here (--minutes 20)")
        if not findings.held_out:
            said.append("nothing was judged on held-out rows: figures are of the rows that select, and flatter")
        said += self._said_of_alike()
        for rival in findings.trained:
            if rival.name not in _RIVALS or rival.name not in against:
                continue
            by = against[rival.name]
            verdict = (
                "beats" if by.mean > by.error else "falls short of" if by.mean < -by.error else "does not differ from"
            )
            outside = "" if rival.within else f", which is beyond the budget ({self._times(rival)})"
            said.append(f"the found scheme {verdict} {rival.name}: {self.figure(by, sign=True)}{outside}")
        if edges := self._edges():
            said.append(f"the best of the learning rates was the first or last for {', '.join(edges)}: try beyond it")
        if found.name in _RIVALS:
            said.append(f"nothing within the budget did better than {found.name}")
        if len(errors := [error for _, error in findings.additivity]) > 1:
            mean = self.figure(estimate(errors), sign=True)
            said.append(f"{len(errors)} combinations gained {mean} more than the sum of what their parts gained alone")
        if (seeds := self.effort.seeds) < _ENOUGH:
            said.append(
                f"intervals of {seeds} trainings are {student_t(seeds):.1f} times the standard error of their mean, "
                f"those of {_ENOUGH} only {student_t(_ENOUGH):.1f} times: ask for more (--seeds {_ENOUGH})"
            )
        return [*said, *self._said_of_full(), *self._said_of_steps()]

    def _said_of_alike(self) -> list[str]:
        """Return which schemes are as good within the budget, as far as intervals tell, and what the cheapest takes."""
        if not (alike := self.findings.alike()):
            return []
        least, *others = alike
        names = " or ".join([least.name, *(each.name for each in others)])
        which = f"{least.name}, the cheapest, takes" if others else "which takes"
        return [f"intervals do not tell it from {names}; {which} {self._times(least)} of the found one"]

    def off_by(self, trained: Trained) -> float | None:
        """Return the step that was foreseen over the measured one, less 1; None: it was not measured."""
        step = self.findings.measured.get(trained.name)
        return None if step is None else trained.costs["step_cost"] / step - 1

    def _said_of_full(self) -> list[str]:
        """Return what it takes at least to do as well as full training."""
        by_name = {t.name: t for t in self.findings.reported}
        if "full" not in by_name:
            return []
        full = by_name.pop("full")
        judged = self.findings.judged
        by = {name: difference(judged(trained), judged(full)) for name, trained in by_name.items()}

        def shares(name: str) -> list[float]:
            return [by_name[name].costs[figure] / full.costs[figure] for figure in RESOURCES.values()]

        equal = [name for name in by if by[name].mean + by[name].error >= 0]
        if not equal:
            return ["all others fall short of full"]
        least = min(equal, key=lambda name: max(shares(name)))
        memory, step = shares(least)
        taken = f"{memory:.0%} of its memory and {step:.0%} of its step"
        return [
            f"of what does not fall short of full, {least} takes least: {taken} ({self.figure(by[least], sign=True)})"
        ]

    def _said_of_steps(self) -> list[str]:
        """Return how well steps were foreseen: those that were fitted to, and others."""
        off = {t.name: abs(by) for t in self.findings.trained if (by := self.off_by(t)) is not None}
        fitted = [by for name, by in off.items() if name in self.findings.fitted]
        others = [by for name, by in off.items() if name not in self.findings.fitted]
        kinds = ((fitted, "schemes that the table was fitted to here"), (others, "other schemes"))
        return [f"steps of {len(each)} {which} were foreseen within {max(each):.0%}" for each, which in kinds if each]

    def _edges(self) -> list[str]:
        """Reported schemes that might do better with a rate that was not tried."""
        rates, reported = self.effort.rates, self.findings.reported
        return [f"{t.name} ({t.rate:g})" for t in reported if len(rates) > 1 and t.rate in (rates[0], rates[-1])]

    def _times(self, other: Trained) -> str:
        mine, theirs = self.findings.found.costs, other.costs
        return ", ".join(
            f"{theirs[figure] / mine[figure]:.2f} times the {word}"
            for figure, word in (("resident_bytes", "memory"), ("step_cost", "step"))
        )

    def figure(self, score: MeanEstimate, sign: bool = False) -> str:
        """Return a score with its interval: points of accuracy, or of a loss the number."""
        factor, digits = (100, 1) if self.counted else (1, 3)
        return score.text(factor, digits, sign)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        findings = self.findings
        return {
            "model": self.model,
            "setting": dict(self.setting),
            "effort": asdict(self.effort),
            "score": "accuracy" if self.counted else "minus loss",
            "unit_of_step_cost": self.unit,
            "limits": dict(findings.limits),
            "found": findings.found.name,
            "cut": findings.cut,
            "update": self.update,
            "frozen": self.frozen,
            "learning_rate": self.learning_rate,
            "schemes": [self._scheme(trained) for trained in findings.trained],
            "refused": dict(findings.refused),
            "parts": [
                {
                    "kind": unit.kind,
                    "name": unit.name,
                    "gain": _json(findings.gains.get(unit.name)),
                    **{guess: findings.guesses[guess].get(unit.name) for guess in GUESSES},
                }
                for unit in findings.units
            ],
            "rankings": [asdict(ranking) for ranking in findings.rankings],
            "fitted": list(findings.fitted),
            "additivity": [{"name": t.name, "error": error} for t, error in findings.additivity],
            "proposals": {
                "judged": findings.chosen.proposals,
                "complete": findings.chosen.complete,
                "worst_error_of_costs": findings.chosen.worst,
            },
            "against": {name: _json(by) for name, by in findings.against().items()},
            "sentences": self.sentences(),
        }

    def _scheme(self, trained: Trained) -> dict[str, Any]:
        held_out = self.findings.held_out.get(trained.name)
        return {
            "name": trained.name,
            "update": trained.update,
            "costs": dict(trained.costs),
            "measured_step": self.findings.measured.get(trained.name),
            "within": trained.within,
            "pareto": trained.name in self.findings.pareto,
            "learning_rate": trained.rate,
            "all": _json(self.score(trained)),
            "selection": {"scores": list(trained.scores), **(_json(estimate(trained.scores)) or {})},
            "held_out": None if held_out is None else {"scores": list(held_out), **(_json(estimate(held_out)) or {})},
            "predicted_gain": trained.predicted,
        }


def _json(value: MeanEstimate | None) -> dict[str, float] | None:
    return None if value is None else asdict(value)
