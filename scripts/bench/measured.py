"""How a training step is measured: the same code in the process of every side.

It needs NumPy alone, because it runs in the environment of each side. The result:
    threads, cpus, warmup_losses, losses (of the timed steps),
    ms {median, p10, p90, all}, cpu_ms {the same, CPU time of the process: what a busy machine does not blur},
    memory {before, loaded, step, growth = step - before: each {anon, file}; peak_growth} in bytes; `before` is the
    process with its runtime imported and its data made, no program loaded; `step` the most that was resident in the
    steps after the timed ones, while a thread looked on; `peak_growth` counts loading and warming up, too. Anonymous
    memory is lost to everyone else; pages of a file the system can drop and read again.
    error (text or null)

With --interactive: after load and warm-up it prints {"ready": true, "losses": [...]}; for each line "N" on stdin it
runs N steps and prints {"ms": [...], "cpu_ms": [...]}; when stdin ends it prints the result over all those steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: Small enough for full training of every workload to stay where small differences stay small.
LEARNING_RATE = 0.001
#: Steps that only memory is looked at in.
_WATCHED_STEPS = 2

Say = Callable[[dict[str, Any]], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `measure` reads."""
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="threads, and CPUs the process is pinned to")
    parser.add_argument("--interactive", action="store_true", help="take the number of steps to run from stdin")


def pin(threads: int) -> None:
    """Bind this process to its last `threads` CPUs. To be called before the runtime is imported.

    The thread count of an interpreter also reaches Flex's intra-op pool, but TensorFlow's other pools only obey the
    affinity mask and the environment.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    for pool in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ[pool] = str(threads)


@contextlib.contextmanager
def report(facts: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Say]]:
    """A result to fill and a `say` that alone writes to stdout; at the end the result is said, with what went wrong.

    The runtimes' own prints, from C++ too, go to stderr.
    """
    result = {**facts, "error": None}
    real = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(real, "w") as out:

        def say(message: dict[str, Any]) -> None:
            print(json.dumps(message), file=out, flush=True)

        try:
            yield result, say
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
        say(result)


def measure(load: Callable[[], Callable[[], float]], args: argparse.Namespace, say: Say) -> dict[str, Any]:
    """Load a program, warm it up, time its steps.

    Args:
        load: loads the program and returns its step, which returns the loss.
        args: the options of `add_arguments`.
        say: prints a line of the interactive protocol.
    """
    _forget_peak()
    before, peak_before = resident(), _status("VmRSS")
    step = load()
    loaded = resident()
    warmup_losses = [step() for _ in range(args.warmup)]
    ms: list[float] = []
    cpu_ms: list[float] = []
    losses: list[float] = []

    def run(count: int) -> None:
        for _ in range(count):
            wall, busy = time.perf_counter(), time.process_time()
            loss = step()
            cpu_ms.append((time.process_time() - busy) * 1e3)
            ms.append((time.perf_counter() - wall) * 1e3)
            losses.append(loss)

    if args.interactive:
        say({"ready": True, "losses": warmup_losses})
        for line in sys.stdin:
            count = int(line)
            run(count)
            say({"ms": ms[-count:], "cpu_ms": cpu_ms[-count:]})
    else:
        run(args.steps)
    peak = _status("VmHWM")
    highest = _watched(step)
    return {
        "threads": args.threads,
        "cpus": sorted(os.sched_getaffinity(0)),
        "warmup_losses": warmup_losses,
        "losses": losses,
        "ms": spread(ms),
        "cpu_ms": spread(cpu_ms),
        "memory": {
            "before": before,
            "loaded": loaded,
            "step": highest,
            "growth": {kind: highest[kind] - before[kind] for kind in before},
            "peak_growth": peak - peak_before,
        },
    }


@contextlib.contextmanager
def growth() -> Iterator[Callable[[], int]]:
    """Gives, once it is left, by how many bytes this process grew inside at the most."""
    _forget_peak()
    before, peaks = _status("VmRSS"), list[int]()
    yield lambda: peaks[0] - before
    peaks.append(_status("VmHWM"))


def resident() -> dict[str, int]:
    """Resident memory of this process in bytes: anonymous (with shared memory of no file), and pages of files."""
    return {"anon": _status("RssAnon") + _status("RssShmem"), "file": _status("RssFile")}


def _watched(step: Callable[[], float]) -> dict[str, int]:
    """Return the highest `resident` during some steps: what a framework gives back between steps counts as well."""
    seen = [resident()]
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            seen.append(resident())

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(_WATCHED_STEPS):
        step()
    done.set()
    looking.join()
    return {kind: max(moment[kind] for moment in seen) for kind in seen[0]}


def spread(samples: list[float]) -> dict[str, Any]:
    """Median, 10th and 90th percentile, and the samples; nothing but nulls without samples."""
    if not samples:
        return {"median": None, "p10": None, "p90": None, "all": []}
    p10, median, p90 = (round(float(p), 3) for p in np.percentile(samples, [10, 50, 90]))
    return {"median": median, "p10": p10, "p90": p90, "all": [round(s, 3) for s in samples]}


def _status(field: str) -> int:
    """Return a memory figure of this process in bytes, from /proc."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {field}: memory can only be measured on Linux")
    return int(found[1]) * 1024


def _forget_peak() -> None:
    """Start VmHWM anew, so that importing a framework does not count as the peak of training."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
