"""Evaluation cache: each evaluation is a line of a journal, made at most once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from converter.support.errors import UsageError
from converter.tools.search.clock import Clock
from converter.tools.search.interleaving import REFERENCE
from converter.tools.search.space import Update
from converter.tools.search.subject import Evaluation, Trial
from converter.tools.search.workers import Workers

#: Told what is done, and of how much.
Progress = Callable[[str, int, int], None]
#: What is done with the scores of trainings on each side of the split.
_SCORED = {"selection": "to select", "held_out": "to report"}


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
    """

    def __init__(
        self, workers: Workers, journal: SearchJournal, progress: Progress = lambda stage, done, all: None
    ) -> None:
        self._workers, self._journal, self._progress = workers, journal, progress
        self.clock: Clock | None = None

    def costs(self, updates: Iterable[Update]) -> list[dict[str, Any]]:
        """Return for each scheme `costs`, those of its program, or `error`, why the model does not allow it."""
        found = self._found("schemes priced", [Evaluation(update) for update in updates])
        clock = self.clock
        if clock is None:
            return found
        return [{"costs": clock.corrected(each["costs"])} if "costs" in each else each for each in found]

    def steps(self, updates: Iterable[Update]) -> list[float]:
        """Return for each scheme nanoseconds of a step of it, as measured.

        Each was measured in turns with the reference: what slows the machine at times slows both, and their quotient
        stays.
        """
        found = self._found("steps measured", [Evaluation(update, timed=True) for update in [REFERENCE, *updates]])
        for each in found:
            if "error" in each:
                raise UsageError(f"a step cannot be measured: {each['error']}", page="search")
        (base, _), *turns = (each["times"] for each in found)
        return [base * step / reference for step, reference in turns]

    def proxies(self) -> dict[str, Any]:
        """`information` of channels and `gradients` of parameters, see `Subject`."""
        return self._found("gradients and information of the parts", [Evaluation(None)])[0]

    def scores(self, updates: Sequence[Update], trials: Sequence[Sequence[Trial]]) -> list[list[float | None]]:
        """Return for each scheme the scores of its trials, in their order."""
        jobs = []
        for update, asked in zip(updates, trials, strict=True):
            missing = tuple(trial for trial in asked if _trial(update, trial) not in self._journal)
            jobs += [Evaluation(update, missing)] if missing else []
        for number, (job, found) in enumerate(self._each(jobs), 1):
            if "error" in found:
                raise UsageError(f"the scheme {job.update} does not train: {found['error']}", page="search")
            for trial, score in zip(job.trials, found["scores"], strict=True):
                self._journal[_trial(job.update, trial)] = score
            self._progress(f"schemes trained, {_SCORED[job.trials[0].on]}", number, len(jobs))
        return [
            [self._journal[_trial(update, trial)] for trial in asked]
            for update, asked in zip(updates, trials, strict=True)
        ]

    def _found(self, stage: str, jobs: Sequence[Evaluation]) -> list[dict[str, Any]]:
        different = {_key(_job(job)): job for job in jobs}
        missing = [job for job in different.values() if _job(job) not in self._journal]
        for number, (job, found) in enumerate(self._each(missing), 1):
            self._journal[_job(job)] = found
            self._progress(stage, number, len(missing))
        return [self._journal[_job(job)] for job in jobs]

    def _each(self, jobs: Sequence[Evaluation]) -> Iterable[tuple[Evaluation, dict[str, Any]]]:
        return ((jobs[number], found) for number, found in (self._workers.each(jobs) if jobs else ()))


def _job(job: Evaluation) -> dict[str, Any]:
    return {"proxies": None} if job.update is None else {"timed" if job.timed else "costs": job.update}


def _trial(update: Update | None, trial: Trial) -> dict[str, Any]:
    return {"update": update, "on": trial.on, "seed": trial.seed, "rate": trial.rate}
