"""Time limit of a search: when it tries nothing new, and when it judges nothing more."""

from __future__ import annotations

import threading
import time

#: The share of the time after which nothing new is tried: in the rest what was found is judged on other rows.
_SELECTING = 0.7


class TimeLimit:
    """How long a search may take."""

    def __init__(self, seconds: float | None = None, stop: threading.Event | None = None) -> None:
        """Begins to count.

        Args:
            seconds: that it may take; None: until nothing is left to try.
            stop: ends it at once, with what is known, where it is set.
        """
        self._seconds, self._start, self._stop = seconds, time.monotonic(), stop or threading.Event()
        self._judged_from: float | None = None

    def judge(self) -> None:
        """From here on what was found is judged, in the time that was kept for that."""
        self._judged_from = time.monotonic()

    @property
    def seconds_left(self) -> float | None:
        """Of the whole search; None where there is no limit."""
        return None if self._seconds is None else max(self._end(1.0) - time.monotonic(), 0.0)

    def is_over(self) -> bool:
        """Return whether nothing more is to begin: of what is tried, or after `judge` of what is judged."""
        if self._stop.is_set() or self._seconds is None:
            return self._stop.is_set()
        return time.monotonic() >= self._end(_SELECTING if self._judged_from is None else 1.0)

    def _end(self, share: float) -> float:
        """Return when so much of the time is over; what is judged has its own, however late that begins."""
        assert self._seconds is not None
        if self._judged_from is None:
            return self._start + share * self._seconds
        return self._judged_from + (share - _SELECTING) * self._seconds
