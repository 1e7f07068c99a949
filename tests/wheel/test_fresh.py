"""The wheel with pip, as people install it: from nothing, without and with what compiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.installed import Installed
from tests.runtime.programs import BATCH, EXAMPLES, program
from tests.tree import ROOT

pytestmark = pytest.mark.slow

_TRAIN = """
import sys
import numpy as np
from pocketune import TrainingSession

with np.load("data.npz") as data, TrainingSession("m.tflite") as session:
    print(session.train(data["x"], data["y"], 0.1))
assert "jax" not in sys.modules
"""
_MODEL = """
import numpy as np

def model():
    import jax
    import pocketune
    inputs = [jax.ShapeDtypeStruct((1, 4), np.float32)]
    return pocketune.Model(lambda params, x: x @ params["w"], {"w": np.ones((4, 3), np.float32)}, inputs)
"""


def install(fresh: Installed, what: str, at: Path) -> None:
    fresh.run(fresh.python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", what, at=at)


def test_it_runs_a_program_without_jax_and_builds_one_with_it(installed: Installed, tmp_path: Path) -> None:
    fresh = Installed(installed.wheel, tmp_path / "venv")
    subprocess.run([sys.executable, "-m", "venv", fresh.folder], check=True)
    x, y = EXAMPLES["mlp"].data(BATCH)
    program("mlp").write(tmp_path / "m.tflite")
    np.savez(tmp_path / "data.npz", x=x, y=y)

    install(fresh, str(fresh.wheel), tmp_path)
    assert "jax" not in fresh.run(fresh.python, "-m", "pip", "list", at=tmp_path)
    assert float(fresh.run(fresh.python, "-c", _TRAIN, at=tmp_path)) > 0
    assert "initialize" in fresh.run(fresh.command, "inspect", "m.tflite", at=tmp_path)
    fresh.run(fresh.command, "export", "m.tflite", "--out", "plain.tflite", at=tmp_path)
    (tmp_path / "mine.py").write_text(_MODEL)
    command = [fresh.python, "-c", "import pocketune; pocketune.build('plain.tflite', classes=2)"]
    refused = subprocess.run(command, cwd=tmp_path, env=fresh.settings(), capture_output=True, text=True, check=False)
    assert "pip install 'pocketune[compiler]'" in refused.stderr

    # To the letter: pip finds the version that is installed.
    install(fresh, "pocketune[compiler]", tmp_path)
    fresh.run(fresh.command, "build", "mine:model", "--out", "new.tflite", at=tmp_path)
    assert (tmp_path / "new.tflite").is_file()
