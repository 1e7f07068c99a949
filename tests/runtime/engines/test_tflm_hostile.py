"""No damaged program ends the process of who asks TensorFlow Lite Micro, but by a sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import converter
from converter.runtime.engines import engine
from tests.runtime.engines.micro_nets import NETS

MISSING = engine("tflm").missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"tflm: {MISSING}")


@pytest.mark.parametrize("count", [6, pytest.param(300, marks=pytest.mark.slow)])
def test_a_damaged_program_is_refused_by_a_sentence_or_goes_through(count: int, tmp_path: Path) -> None:
    path, options = tmp_path / "p.tflite", {"update": "head", "optimizer": "sgd", "batch": 1}
    converter.build(NETS["keyword"]().model(), target="tflm", check=False, **options).write(path)
    command = [sys.executable, "-m", "tests.runtime.engines.tflm_hostile", str(path), "--cases", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout
