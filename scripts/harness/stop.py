"""Ctrl-C and SIGTERM: every wait of the harness ends, jobs are stopped in order, and what was measured is kept."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

from scripts.harness.faults import Interrupted

#: Ctrl-C, `kill`, and the end of the terminal.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_asked = threading.Event()


def listen() -> None:
    """The first signal stops the run in order, the second at once."""
    for number in SIGNALS:
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    _asked.set()
    print("stopping the jobs; once more to end at once", file=sys.stderr)


def is_asked() -> bool:
    """Return whether a signal came."""
    return _asked.is_set()


def rest(device: str, seconds: float) -> None:
    """Waits. Raises Interrupted as soon as a signal came."""
    if _asked.wait(seconds):
        raise Interrupted(device, "stopped by a signal")
