"""Interleaved timing of steps on this machine: what slows it at times slows all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

#: The scheme that each other one is measured in turns with.
REFERENCE = "head"
#: Turns are not measured at first, then at least and at most so many are, and none begins after so many seconds.
_UNMEASURED, _FEWEST, _MOST, _SECONDS = 3, 12, 200, 2.0


def in_turns(*steps: Callable[[], object]) -> list[float]:
    """Return nanoseconds of CPU time that each of some functions takes, the medians over turns."""
    taken: list[list[int]] = [[] for _ in steps]
    end = time.perf_counter() + _SECONDS
    for turn in range(_UNMEASURED + _MOST):
        if turn >= _UNMEASURED + _FEWEST and time.perf_counter() > end:
            break
        for step, times in zip(steps, taken, strict=True):
            start = time.process_time_ns()
            step()
            times.append(time.process_time_ns() - start)
    return [float(median(times[_UNMEASURED:])) for times in taken]
