"""Ctrl-C at any moment of a build: 130 and nothing written, or it came too late and the file is whole."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from converter.interrupts import INTERRUPTED
from converter.program.file import read_program


def interrupted_after(seconds: float, out: Path) -> tuple[int, str]:
    """The exit code of a build that gets Ctrl-C after so long, and what it said."""
    command = [sys.executable, "-m", "converter", "build", "lenet", "--out", str(out)]
    # A pipeline of a shell that runs in the background ignores SIGINT, and children inherit that.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        build = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    time.sleep(seconds)
    build.send_signal(signal.SIGINT)
    said, _ = build.communicate(timeout=120)
    return build.returncode, said


def check(seconds: float, folder: Path) -> bool:
    """Whether the build was stopped, which then left nothing."""
    out = folder / "m.tflite"
    code, said = interrupted_after(seconds, out)
    if code == 0:
        read_program(out).manifest  # noqa: B018  (whole)
    else:
        assert code == INTERRUPTED, f"after {seconds:.2f} s: {said}"
        assert said.endswith("stopped\n")
    assert list(folder.iterdir()) == ([out] if code == 0 else [])
    return code != 0


@pytest.mark.parametrize("seconds", [0.3, 1.5])
def test_ctrl_c_ends_a_build(seconds: float, tmp_path: Path) -> None:
    # On a fast machine the build may be done by then.
    for moment in (seconds, seconds / 2, seconds / 4):
        (tmp_path / "m.tflite").unlink(missing_ok=True)
        if check(moment, tmp_path):
            return
    pytest.fail("each time the build was done before")


def test_nothing_is_imported_before_ctrl_c_is_set() -> None:
    """What Python has not loaded by itself, before the command line ends at once."""
    script = "import sys; own = {*sys.modules}; import converter.__main__; print(*sorted({*sys.modules} - own))"
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert {*said.split()} <= {"__future__", "converter", "converter.__main__", "converter.interrupts", "signal"}


@pytest.mark.slow
def test_a_hundred_ctrl_c(tmp_path: Path) -> None:
    start = time.perf_counter()
    command = [sys.executable, "-m", "converter", "build", "lenet", "--out", str(tmp_path / "m.tflite")]
    subprocess.run(command, check=True, capture_output=True)
    whole = time.perf_counter() - start
    moments, stopped = random.Random(0), 0
    for _ in range(100):
        (tmp_path / "m.tflite").unlink(missing_ok=True)
        stopped += check(moments.uniform(0.2, whole), tmp_path)
    assert stopped >= 80
