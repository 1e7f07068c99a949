"""`estimate`: what a user sees, JSON, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import FACTORIES, Run
from tests.tools.estimate.common import GOOD, program, results_of


def test_a_table_and_what_it_is_based_on(run: Run) -> None:
    shown = run("estimate", GOOD, "--device", "pixel-8", "--samples", "100", "--epochs", "2", "--quiet", "--wide").out
    for words in ("26 steps", "head", "instructions by the table of litert-2", "never measured on this device", "GiB"):
        assert words in shown


def test_json_has_every_figure_and_measured_ones_count(run: Run, tmp_path: Path) -> None:
    program("good").write(tmp_path / "good.tflite")
    results_of(tmp_path, {"good.tflite": [2.0] * 4})
    flags = ("--device", "pixel-8", "--update", "head", "--json")
    found = run("estimate", GOOD, *flags, "--results", "results.jsonl", "--program", "good.tflite").json
    (head,) = found["schemes"]
    assert (found["device"], found["target"], found["samples"], found["steps"]) == ("pixel-8", "litert-2", 1000, 125)
    assert head["measured"]
    assert head["step_seconds"] == pytest.approx([2e-3, 2e-3])
    assert head["training_seconds"] == pytest.approx([0.25, 0.25])
    assert head["costs"]["step_cost"] > 0


def test_a_scheme_that_the_model_does_not_allow_is_a_row_with_its_reason(run: Run) -> None:
    shown = run("estimate", f"{FACTORIES}:no_gradient", "--device", "pixel-8").out
    assert "full: not for this model:" in shown


def test_a_microcontroller_is_estimated_by_its_clock(run: Run) -> None:
    flags = ("--board", "rp2350", "--update", "head", "--batch", "1", "--samples", "20", "--epochs", "2")
    found = run("estimate", GOOD, *flags, "--json").json
    (head,) = found["schemes"]
    assert (found["board"]["name"], found["target"], found["steps"], head["fits"]) == ("rp2350", "tflm", 40, True)
    least, most = head["instructions"]
    slowest, fastest = (rate * 150e6 for rate in found["board"]["per_cycle"])
    assert head["step_seconds"] == pytest.approx([least / fastest, most / slowest])
    assert head["training_seconds"] == pytest.approx([40 * seconds for seconds in head["step_seconds"]])
    assert 0 < least < head["costs"]["step_cost"] < most
    refused = run("estimate", GOOD, "--board", "rp2350", "--device", "pixel-8")
    assert refused.code == 2
    assert "--board stands without --device" in refused.err


def test_errors_say_what_to_do(run: Run) -> None:
    for flags, words in (
        ((), "--device pixel-9"),
        (("--device", "pixel-88"), "Did you mean 'pixel-8'"),
        (("--device", "pixel-8", "--target", "gpu"), "not a processor's table"),
        (("--device", "pixel-8", "--results", "none.jsonl"), "cannot read none.jsonl"),
        (("--device", "mine.toml"), "cannot be read"),
    ):
        ran = run("estimate", GOOD, *flags)
        assert ran.code == 2
        assert words in ran.err
    assert run("estimate", f"{FACTORIES}:nan", "--device", "pixel-8").code == 4
