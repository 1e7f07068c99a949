"""What the person sees while they wait: stages with times, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout

from rich.console import Console


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
    def stage(self, name: str) -> Iterator[None]:
        """Runs a stage: a spinner on a terminal, one line when it is done.

        What the stage prints goes to stderr: stdout is for results, and the person's model code may print as well.
        """
        start = time.perf_counter()
        with self._spinner(name), redirect_stdout(sys.stderr):
            yield
        self.seconds[name] = round(time.perf_counter() - start, 3)
        self.say(f"{name:<28} {self.seconds[name]:6.1f} s")

    def say(self, text: str) -> None:
        """One line of narration."""
        if not self._quiet:
            self._console.print(text, style="dim")

    def _spinner(self, name: str) -> AbstractContextManager[object]:
        if self._quiet or not self._console.is_terminal:
            return nullcontext()
        return self._console.status(name)
