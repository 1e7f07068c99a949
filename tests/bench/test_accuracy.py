"""The measurement of accuracy: its rows are kept apart, its figures are of what was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from document import document, section, sections
from journal import Journal
from judge import Judge
from personal import PERSONAL
from tasks import PRETRAINED, Data, Task

from converter.runtime import TrainingSession
from converter.training.schemes import update_scheme
from examples import mlp

DOCUMENT = Path(__file__).parents[2] / "docs" / "accuracy.md"


def rows(count: int = 1900) -> Data:
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
        "rates": {"full": 1e-4, "head": 1e-2},
    }
    return Task(**options | changes)


def test_what_is_judged_is_not_learned_from() -> None:
    judged, validation, samples = task().split()
    assert (len(validation.y), len(judged), len(samples)) == (500, 3, 3)
    found = [{row.tobytes() for row in part.x} for part in (judged[0], validation)]
    assert not found[0] & found[1]
    for held_out, sample in zip(judged, samples, strict=True):
        assert np.bincount(sample.y).tolist() == [40, 40]
        assert not {row.tobytes() for row in sample.x} & (found[0] | found[1])
        np.testing.assert_array_equal(held_out.x, 2 * rows().x[:1000])
    assert (samples[0].x != samples[1].x).any()


def test_each_choice_may_be_judged_on_rows_of_its_own() -> None:
    judged, validation, samples = task(judged_separately=True, held_out=300, choices=4).split()
    assert [len(part.y) for part in judged] == [300] * 4
    different = [{row.tobytes() for row in part.x} for part in (*judged, validation)]
    assert len(set.union(*different)) == sum(map(len, different)) == 4 * 300 + 500
    for sample in samples:
        assert not {row.tobytes() for row in sample.x} & set.union(*different)


def test_rows_with_several_labels() -> None:
    def texts() -> Data:
        x, y = rows(40)
        return Data(x, np.stack([y, y], 1))

    judged, validation, samples = task(load=texts, of_each=12, held_out=20, validation=5).split()
    assert [len(part.y) for part in (judged[0], validation, *samples)] == [20, 5, *[12] * 3]


def test_figures_and_their_document(tmp_path: Path) -> None:
    judge = Judge(task(compared=2), Journal(tmp_path / "journal.jsonl"))
    schemes = {scheme: judge.figures(scheme) for scheme in ("full", "head")}
    full, head = schemes["full"], schemes["head"]
    assert full["rate"] > 1e-3  # with the one that the search begins with it learns nothing
    tried = list(full["rates"])
    assert tried[0] < full["rate"] < tried[-1]
    assert max(full["rates"].values()) == full["rates"][full["rate"]]
    assert np.mean(full["after"]) > max(full["before"], 0.7)
    assert len(full["after"]) == len(head["after"]) == 3
    records = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    of_best = [r for r in records if (r["asked"]["scheme"], r["asked"].get("rate")) == ("full", full["rate"])]
    validated = [r["found"]["accuracy"] for r in of_best if r["asked"]["rows"] == "validation"]
    assert len(validated) == 2
    assert full["rates"][full["rate"]] == np.mean(validated)
    assert full["after"] == [r["found"]["after"] for r in of_best if r["asked"]["rows"] == "held out"]
    assert 0 < head["trained_parameters"] < full["trained_parameters"]
    text = document([section("points", judge.setting | {"schemes": schemes}, "Made today")])
    points = 100 * (np.mean(head["after"]) - np.mean(full["after"]))
    assert "## points" in text
    assert "\n\nMade today.\n\n" in text
    assert f"| {points:+.1f} ± " in text
    assert f"**{full['rate']:g}: " in text
    assert "chosen 3 times, rates compared with the first 2 of them;" in text
    assert text.count("\n| ") == 3


def test_sections_of_the_document_can_be_taken_over() -> None:
    text = DOCUMENT.read_text()
    parts = sections(text)
    assert [*parts] == [task.name for task in (*PRETRAINED, *PERSONAL)]
    assert document([*parts.values()]) == text


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    figures = Judge(task(), Journal(path)).figures("head")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:20])
    trained = []
    fit = TrainingSession.fit
    monkeypatch.setattr(TrainingSession, "fit", lambda *a, **options: trained.append(1) or fit(*a, **options))
    assert Judge(task(), Journal(path)).figures("head") == figures
    assert len(trained) == 1
    assert Judge(task(), Journal(path)).figures("head") == figures
    assert len(trained) == 1
    Judge(task(epochs=1), Journal(path)).figures("head")  # another setting is another question
    assert len(trained) > 1 + 3


@pytest.mark.parametrize("task", [*PRETRAINED, *PERSONAL], ids=lambda task: task.name)
def test_the_schemes_of_the_tasks_exist(task: Task) -> None:
    assert {"full", "sparse", "lora", "head"} <= set(task.rates)
    for scheme in task.rates:
        assert update_scheme(scheme).name.startswith(scheme)
