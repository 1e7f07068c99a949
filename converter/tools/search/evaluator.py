"""Evaluation cache: each evaluation is a line of a journal, made at most once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converter.support.errors import UsageError
from converter.tools.search.clock import Clock
from converter.tools.search.interleaving import REFERENCE
from converter.tools.search.limit import TimeLimit
from converter.tools.search.space import Update
from converter.tools.search.subject import Evaluation, Trial
from converter.tools.search.workers import Workers, never


@dataclass(frozen=True)
class SearchProgress:
    """How far a search is.

    Attributes:
        stage: what is being done.
        done: of that.
        all: of that.
        best: the scheme within the budgets that did best so far on the rows that select, and its score; None before.
        seconds_left: that the search may take yet at the most; None where there is no limit.
    """

    stage: str
    done: int
    all: int
    best: tuple[str, float] | None
    seconds_left: float | None


#: Told how far a search is.
Progress = Callable[[SearchProgress], None]
#: What is done with the scores of trainings on each side of the split.
_SCORED = {"selection": "to select", "held_out": "to report"}
#: What is found of a scheme that the time did not suffice for.
_TOO_LATE = {"error": "the time was over before it was looked at"}


class SearchJournal:
    """A file of JSON lines, the first of which says what was searched for.

    Raises:
        UsageError: the file is the journal of another search, or no journal.
    """

    def __init__(self, path: Path | None, setting: Mapping[str, Any]) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        first = json.dumps({"search": dict(setting)}, sort_keys=True)
        text = path.read_text() if path is not None and path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if path is not None and text != whole:  # a search was killed as it wrote the last line
            path.write_text(whole)
        if not whole:
            self._write(first)
            return
        found, *lines = whole.splitlines()
        if found != first:
            raise UsageError(
                f"{path} is of another search (model, data, options or the target's table differ): name another "
                "folder, or remove it",
                page="search",
            )
        for line in lines:
            record = json.loads(line)
            self._known[_key(record["asked"])] = record["found"]

    def __contains__(self, asked: Mapping[str, Any]) -> bool:
        return _key(asked) in self._known

    def __getitem__(self, asked: Mapping[str, Any]) -> Any:
        return self._known[_key(asked)]

    def __setitem__(self, asked: Mapping[str, Any], found: Any) -> None:
        self._known[_key(asked)] = found
        self._write(json.dumps({"asked": dict(asked), "found": found}))

    def _write(self, line: str) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(line + "\n")


def _key(asked: Mapping[str, Any]) -> str:
    return json.dumps(asked, sort_keys=True)


def digest(*arrays: Any) -> str:
    """Tells arrays, and dicts and lists of them, from others."""
    hashed = hashlib.sha256()
    for array in arrays:
        if isinstance(array, dict):
            hashed.update(digest(*sorted(array), *(array[name] for name in sorted(array))).encode())
        elif isinstance(array, list | tuple):
            hashed.update(digest(*array).encode())
        elif isinstance(array, str) or array is None:
            hashed.update(repr(array).encode())
        else:
            hashed.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return hashed.hexdigest()[:16]


class Evaluator:
    """Asks workers for what the journal does not know.

    Attributes:
        clock: what costs are corrected by; None: they are those of the table.
        limit: when it is over; what was asked for then is left, but what must be known.
        best: the best scheme so far and its score, for those who are told of the progress.
        cut: whether something was left because it was over.
    """

    def __init__(
        self,
        workers: Workers,
        journal: SearchJournal,
        progress: Progress = lambda how_far: None,
        limit: TimeLimit | None = None,
    ) -> None:
        self._workers, self._journal, self._progress = workers, journal, progress
        self.clock: Clock | None = None
        self.limit = limit or TimeLimit()
        self.best: tuple[str, float] | None = None
        self.cut = False

    def costs(self, updates: Iterable[Update], must: bool = False) -> list[dict[str, Any]]:
        """Return for each scheme `costs`, those of its program, or `error`, why there are none.

        Args:
            updates: the schemes.
            must: whether they are priced also after the time is over.
        """
        found = self._found("schemes priced", [Evaluation(update) for update in updates], must)
        clock = self.clock
        if clock is None:
            return found
        return [{"costs": clock.corrected(each["costs"])} if "costs" in each else each for each in found]

    def steps(self, updates: Iterable[Update]) -> list[float]:
        """Return for each scheme nanoseconds of a step of it, as measured.

        Each was measured in turns with the reference: what slows the machine at times slows both, and their quotient
        stays.
        """
        jobs = [Evaluation(update, timed=True) for update in [REFERENCE, *updates]]
        found = self._found("steps measured", jobs, must=True)
        for each in found:
            if "error" in each:
                raise UsageError(f"a step cannot be measured: {each['error']}", page="search")
        (base, _), *turns = (each["times"] for each in found)
        return [base * step / reference for step, reference in turns]

    def proxies(self) -> dict[str, Any]:
        """`information` of channels and `gradients` of parameters, see `Subject`; nothing after the time is over."""
        return self._found("gradients and information of the parts", [Evaluation(None)], must=False)[0]

    def scores(
        self,
        updates: Sequence[Update],
        trials: Sequence[Sequence[Trial]],
        must: bool = False,
        told: Callable[[Update, Mapping[Trial, float | None]], None] = lambda update, scores: None,
    ) -> list[list[float | None] | None]:
        """Return for each scheme the scores of its trials, in their order; None where the time was over before.

        Args:
            updates: the schemes.
            trials: of each.
            must: whether they are trained also after the time is over.
            told: is told of each scheme that is done.
        """
        jobs = []
        for update, asked in zip(updates, trials, strict=True):
            missing = tuple(trial for trial in asked if _trial(update, trial) not in self._journal)
            jobs += [Evaluation(update, missing)] if missing else []
        for number, (job, found) in enumerate(self._each(jobs, must), 1):
            if "error" in found:
                raise UsageError(f"the scheme {job.update} does not train: {found['error']}", page="search")
            for trial, score in zip(job.trials, found["scores"], strict=True):
                self._journal[_trial(job.update, trial)] = score
            assert job.update is not None
            told(job.update, dict(zip(job.trials, found["scores"], strict=True)))
            self._tell(f"schemes trained, {_SCORED[job.trials[0].on]}", number, len(jobs))
        return [self._known(update, asked) for update, asked in zip(updates, trials, strict=True)]

    def _known(self, update: Update, asked: Sequence[Trial]) -> list[float | None] | None:
        """Return the scores of the trials of a scheme; None where one was not made."""
        if any(_trial(update, trial) not in self._journal for trial in asked):
            self.cut = True
            return None
        return [self._journal[_trial(update, trial)] for trial in asked]

    def _tell(self, stage: str, done: int, of: int) -> None:
        self._progress(SearchProgress(stage, done, of, self.best, self.limit.seconds_left))

    def _found(self, stage: str, jobs: Sequence[Evaluation], must: bool) -> list[dict[str, Any]]:
        different = {_key(_job(job)): job for job in jobs}
        missing = [job for job in different.values() if _job(job) not in self._journal]
        for number, (job, found) in enumerate(self._each(missing, must), 1):
            self._journal[_job(job)] = found
            self._tell(stage, number, len(missing))
        self.cut = self.cut or any(_job(job) not in self._journal for job in missing)
        return [self._journal[_job(job)] if _job(job) in self._journal else _TOO_LATE for job in jobs]  # noqa: SIM401  a journal is no dict

    def _each(self, jobs: Sequence[Evaluation], must: bool) -> Iterable[tuple[Evaluation, dict[str, Any]]]:
        done = self._workers.each(jobs, never if must else self.limit.is_over) if jobs else ()
        return ((jobs[number], found) for number, found in done)


def _job(job: Evaluation) -> dict[str, Any]:
    return {"proxies": None} if job.update is None else {"timed" if job.timed else "costs": job.update}


def _trial(update: Update | None, trial: Trial) -> dict[str, Any]:
    return {"update": update, "on": trial.on, "seed": trial.seed, "rate": trial.rate}
