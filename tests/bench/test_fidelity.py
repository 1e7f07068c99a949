"""The table of what runs where: its figures are those of a training, and what does not run says why."""

from __future__ import annotations

import json
import sys

import pytest

from scripts.fidelity import __main__ as fidelity
from scripts.fidelity.__main__ import Row, cases, rows, table
from scripts.fidelity.runtimes import PYTHONS

CASE = ("mlp", "full", "sgd", "litert-2")


def test_a_program_beside_jax(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "mlp", "--scheme", "full", "--optimizer", "sgd", "--target", "litert-2", "--json"]
    monkeypatch.setattr(sys, "argv", ["fidelity", *options])
    fidelity.main()
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["model"], row["scheme"], row["optimizer"], row["target"]) == CASE
    here = [name for name, python in PYTHONS.items() if python.exists()]
    assert len(row["runtimes"]) == 2 * len(here) >= 2
    assert all(0 < separate < 1e-5 for separate in row["runtimes"].values())


def test_another_training_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, parameters = fidelity.expected(*CASE[:3])
    nudged = parameters | {"layers/0/w": 1.01 * parameters["layers/0/w"]}
    for wanted in ((losses, nudged), ([1.01 * loss for loss in losses], parameters)):
        monkeypatch.setattr(fidelity, "expected", lambda *_, wanted=wanted: wanted)
        (row,) = rows([CASE])
        assert all(isinstance(separate, float) and 5e-3 < separate < 2e-2 for separate in row.runtimes.values())


def test_what_does_not_run_says_why() -> None:
    shown = table([Row(*CASE, {"A": 3e-7, "B": "no\nkernel"}), Row(*CASE, {"all": "refused: too wide"})]).splitlines()
    assert shown[2].endswith("| 3e-07 | no kernel |")
    assert shown[3].endswith("| refused: too wide | refused: too wide |")


def test_what_is_tried() -> None:
    usual = list(cases(["mlp"], None, None, None))
    assert ("mlp", "full", "adamw", "tflite-2.14") in usual
    assert ("mlp", "sparse", "sgd", "litert-2") in usual
    assert list(cases(["mlp"], ["head"], ["sgd"], ["tflite-2.16"])) == [("mlp", "head", "sgd", "tflite-2.16")]
