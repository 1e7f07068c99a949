"""Interrupts (Ctrl-C) on the command line: the process ends at once with 130 and leaves no file."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in `converter.__main__`
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

#: What a shell reports for a command that Ctrl-C ended.
INTERRUPTED = 130
#: Shows the cursor again, which a spinner hides.
_SHOW_CURSOR = b"\x1b[?25h"


def end_at_once() -> None:
    """From here on Ctrl-C ends the process.

    Not by KeyboardInterrupt: raised in a callback out of XLA or LiteRT it is lost, and the build goes on, or it unwinds
    what C++ is still working on, and the process crashes.
    """
    signal.signal(signal.SIGINT, _end)


def too_late() -> None:
    """From here on Ctrl-C does nothing: the result is being written, and the command ends by itself in a moment.

    Only where `end_at_once` was called: a library does not take its caller's Ctrl-C away.
    """
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class Asking:
    """While this is open the first Ctrl-C asks for an early end; the next, or where the answer is no, ends the process.

    Only where `end_at_once` was called, as for `too_late`.
    """

    def __init__(self, stop: Callable[[], bool]) -> None:
        """Changes nothing yet; `stop` ends early, and returns whether it does."""
        self._stop = stop

    def __enter__(self) -> None:
        """Asks from here on."""
        self._is_ours = signal.getsignal(signal.SIGINT) is _end
        if self._is_ours:
            signal.signal(signal.SIGINT, self._ask)

    def __exit__(self, *_: object) -> None:
        """Ends the process at once again."""
        if self._is_ours:
            end_at_once()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        end_at_once()
        if not self._stop():
            _end(number, frame)


def _end(number: int, frame: FrameType | None) -> None:
    if os.isatty(2):
        os.write(2, _SHOW_CURSOR)
    os.write(2, b"\nstopped\n")
    os._exit(INTERRUPTED)
