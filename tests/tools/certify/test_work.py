"""The processes of engines: none outlives who asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from converter.runtime.engines.work import Task, at_most, perform
from converter.support.errors import UsageError

#: An engine that starts a process of its own and hangs, without letting a thread of Python run.
ENGINE = """\
import ctypes, os, subprocess, sys
from pathlib import Path
from converter.runtime.engines.work import serve

def load(path, options):
    child = subprocess.Popen(["sleep", "600"])
    part = path.with_suffix(".part")
    part.write_text(f"{os.getpid()} {child.pid}")
    part.rename(options["pids"])
    ctypes.PyDLL(None).sleep(600)

serve(load)
"""
ASKS = """\
import os, signal, sys
from converter.runtime.engines.work import Task, perform
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
perform("hanging", [Task(b"")], {"pids": sys.argv[1]}, dict(os.environ), 600)
"""


def ended(pid: int) -> bool:
    """Whether a process is gone, or a corpse that nobody has buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until(happened: Callable[[], bool]) -> None:
    """Waits."""
    for _ in range(30_000):
        if happened():
            return
        time.sleep(0.01)
    raise TimeoutError


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_an_engine_ends_with_who_asked_for_it(how: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(ENGINE)
    pids = tmp_path / "pids"
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    asks = subprocess.Popen(
        [sys.executable, "-c", ASKS, str(pids)],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    until(pids.exists)
    started = [int(pid) for pid in pids.read_text().split()]
    assert not any(map(ended, started))
    asks.send_signal(how)
    asks.wait()
    until(lambda: all(map(ended, started)))


#: An engine that takes a while for each program.
SLOW = """\
import time
from converter.runtime.engines.work import serve

def load(path, options):
    time.sleep(1)
    return {}, lambda *call: {}

serve(load)
"""


def test_a_limit_is_that_of_all_programs_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them alone would end in time."""
    (tmp_path / "slow.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with at_most(4, "slow"), pytest.raises(UsageError, match="slow did not end within 4 s"):
        perform("slow", [Task(b"")] * 1000, {}, {**os.environ, "PYTHONPATH": path}, 3)
