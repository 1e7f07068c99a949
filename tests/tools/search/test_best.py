"""What a search finds and says of it: the best by all trainings, what is as good, and the best so far."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.tools.search.limit import TimeLimit
from converter.tools.search.subject import Evaluation
from converter.tools.search.workers import Processes
from tests.tools.search.common import fake
from tests.tools.search.mortal import Slow
from tests.tools.search.run_fake import run
from tests.tools.search.test_explore import found


def test_what_did_well_by_chance_is_not_what_is_found() -> None:
    """One is best on the rows that select, and far behind on the others: what did best on all is found."""

    def lucky(job: Evaluation) -> dict[str, Any]:
        found = fake(job)
        if job.update == "bias-only" and job.trials:
            shift = {"selection": 0.3, "held_out": -0.6}
            scores = zip(job.trials, found["scores"], strict=True)
            found["scores"] = [None if s is None else s + shift[trial.on] for trial, s in scores]
        return found

    findings = run(None, lucky, budgets=()).findings
    by_name = {t.name: t for t in findings.trained}
    assert max(findings.trained, key=lambda t: t.mean).name == "bias-only"
    assert findings.found.name != "bias-only"
    judged = {name: np.mean([*by_name[name].scores, *scores]) for name, scores in findings.held_out.items()}
    assert findings.found.name == max(judged, key=lambda name: judged[name])


def test_what_intervals_do_not_tell_apart_is_said() -> None:
    findings = found().findings
    head = next(t for t in findings.trained if t.name == "head")
    near = tuple(np.array(findings.held_out[findings.found.name]) - [0.01, -0.01, 0.005])
    trained = tuple(replace(t, scores=near) if t is head else t for t in findings.trained)
    here = replace(findings, trained=trained, held_out={**findings.held_out, "head": near})
    here = replace(
        here, trained=tuple(replace(t, scores=near) if t.name == findings.found.name else t for t in trained)
    )
    here = replace(here, found=next(t for t in here.trained if t.name == findings.found.name))
    assert here.alike()[0].name == "head"
    said = [s for s in replace(found(), findings=here).sentences() if "intervals do not tell it from head" in s]
    assert len(said) == 1


@pytest.mark.parametrize("jobs", [1, 9, 12, 16, 30, 60])
def test_when_the_time_is_over_it_has_the_best_so_far(jobs: int, tmp_path: Path) -> None:
    """After so many jobs; another search goes on from there, and ends as if nothing had happened."""
    stop, done = threading.Event(), 0

    def counted(job: Evaluation) -> dict[str, Any]:
        nonlocal done
        done += 1
        if done == jobs:
            stop.set()
        return fake(job)

    cut = run(tmp_path / "journal", counted, limit=TimeLimit(stop=stop))
    findings = cut.findings
    assert findings.cut
    assert findings.held_out == {}
    assert findings.found.mean == max(t.mean for t in findings.trained if t.within)
    assert {"head"} <= {t.name for t in findings.trained}
    assert "the time was over before all was tried" in "\n".join(cut.sentences())
    json.dumps(cut.to_json(), allow_nan=False)
    assert run(tmp_path / "journal").to_json() == found().to_json()


def test_some_of_the_time_is_kept_to_judge_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def slow(job: Evaluation) -> dict[str, Any]:
        nonlocal now
        now += 1.0
        return fake(job)

    findings = run(None, slow, limit=TimeLimit(30)).findings
    assert findings.cut
    assert findings.found.name in findings.held_out
    assert now <= 31


@pytest.mark.quick
def test_what_runs_when_it_is_over_is_left_and_others_begin_anew() -> None:
    """Workers that were idle, and end by themselves, hold up nothing."""
    workers = Processes(Slow(), 2)
    for _ in range(2):
        done: dict[int, Any] = {}
        for number, what in workers.each([Evaluation("a"), Evaluation("for ever")], lambda: bool(done)):  # noqa: B023
            done[number] = what
        assert done == {0: {"of": "a"}}
    assert len(dict(workers.each([Evaluation("b"), Evaluation("c")]))) == 2
    workers.close()
