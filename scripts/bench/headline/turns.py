"""Has the sides of a task take turns: what is divided by one another was measured within the same minutes.

A machine that others use too is a quarter quicker in one hour than in another. Measured one side after the other, the
same two sides give a ratio that is a quarter larger on another day. Choice by choice, with memory kept
(`KEPT_MEMORY`), two runs of seven tasks differed by 5% at most, but for Keras' own 26% in one of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from arrivals import middle_curve

HERE = Path(__file__).parent
#: glibc keeps what is freed, of blocks up to the largest that it may keep: giving pages back and taking them anew cost
#: Keras' `fit` of photographs anything between 0.1 and 8 s of 32, by how a process' memory happened to lie.
KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": f"{2**33}", "MALLOC_MMAP_THRESHOLD_": f"{2**25}"}

Curve = list[dict[str, float]]


class Worker:
    """A side that is open in a process of its own, which waits for its turn."""

    def __init__(self, side: str, folder: Path) -> None:
        command = [sys.executable, HERE / "worker.py", folder, side]
        self.side = side
        kept = os.environ | KEPT_MEMORY
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=kept)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what a method of `worker.Learner` returns.

        Raises:
            ChildProcessError: the process ended instead; what it said is on stderr.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended
            print(json.dumps([method, *arguments]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise ChildProcessError(f"the process of {self.side} ended with {self._process.wait()}")
        return json.loads(answer)


def measured(
    rates: Mapping[str, Sequence[float]],
    trained_alike: Mapping[str, float],
    folder: Path,
    *,
    compared: int,
    choices: int,
    rounds: int,
) -> Iterator[list[dict[str, Any]]]:
    """Yield what has come of the sides after each turn of all: a curve for each choice of samples, full's first.

    Args:
        rates: which learning rates each side is tried with; one alone is taken.
        trained_alike: sides whose first losses must be the same, each with the learning rate of these steps. A low
            one: a high one magnifies rounding.
        folder: what `worker.py` takes.
        compared: with how many choices of samples rates are compared.
        choices: of samples.
        rounds: how often each choice is learned: its curve is the mean.

    Raises:
        ArithmeticError: losses differ by more than 1e-3: it is not the same training.
    """
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(side, folder)) for side in rates]
        sides = []
        for worker in workers:
            sides.append({"side": worker.side, "peak_bytes": worker.ask("peak_bytes", rates[worker.side][0])})
        _compare(workers, trained_alike, sides)
        for worker, side in zip(workers, sides, strict=True):
            side |= _chosen(worker, rates[worker.side], compared)
        curves: dict[str, list[list[Curve]]] = {worker.side: [[] for _ in range(choices)] for worker in workers}
        for turn in range(rounds * choices):
            for worker, side in zip(workers, sides, strict=True):
                found = worker.ask("steady_curve", turn % choices, side["rate"], "held_out")
                curves[worker.side][turn % choices].append(found)
            yield [{**side, "curves": [middle_curve(each) for each in curves[side["side"]] if each]} for side in sides]


def _compare(workers: list[Worker], rates: Mapping[str, float], sides: list[dict[str, Any]]) -> None:
    losses = {each.side: each.ask("losses", rates[each.side]) for each in workers if each.side in rates}
    for side in sides:
        if (found := losses.get(side["side"])) is not None:
            if not np.allclose(found, losses["full"], rtol=1e-3, atol=1e-3):
                raise ArithmeticError(f"first losses of {side['side']}, {found}, are not full's, {losses['full']}")
            side["losses"] = found


def _chosen(worker: Worker, rates: Sequence[float], compared: int) -> dict[str, Any]:
    """Return the rate by which a side finds most validation rows in the end, and what it finds by each."""
    tried = {}
    for rate in rates if len(rates) > 1 else ():
        curves = [worker.ask("curve", sample, rate, "validation") for sample in range(compared)]
        tried[rate] = float(np.mean([point["accuracy"] for curve in curves for point in curve[-3:]]))
    return {"rate": max(tried, key=tried.__getitem__) if tried else rates[0], "rates": tried}
