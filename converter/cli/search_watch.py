"""Progress of a search on the command line, and its end by Ctrl-C."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from converter.cli.narration import Narrator

if TYPE_CHECKING:
    from converter.tools.search.evaluator import SearchProgress


class SearchWatch:
    """Tells how far a search is.

    Attributes:
        stopped: set where the search is to end with the best so far.
    """

    def __init__(self, narrator: Narrator) -> None:
        self.stopped = threading.Event()
        self._narrator = narrator
        self._last: SearchProgress | None = None
        self._told = 0.0

    def tell(self, progress: SearchProgress) -> None:
        """Take in how far it is; says it where a stage begins, and where there is a new best scheme."""
        last, self._last, self._told = self._last, progress, time.monotonic()
        if last is None or (last.stage, last.best) != (progress.stage, progress.best):
            self._narrator.say(f"  {self.status()}")

    def status(self) -> str:
        """Return how far it is, the best so far and the time to go, in words."""
        how_far = self._last
        if how_far is None:
            return "its workers begin"
        parts = [f"{how_far.stage} {how_far.done} of {how_far.all}"]
        if how_far.best is not None:
            name, score = how_far.best
            parts.append(f"best so far {name}, {f'{score:.1%}' if score >= 0 else f'loss {-score:.3f}'}")
        if how_far.seconds_left is not None:
            left = max(how_far.seconds_left - (time.monotonic() - self._told), 0.0)
            minutes, seconds = divmod(round(left), 60)
            parts.append(f"{minutes}:{seconds:02} to go at the most")
        return "; ".join(parts)

    def stop(self) -> bool:
        """End the search with the best so far. Return whether there is one."""
        if self._last is None or self._last.best is None:
            return False
        self._narrator.say("  stopping with the best so far; Ctrl-C again ends at once")
        self.stopped.set()
        return True
