"""Progress messages on stderr: stages with times."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout

from rich.console import Console

from converter.support.errors import PocketuneError

#: Seconds after which a stage says that it still runs.
EVERY = 20.0


class Narrator:
    """Names each stage as it runs and says how long it took.

    Attributes:
        seconds: time of each finished stage by name.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self._quiet = quiet
        self._console = Console(stderr=True, markup=False, highlight=False)

    @contextmanager
    def stage(self, name: str, status: Callable[[], str] = lambda: "") -> Iterator[None]:
        """Runs a stage: a spinner on a terminal, one line when it is done.

        What the stage prints goes to stderr: stdout is for results, and the user's model code may print as well.

        Args:
            name: of the stage.
            status: says how far it is, while it runs.
        """
        start = time.perf_counter()
        loud = _without_logs() if self._quiet else self._spinner(name)
        with loud, redirect_stdout(sys.stderr), self._heard(name, status):
            yield
        self.seconds[name] = round(time.perf_counter() - start, 3)
        self.say(f"{name:<28} {self.seconds[name]:6.1f} s")

    @contextmanager
    def _heard(self, name: str, status: Callable[[], str]) -> Iterator[None]:
        """Says every so often that a stage still runs, on a terminal or not."""
        done, start = threading.Event(), time.perf_counter()

        def speak() -> None:
            while not done.wait(EVERY):
                how_far = status()
                self.say(f"still at it: {name}, {time.perf_counter() - start:.0f} s{how_far and f': {how_far}'}")

        thread = threading.Thread(target=speak, daemon=True)
        if not self._quiet:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if thread.is_alive():
                thread.join()

    def say(self, text: str) -> None:
        """Print one line of narration."""
        if not self._quiet:
            self._console.print(text, style="dim", soft_wrap=True)

    def _spinner(self, name: str) -> AbstractContextManager[object]:
        if not self._console.is_terminal:
            return nullcontext()
        return self._console.status(name)


@contextmanager
def _without_logs() -> Iterator[None]:
    """Keeps back what libraries of C++ log to the descriptor of stderr; it is shown where a bug may be in it.

    What Python prints to stderr goes there as ever: it is the user's own, or a warning of ours.
    """
    if sys.stderr is not sys.__stderr__ or sys.stderr is None:  # somebody catches it already
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log, open(kept, "w", buffering=1, closefd=False) as ours:
        os.dup2(log.fileno(), 2)
        try:
            with redirect_stderr(ours):
                yield
        except Exception as error:
            if not isinstance(error, PocketuneError):
                log.seek(0)
                ours.write(log.read().decode(errors="replace"))
            raise
        finally:
            ours.flush()
            os.dup2(kept, 2)
            os.close(kept)
