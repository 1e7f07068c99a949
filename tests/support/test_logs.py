"""What libraries log does not reach a user's terminal unless it is asked for; a session leaves no thread behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.programs import program
from tests.tree import ROOT

#: A package in place of TensorFlow's that logs as it does: before it reads the level, and what must be seen.
_TENSORFLOW = """
import os, sys
os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
os.write(2, b"I0000 00:00:1795685293.888527    5061 port.cc:153] oneDNN custom operations are on.\\n")
os.write(2, b"2026-11-26 09:00:00.888527: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.\\n")
os.write(2, b"E0000 00:00:1795685276.945139    4860 real.cc:52] a real error\\n")
print("a warning of Python", file=sys.stderr)
LEVEL = os.environ.get("TF_CPP_MIN_LOG_LEVEL")
"""
_FACTORY = """
import os, sys
import tensorflow
from tests.cli.factories import good as made
def good():
    os.write(2, b"INFO: of the user's own\\n")
    print("level", tensorflow.LEVEL, file=sys.stderr)
    return made()
"""
_SESSION = """
import os, sys, time
import numpy as np
from converter.runtime import TrainingSession
def threads(): return len(os.listdir("/proc/self/task"))
before = threads(), dict(os.environ)
session = TrainingSession(sys.argv[1], threads=4)
inputs = session.manifest.signatures["train"].inputs
x = np.ones((8, *inputs[0].shape[1:]), np.float32)
session.train(x, np.zeros(8, np.int32))
assert threads() > before[0], "the runtime has no threads of its own: this shows nothing"
if sys.argv[2] == "close":
    session.close()
    while threads() > before[0]:  # a thread that has been joined leaves /proc a moment later
        time.sleep(0.01)
assert dict(os.environ) == before[1]
"""


def ran(*arguments: str, path: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python, with a folder that it imports from before ours; it is ended where it hangs."""
    settings = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    settings |= {"PYTHONPATH": os.pathsep.join([str(path), str(ROOT)]), "JAX_PLATFORMS": "cpu"} | environment
    done = subprocess.run(
        [sys.executable, *arguments], env=settings, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_command_line_shows_errors_and_what_is_the_persons(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(_TENSORFLOW)
    (tmp_path / "mine.py").write_text(_FACTORY)
    build = ("-m", "converter", "build", "mine:good", "--out", str(tmp_path / "mine.tflite"))
    lines = ran(*build, path=tmp_path).stderr.splitlines()
    theirs = [line for line in lines if not line.endswith(" s")]  # than the stages
    assert theirs == [
        "E0000 00:00:1795685276.945139    4860 real.cc:52] a real error",
        "a warning of Python",
        "INFO: of the user's own",
        "level 2",
        "a model factory may print",
    ]
    assert "level 0" in ran(*build, path=tmp_path, TF_CPP_MIN_LOG_LEVEL="0").stderr
    wordy = ran(*build, path=tmp_path, POCKETUNE_VERBOSE="1").stderr
    for said in ("before absl::InitializeLog", "I0000", ": I tensorflow", "XNNPACK delegate", "level None"):
        assert said in wordy


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize("end", ["close", "leave"])
def test_a_session_is_silent_and_leaves_no_thread(end: str, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    program("mlp").write(path)
    assert ran("-c", _SESSION, str(path), end).stderr == ""
    assert "XNNPACK delegate" in ran("-c", _SESSION, str(path), end, POCKETUNE_VERBOSE="1").stderr
