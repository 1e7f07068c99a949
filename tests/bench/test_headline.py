"""The measurement of the time to accuracy: when a curve has arrived, and one small run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import BENCH


def module_of(name: str) -> Any:
    """A module of it, which is called as those of other measurements."""
    spec = spec_from_file_location(f"headline_{name}", BENCH / "headline" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def headline() -> Any:
    return module_of("arrivals")


def curve(*accuracies: float) -> list[dict[str, float]]:
    """A point a second."""
    return [{"accuracy": each, "cpu_s": 1.0 + i, "wall_s": 2.0 + i} for i, each in enumerate(accuracies)]


def test_a_curve_arrives_where_it_stays(headline: Any) -> None:
    assert headline.arrival(curve(0.5, 0.9, 0.8, 0.9, 0.95), 0.9) == 3
    assert headline.arrival(curve(0.95, 0.9), 0.9) == 0
    assert headline.arrival(curve(0.95, 0.8), 0.9) is None


def test_a_side_that_is_never_as_good_has_no_time(headline: Any) -> None:
    full = {"side": "full", "curves": [curve(0.5, 0.8), curve(0.5, 0.9)]}
    quick = {"side": "head", "curves": [curve(0.8, 0.9), curve(0.9, 0.9)]}
    lost = {"side": "means", "curves": [curve(0.9), curve(0.1)]}
    rows = headline.summed_up([full, quick, lost])
    assert rows[0]["wanted"] == pytest.approx(0.85 - 0.1 / 2**0.5 / 2)
    assert [row["cpu_s"] for row in rows] == [2.0, 1.0, None]
    assert [row["wall_s"] for row in rows] == [3.0, 2.0, None]
    assert rows[1]["cpu_error_s"] == 0


def test_calls_until_an_evaluation() -> None:
    """Of 20 rows in batches of 8 half an epoch is one step; class means are judged before the first."""
    methods = module_of("sides").OURS
    assert methods["full"].calls(3, 20, 8) == {"train": 4}
    assert methods["sparse"].calls(3, 20, 8) == {"features": 3, "train_features": 4}
    assert methods["means, then head"].calls(3, 20, 8) == {"features": 6, "train_features": 3}
    assert methods["means, then head"].calls(0, 20, 8) == methods["of blocks, int8"].calls(0, 20, 8) == {"features": 3}


@pytest.mark.slow
def test_it_measures(tmp_path: Path) -> None:
    file = tmp_path / "headline.json"
    command = [sys.executable, BENCH / "headline", "--task", "handwriting", "--side", "means"]
    subprocess.run([*command, "--choices", "2", "--epochs", "2", "--json", file], check=True)
    found = json.loads(file.read_text())
    assert {"commit", "date", "machine"} <= set(found)
    assert [row["side"] for row in found["rows"]] == ["full", "means"]
    assert all(row["peak_bytes"] > 1 << 20 and row["curves"][0][0]["cpu_s"] > 0 for row in found["rows"])
    assert [len(row["curves"]) for row in found["rows"]] == [2, 2]
    assert len(found["rows"][0]["rates"]) == 3

    again = [*command, "--choices", "1", "--epochs", "1", "--rates", file, "--json", tmp_path / "again.json"]
    subprocess.run(again, check=True)
    rows = json.loads((tmp_path / "again.json").read_text())["rows"]
    assert [row["rate"] for row in rows] == [row["rate"] for row in found["rows"]]
    assert not rows[0]["rates"]


def test_a_side_whose_process_ends_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH / "headline"))  # as for a folder that is run
    with module_of("turns").Worker("full", tmp_path) as worker, pytest.raises(ChildProcessError, match="of full ended"):
        worker.ask("losses", 0.1)


def test_the_page_and_its_figure_are_what_the_stored_figures_make(tmp_path: Path) -> None:
    written = tmp_path / "time-to-accuracy.md"
    subprocess.run([sys.executable, BENCH / "headline" / "document.py", "--output", written], check=True)
    for made in (written, written.with_suffix(".svg")):
        assert made.read_text() == (BENCH.parents[1] / "docs" / made.name).read_text(), made.name


def test_a_side_that_never_arrives_counts_with_its_whole_training(headline: Any) -> None:
    assert headline.sooner(0.5, {"cpu_s": 2.0, "curves": [curve(0.5, 0.9)]}) == "4.0 x"
    assert headline.sooner(0.5, {"cpu_s": None, "curves": [curve(0.5, 0.9)]}) == "> 4.0 x"
    assert headline.sooner(None, {"cpu_s": 2.0, "curves": []}) == ""


def test_runs_are_compared_where_a_side_arrived_in_both(headline: Any) -> None:
    def run(*times: float | None) -> list[dict[str, Any]]:
        sides = ("keras", "sparse", "head")
        row = {"task": "a", "rate": 0.1, "curves": [curve(0.5)]}
        return [{**row, "side": s, "cpu_s": t} for s, t in zip(sides, times, strict=True)]

    assert headline.in_both(run(8.0, 2.0, 1.0), run(9.0, 3.0, None), "keras") == [("a", "sparse", 4.0, 3.0)]
    assert headline.in_both(run(8.0, 2.0, 1.0), [], "keras") == []
    assert headline.in_both(run(8.0, 2.0, 1.0), run(None, 3.0, None), "keras") == []
    assert headline.in_both(run(None, 2.0, 1.0), run(None, 4.0, None), "keras") == [("a", "sparse", 0.5, 0.25)]


def test_runs_with_other_rates_are_not_compared(headline: Any) -> None:
    def run(*rates: float) -> list[dict[str, Any]]:
        curves = {"keras": curve(0.5, 0.6), "sparse": curve(0.5, 0.6), "head": curve(0.5, 0.6), "means": curve(0.6)}
        row = {"task": "a", "cpu_s": 2.0}
        sides = zip(curves.items(), rates, strict=True)
        return [{**row, "side": side, "curves": [each], "rate": rate} for (side, each), rate in sides]

    found = headline.in_both(run(0.1, 0.1, 0.2, 0.1), run(0.1, 0.1, 0.1, 0.0), "keras")
    assert found == [("a", "sparse", 1.0, 1.0), ("a", "means", 1.0, 1.0)]  # means have no rate
    assert headline.in_both(run(0.1, 0.1, 0.2, 0.1), run(0.3, 0.1, 0.2, 0.1), "keras") == []
