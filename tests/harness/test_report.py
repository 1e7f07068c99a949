"""The page as a user sees it: every axis has numbers, every name is shown, and the results stay where they are."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from rich.console import Console
from typer.testing import CliRunner

from converter.support.errors import UsageError
from scripts.harness.cli import app
from scripts.harness.compare import compare
from scripts.harness.log import Checked, Log, ResultFile
from scripts.harness.plots import distribution, losses, over_time
from scripts.harness.report import render
from scripts.harness.tables import results_table
from tests.harness.test_compare import STEPS, VARIANT, file_of, interleaved


def scaled(*factors: float) -> ResultFile:
    """A run of a variant for each factor; the step times of each by that factor."""
    file, _ = interleaved(0)
    results = [
        replace(
            r,
            id=f"{r.id}-{i}",
            variant=replace(VARIANT, threads=i + 1),
            ms=tuple(tuple(factor * each for each in repeat) for repeat in r.ms),
        )
        for r in file.results
        for i, factor in enumerate(factors)
    ]
    return replace(file, records=(file.runs[0], *results))


def with_a_spike(file: ResultFile, factor: float) -> ResultFile:
    """One step of one job took so many times longer."""
    first, *others = file.results
    (times,) = first.ms
    spiked = replace(first, ms=((*times[:20], factor * times[20], *times[21:]),))
    return replace(file, records=(*file.runs, spiked, *others))


def labels(axis: Axis) -> list[str]:
    """What can be read at an axis."""
    low, high = sorted(axis.get_view_interval())
    ticks = [t for t in (*axis.get_major_ticks(), *axis.get_minor_ticks()) if low <= t.get_loc() <= high]
    texts = [text for tick in ticks for text in (tick.label1, tick.label2) if text.get_visible()]
    return [text.get_text() for text in texts if text.get_text()]


def drawn(figure: Figure) -> Axes:
    figure.draw_without_rendering()
    return figure.axes[0]


def test_emulated_speed_is_never_shown() -> None:
    real = interleaved(0, slower=2.0)
    emulated = [
        replace(f, records=(replace(f.runs[0], facts=replace(f.runs[0].facts, is_emulator=True)), *f.results))
        for f in real
    ]
    (found,) = compare(*emulated, 0.05)
    assert (found.verdict, found.a, found.b, found.ratio, found.interval) == ("WARN", None, None, None, None)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(results_table(emulated[0]))
    for text in (console.export_text(), render(emulated[0])):
        assert "how long a step took says nothing" in text
        assert "ms a step" not in text
        assert "Step times" not in text
    assert "ms a step" in render(real[0])


@pytest.mark.parametrize("size", [0.0004, 0.011, 2.2, 900.0])
@pytest.mark.parametrize("wider", [1.0, 7.9, 8.2, 11.0, 60.0, 400.0, 5e3, 1e9])
def test_every_axis_has_two_numbers(size: float, wider: float) -> None:
    file = scaled(size, size * wider)
    for figure in (distribution(file), over_time(file), losses(file)):
        axes = drawn(figure)
        axes_of_numbers = [axes.xaxis, *(each.yaxis for each in figure.axes)]
        if axes.get_legend() is None:
            axes_of_numbers.remove(axes.yaxis)  # the names of the variants stand there
        for axis in axes_of_numbers:
            assert 2 <= len(set(labels(axis))) <= 15, (axis.get_label_text(), labels(axis))


def test_a_single_slow_step_changes_no_axis() -> None:
    """What is not drawn does not decide how the rest is drawn; that it is missing is told."""
    even = scaled(2.2)
    spiked = with_a_spike(even, 10.0)
    assert drawn(distribution(spiked)).get_xscale() == drawn(over_time(spiked)).get_yscale() == "linear"
    assert drawn(distribution(spiked)).get_xlim()[1] < 1.2 * drawn(distribution(even)).get_xlim()[1]
    assert "slower, not drawn: " in drawn(distribution(spiked)).get_xlabel()
    assert drawn(distribution(scaled(1.0, 40.0))).get_xscale() == "log"
    assert drawn(over_time(scaled(1.0, 40.0))).get_yscale() == "log"


def test_a_spike_of_the_only_job_is_left_out_too() -> None:
    axes = drawn(distribution(with_a_spike(file_of([10 * np.ones(STEPS)]), 10.0)))
    assert axes.get_xlim()[1] < 12
    assert axes.get_xlabel() == "milliseconds a step (slower, not drawn: 1)"


@pytest.mark.parametrize("wider", [1.0, 7.0, 40.0, 1e4])
def test_no_point_lies_on_the_edge(wider: float) -> None:
    axes = drawn(over_time(scaled(1.0, wider)))
    points = np.concatenate([line.get_xydata() for line in axes.lines])
    heights = axes.transAxes.inverted().transform(axes.transData.transform(points))[:, 1]
    assert 0.05 < heights.min() < heights.max() < 0.95


def test_jobs_and_steps_are_whole_numbers() -> None:
    one = file_of([np.linspace(10, 11, STEPS)])
    assert labels(drawn(over_time(one)).xaxis) == ["1", "2"]
    assert labels(drawn(over_time(scaled(1.0))).xaxis) == ["2", "4", "6", "8", "10", "12"]
    assert all(label.isdigit() for label in labels(drawn(losses(one)).xaxis))


@pytest.mark.parametrize("name", ["_tiny", "a$x^$b", "$\\frac$", "<b>&", "_child0"])
def test_every_name_is_shown_as_it_is(name: str) -> None:
    file, _ = interleaved(0)
    named = replace(VARIANT, program=name)
    check = Checked("c", named, True, (2.0, 1.9), (2.0, 1.9), 1e-6, 2e-5, "dense/kernel")
    file = replace(file, records=(*file.runs, check, *(replace(r, variant=named) for r in file.results)))
    for figure in (over_time(file), losses(file)):
        legend = drawn(figure).get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == [named.title]
    escaped = named.title.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert render(file).count(escaped) == 4  # the table, and each plot


def test_the_page_never_takes_the_place_of_the_results(tmp_path: Path) -> None:
    file, _ = interleaved(0)
    for name in ("A.html", "B.jsonl"):
        with Log(tmp_path / name, resume=False) as log:
            for record in file.records:
                log.write(record)
    (tmp_path / "link.html").symlink_to(tmp_path / "B.jsonl")
    runner = CliRunner()
    for run, *out in (["A.html"], ["B.jsonl", "B.jsonl"], ["B.jsonl", "link.html"]):
        before = (tmp_path / run).read_bytes()
        given = ["--out", str(tmp_path / out[0])] if out else []
        with pytest.raises(UsageError, match=r"would take the place of the results in .*: give another --out"):
            runner.invoke(app, ["report", str(tmp_path / run), *given], catch_exceptions=False)
        assert (tmp_path / run).read_bytes() == before
    done = runner.invoke(app, ["report", str(tmp_path / "A.html"), "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
