"""What a command needs at its end is looked at before its work: places, engines, libraries that write a format."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from converter.runtime.engines import engine
from tests.cli.conftest import FACTORIES, Run
from tests.runtime.programs import program


def test_an_engine_that_is_not_set_up_ends_a_build_before_it_compiles(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(engine("gpu")), "missing", lambda self: "not here")
    ran = run("build", f"{FACTORIES}:good", "--out", "m.tflite", "--certify", "gpu")
    assert ran.code != 0
    assert "gpu: not here" in ran.err
    assert "make the model" not in ran.err


@pytest.mark.parametrize(
    "command", ["export p.tflite --out nowhere/plain.tflite", "report p.tflite --out nowhere/page.html"]
)
def test_a_place_that_is_not_there_is_said_with_the_way_to_make_it(command: str, run: Run, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    program("mlp").write(tmp_path / "p.tflite")
    ran = run(*command.split())
    assert ran.code != 0
    assert "mkdir -p nowhere" in ran.err


def test_a_library_that_is_missing_is_named_with_its_extra(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    program("mlp").write(tmp_path / "p.tflite")
    ran = run("export", "p.tflite", "no.state", "--out", "w.safetensors")
    assert "a .safetensors file needs safetensors" in ran.err  # and not that there is no such state
    assert "pip install 'pocketune[safetensors]'" in ran.err
