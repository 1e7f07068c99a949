"""`report`: a page, node data for Model Explorer, and its errors."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run
from tests.tools.report.programs import program


def test_a_page_with_measured_times(run: Run, tmp_path: Path) -> None:
    program("mlp").write(tmp_path / "m.tflite")
    done = run("report", "m.tflite", "--out", "r.html", "--model-explorer", "nodes", "--profile", "--quiet")
    assert done.code == 0
    assert "wrote r.html" in done.out
    assert "model-explorer m.tflite --node_data_paths=nodes/cost.json" in done.out
    assert "ms forward" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert (tmp_path / "nodes/cost.json").is_file()


def test_what_is_missing_is_named(run: Run, tmp_path: Path) -> None:
    program("mlp").write(tmp_path / "m.tflite")
    for extra, said in ((("--state", "no.state"), "no.state"), (("--run", "no.jsonl"), "no.jsonl")):
        done = run("report", "m.tflite", *extra)
        assert done.code == 2
        assert said in done.err
    assert run("report", "no.tflite").code == 2
