"""Trains one side of a task in a process of its own, as it is asked: `worker.py FOLDER SIDE`.

FOLDER holds `rows.npz`, `task.json` (batch, epochs) and the side's program. It opens the side, then answers each line
of stdin, a JSON array of a method of `Learner` and its arguments, by a line of JSON on stdout, until stdin ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from math import ceil
from pathlib import Path

import one_core  # noqa: F401  before all that counts cores

# Each side has its own framework in memory and no other.
os.environ |= {"KERAS_BACKEND": "torch" if sys.argv[2] == "torch" else "tensorflow"}
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

import numpy as np
from arrivals import middle_curve
from sides import opened


class Clock:
    """CPU and wall time but for what is judged."""

    def __init__(self) -> None:
        self._begun, self._left_out = self._now(), (0.0, 0.0)

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        """Return seconds of CPU and of the wall since it was begun, without what was left out."""
        now = self._now()
        return tuple(n - b - left for n, b, left in zip(now, self._begun, self._left_out, strict=True))  # type: ignore[return-value]

    def leave_out(self, since: tuple[float, float]) -> None:
        """Leave out what has passed since it stood at `since`."""
        now = self.read()
        self._left_out = tuple(a + n - s for a, n, s in zip(self._left_out, now, since, strict=True))  # type: ignore[assignment]


#: A training of less CPU time than this is repeated for so many seconds of it, so many times at most.
_QUICK_S, _REPEATED_S, _MOST = 0.2, 1.0, 20
#: Steps whose losses are compared between the sides.
_COMPARED_STEPS = 3


class Learner:
    """A side of a task that is open: TensorFlow has traced its graph, LiteRT has prepared its signatures."""

    def __init__(self, folder: Path, name: str) -> None:
        task = json.loads((folder / "task.json").read_text())
        self._rows, self._epochs = np.load(folder / "rows.npz"), task["epochs"]
        self._read: dict[str, np.ndarray] = {}
        self._side = opened(name, folder, task["batch"], bool((self._rows["sample_0/y"] < 0).any()))

    def _of(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        for name in (f"{part}/x", f"{part}/y"):
            if name not in self._read:
                self._read[name] = self._rows[name]
        return self._read[f"{part}/x"], self._read[f"{part}/y"]

    def peak_bytes(self, rate: float) -> int:
        """Return the most memory that an epoch of the first samples takes, the samples and the process included.

        To be asked first: no net has been judged then, whose rows would count.
        """
        self._side.begin()
        self._side.train(*self._of("sample_0"), rate, 1, lambda: None)
        # What the process began with as a copy of another's does not count.
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status["VmHWM"].split()[0]) * 1024

    def losses(self, rate: float) -> list[float]:
        """Return the losses of the first steps."""
        self._side.begin()
        return self._side.losses(*self._of("sample_0"), rate, _COMPARED_STEPS)

    def curve(self, sample: int, rate: float, judged: str) -> list[dict[str, float]]:
        """Train from the first weights on, and return accuracy, CPU and wall seconds wherever the net was judged."""
        rows, judging = self._of(f"sample_{sample}"), self._of(judged)
        found: list[dict[str, float]] = []
        self._side.begin()
        clock = Clock()

        def judge() -> None:
            cpu, wall = clock.read()
            found.append({"accuracy": self._side.right(*judging), "cpu_s": cpu, "wall_s": wall})
            clock.leave_out((cpu, wall))

        self._side.train(*rows, rate, self._epochs, judge)
        return found

    def steady_curve(self, sample: int, rate: float, judged: str) -> list[dict[str, float]]:
        """Return the curve of a training; of a quick one, whose time varies with how warm caches are, of several.

        Its times are medians: what else the machine does for a moment is not in them.
        """
        curves = [self.curve(sample, rate, judged)]
        if (taken := curves[0][-1]["cpu_s"]) < _QUICK_S:
            curves += [self.curve(sample, rate, judged) for _ in range(min(ceil(_REPEATED_S / taken), _MOST) - 1)]
        return middle_curve(curves, np.median)


def main() -> None:
    """Answer what is asked."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints is no answer
    learner = Learner(Path(sys.argv[1]), sys.argv[2])
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(learner, method)(*arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
