"""The demo of a language model, with a small random one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.decoder_frontend import written
from tests.tree import ROOT

pytest.importorskip("tokenizers")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts/demo_llm.py", "--llm", "--model", folder / "small.gguf", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_it_teaches_a_glossary_and_asks(tmp_path: Path) -> None:
    written.write_small_model(tmp_path / "small.gguf")
    (tmp_path / "words.txt").write_text("zo: ab\n\nxy: cd\n")
    options = ["--glossary", str(tmp_path / "words.txt"), "--length", "96", "--out", str(tmp_path / "out")]
    done = run(tmp_path, *options, "--json", str(tmp_path / "said.json"))
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "said.json").read_text())
    assert [wanted for _, wanted, _, _ in said["answers"]] == ["ab", "cd"]
    assert len(said["others"]) == 4
    assert said["perplexity"][1] < 0.8 * said["perplexity"][0]
    assert (tmp_path / "out/adapter/adapter_model.safetensors").exists()
    again = run(tmp_path, *options)
    assert again.returncode == 0
    assert "is built already" in again.stderr


def test_a_model_that_is_not_there_and_a_glossary_that_is_none_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("zo ab\n")
    asked = ["--glossary", str(tmp_path / "words.txt"), "--out", str(tmp_path / "out")]
    done = run(tmp_path, *asked)
    assert done.returncode != 0
    assert f"there is no file {tmp_path / 'small.gguf'}" in done.stderr
    written.write_small_model(tmp_path / "small.gguf")
    done = run(tmp_path, *asked)
    assert done.returncode != 0
    assert "line 1: expected WORD: MEANING" in done.stderr
    assert not (tmp_path / "out").exists()
