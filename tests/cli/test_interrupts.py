"""Ctrl-C at any moment of a build: 130 and nothing written, or it came too late and the file is whole."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from converter.program.file import read_program
from converter.support.interrupts import INTERRUPTED


def loads(process: subprocess.Popen[str], library: str) -> None:
    """Waits until a process has loaded a library, or has ended."""
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and library not in maps.read_text():
        time.sleep(0.01)


def interrupted(library: str, seconds: float, out: Path) -> tuple[int, str]:
    """The exit code of a build that gets Ctrl-C so long after it has loaded a library, and what it said."""
    command = [sys.executable, "-m", "converter", "build", "lenet", "--out", str(out)]
    # A pipeline of a shell that runs in the background ignores SIGINT, and children inherit that.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        build = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    loads(build, library)
    time.sleep(seconds)
    build.send_signal(signal.SIGINT)
    said, _ = build.communicate()
    return build.returncode, said


def check(library: str, seconds: float, folder: Path) -> bool:
    """Whether the build was stopped, which then left nothing."""
    out = folder / "m.tflite"
    code, said = interrupted(library, seconds, out)
    if code == 0:
        read_program(out).manifest  # noqa: B018  (whole)
    else:
        assert code == INTERRUPTED, f"{seconds:.2f} s after {library}: {said}"
        assert said.endswith("stopped\n")
    assert list(folder.iterdir()) == ([out] if code == 0 else [])
    return code != 0


# NumPy is loaded by the first imports, XLA by the compiler, LiteRT by the one step that is run.
@pytest.mark.parametrize("library", ["_multiarray_umath", "jaxlib"])
def test_ctrl_c_ends_a_build(library: str, tmp_path: Path) -> None:
    assert check(library, 0, tmp_path)


def test_ctrl_c_near_the_end_leaves_nothing_or_all(tmp_path: Path) -> None:
    check("ai_edge_litert", 0, tmp_path)


def test_nothing_is_imported_before_ctrl_c_is_set() -> None:
    """What Python has not loaded by itself, before the command line ends at once."""
    script = "import sys; own = {*sys.modules}; import converter.__main__; print(*sorted({*sys.modules} - own))"
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert {*said.split()} <= {
        "__future__",
        "converter",
        "converter.__main__",
        "converter.support",
        "converter.support.interrupts",
        "signal",
    }


@pytest.mark.slow
def test_a_hundred_ctrl_c(tmp_path: Path) -> None:
    start = time.perf_counter()
    command = [sys.executable, "-m", "converter", "build", "lenet", "--out", str(tmp_path / "m.tflite")]
    subprocess.run(command, check=True, capture_output=True)
    whole = time.perf_counter() - start
    moments, stopped = random.Random(0), 0
    for _ in range(100):
        (tmp_path / "m.tflite").unlink(missing_ok=True)
        stopped += check("_multiarray_umath", moments.uniform(0, whole), tmp_path)
    assert stopped
