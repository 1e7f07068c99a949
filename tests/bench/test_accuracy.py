"""The measurement of accuracy: its rows are kept apart, its figures are of what was trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from document import document
from judge import Judge
from tasks import SEEDS, TASKS, Data, Task

from converter.sparse import update_scheme
from examples import mlp


def rows(count: int = 1200) -> Data:
    """Two classes of points that a straight line parts."""
    x = np.random.default_rng(0).standard_normal((count, 6), np.float32)
    return Data(x, (x[:, 0] > x[:, 1]).astype(np.int32))


def task(**changes: Any) -> Task:
    options: dict[str, Any] = {
        "name": "points",
        "model": "a small net",
        "data": "points",
        "build": lambda: mlp.build((6, 8, 2)),
        "load": rows,
        "prepare": lambda x: 2 * x,
        "of_each": 40,
        "batch": 8,
        "epochs": 6,
        "rates": {"full": (1e-5, 1e-2), "head": (1e-2,)},
    }
    return Task(**options | changes)


def test_what_is_judged_is_not_learned_from() -> None:
    held_out, validation, samples = task().split(600, 200)
    assert (len(held_out.y), len(validation.y), len(samples)) == (600, 200, SEEDS)
    found = [{row.tobytes() for row in part.x} for part in (held_out, validation)]
    assert not found[0] & found[1]
    for sample in samples:
        assert np.bincount(sample.y).tolist() == [40, 40]
        assert not {row.tobytes() for row in sample.x} & (found[0] | found[1])
    assert (samples[0].x != samples[1].x).any()
    np.testing.assert_array_equal(held_out.x, 2 * rows().x[:600])


def test_figures_and_their_document() -> None:
    judge = Judge(task())
    schemes = {scheme: judge.figures(scheme) for scheme in ("full", "head")}
    full, head = schemes["full"], schemes["head"]
    assert full["rate"] == 1e-2  # with the other it learns nothing
    assert np.mean(full["after"]) > max(full["before"], 0.7)
    assert len(full["after"]) == len(head["after"]) == SEEDS
    assert 0 < head["trained_parameters"] < full["trained_parameters"]
    text = document({"points": judge.setting | {"schemes": schemes}})
    points = 100 * (np.mean(head["after"]) - np.mean(full["after"]))
    assert "## points" in text
    assert f"| {points:+.1f} ± " in text
    assert text.count("\n| ") == 3


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_schemes_of_the_tasks_exist(task: Task) -> None:
    assert {"full", "sparse", "lora", "head"} <= set(task.rates)
    for scheme in task.rates:
        assert update_scheme(scheme).name.startswith(scheme)
