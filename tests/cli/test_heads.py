"""Commands on a file of several heads: of one head they say what they say of the program of that head alone."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from converter.runtime import TrainingSession
from tests.cli.conftest import Run
from tests.driver.test_heads import CLASSES, alone, build

_HEADS = "heads.tflite"


@cache
def _built() -> dict[str, Any]:
    return {_HEADS: build()} | {f"{head}.tflite": alone(head) for head in CLASSES}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with a file of several heads, a program of each head alone, and a state of each head."""
    for name, program in _built().items():
        program.write(tmp_path / name)
    for head in CLASSES:
        with TrainingSession(tmp_path / _HEADS, head=head) as session:
            session.save(tmp_path / f"{head}.state")
    return tmp_path


def test_a_head_is_shown_as_its_program_alone(run: Run, files: Path) -> None:
    for head, classes in CLASSES.items():
        of_head, whole = (
            run("inspect", *said, "--json").json for said in ((_HEADS, "--head", head), (f"{head}.tflite",))
        )
        assert of_head["head"] == head
        assert of_head["operators"] == whole["operators"]
        for own in ("signatures", "parameters", "state_tensors", "costs", "update"):
            assert of_head["manifest"][own] == whole["manifest"][own]
        shown = run("inspect", _HEADS, "--head", head).out
        assert f"head {head}, graph {of_head['manifest']['graph_hash'][:16]}" in shown
        assert f"[4, {classes}]" in shown


def test_a_head_is_profiled_by_its_own_operators(run: Run, files: Path) -> None:
    of_head, whole = (
        run("profile", *said, "--steps", "1", "--json", "--quiet").json["rows"]
        for said in ((_HEADS, "--head", "frogs"), ("frogs.tflite",))
    )
    facts = ("signature", "operator", "layer", "phase", "calls")
    assert [[row[fact] for fact in facts] for row in of_head] == [[row[fact] for fact in facts] for row in whole]


def test_a_head_is_reported_as_its_program_alone(run: Run, files: Path) -> None:
    drawn = {}
    for name, said in (("head", (_HEADS, "--head", "birds")), ("whole", ("birds.tflite",))):
        out = ("--out", f"{name}.html", "--model-explorer", name)
        assert run("report", *said, *out, "--profile", "--quiet").code == 0
        page = (files / f"{name}.html").read_text()
        drawn[name] = json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.S)[1])
        assert ("head birds</h1>" in page) == (name == "head")
    assert drawn["head"] == drawn["whole"]
    graphs = {name: json.loads((files / name / "layer.json").read_text()) for name in drawn}
    stored = {name if name == "features" else f"birds/{name}": drawing for name, drawing in graphs["whole"].items()}
    assert graphs["head"] == stored


def test_a_head_is_exported_as_its_program_alone(run: Run, files: Path) -> None:
    for head in CLASSES:
        assert run("export", _HEADS, f"{head}.state", "--head", head, "--out", "one.tflite").code == 0
        assert run("export", f"{head}.tflite", "--out", "other.tflite").code == 0
        assert (files / "one.tflite").read_bytes() == (files / "other.tflite").read_bytes()


def test_a_state_goes_on_in_its_head_alone(run: Run, files: Path) -> None:
    assert "it goes on in" in run("state", "birds.state", "--against", _HEADS, "--head", "birds").out
    refused = run("state", "birds.state", "--against", _HEADS, "--head", "frogs")
    assert refused.code == 2
    assert "adam of the head birds there, sgd of the head frogs here" in refused.err
    assert "--head is of the program of --against" in run("state", "birds.state", "--head", "birds").err


def test_a_file_of_several_heads_is_refused_by_their_names(run: Run, files: Path) -> None:
    for command in (
        ("inspect", _HEADS),
        ("profile", _HEADS),
        ("report", _HEADS),
        ("export", _HEADS, "--out", "o.tflite"),
        ("export-c", _HEADS, "--out", "folder"),
        ("import", _HEADS, "adapter", "--out", "n.state"),
        ("certify", _HEADS, "--on", "tflm"),
        ("federated", "server", _HEADS, "--out", "folder"),
    ):
        refused = run(*command)
        assert refused.code == 2, command
        assert "several heads: birds, frogs. Say which: head='birds' in Python, --head birds" in refused.err, command
    for command in ("inspect", "profile", "report"):
        assert "no head 'frog'. Did you mean 'frogs'?" in run(command, _HEADS, "--head", "frog").err
        assert "it has one head, and no head 'birds'" in run(command, "birds.tflite", "--head", "birds").err
