"""Trains one side of a task in a process of its own: `worker.py FOLDER SIDE RATE...`, one JSON object on stdout.

FOLDER holds `rows.npz`, `task.json` (batch, epochs, choices, compared) and the side's program. Rates are compared by
the validation rows with the first choices of samples; with the best each choice is learned, and judged by the held-out
rows. Clocks stand still while the net is judged. `worker.py FOLDER SIDE --losses RATE` gives the losses of the first
steps alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Before anything that counts cores is imported: one core, one thread.
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
for _pool in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
    os.environ[_pool] = "1"
# Each side has its own framework in memory and no other.
os.environ |= {"KERAS_BACKEND": "torch" if sys.argv[2] == "torch" else "tensorflow"}
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

import numpy as np  # noqa: E402
from arrivals import mean_curve  # noqa: E402
from sides import Side, opened  # noqa: E402


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


def curve(side: Side, rows: Any, judged: Any, rate: float, epochs: int) -> list[dict[str, float]]:
    """Train from the first weights on, and return accuracy, CPU and wall seconds wherever the net was judged."""
    found: list[dict[str, float]] = []
    side.begin()
    clock = Clock()

    def judge() -> None:
        cpu, wall = clock.read()
        found.append({"accuracy": side.right(*judged), "cpu_s": cpu, "wall_s": wall})
        clock.leave_out((cpu, wall))

    side.train(*rows, rate, epochs, judge)
    return found


#: A training that takes less CPU time than this is repeated so many times: its time is the mean of all.
_QUICK_S, _AGAIN = 0.05, 9


def steady_curve(side: Side, rows: Any, judged: Any, rate: float, epochs: int) -> list[dict[str, float]]:
    """Return the curve of a training; of a quick one, whose time varies with how warm caches are, of several."""
    curves = [curve(side, rows, judged, rate, epochs)]
    if curves[0][-1]["cpu_s"] < _QUICK_S:
        curves += [curve(side, rows, judged, rate, epochs) for _ in range(_AGAIN)]
    return mean_curve(curves)


def peak_bytes() -> int:
    """Return the most that was resident of this process: what it began with as a copy of another's does not count."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


#: Steps whose losses are compared between the sides.
_COMPARED_STEPS = 3


def main() -> None:
    """Train, and print what was found."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    task = json.loads((folder / "task.json").read_text())
    rows = np.load(folder / "rows.npz")
    if sys.argv[3] == "--losses":
        side = opened(name, folder, task["batch"])
        print(json.dumps(side.losses(rows["sample_0/x"], rows["sample_0/y"], float(sys.argv[4]), _COMPARED_STEPS)))
    else:
        print(json.dumps(measured(name, folder, [float(rate) for rate in sys.argv[3:]], task, rows)))


def measured(name: str, folder: Path, rates: list[float], task: dict[str, int], rows: Any) -> dict[str, Any]:
    """Return a side's rate, of those given, the accuracy it had with each, its curves and its memory."""

    def of(part: str) -> tuple[np.ndarray, np.ndarray]:
        return rows[f"{part}/x"], rows[f"{part}/y"]

    side, epochs = opened(name, folder, task["batch"]), task["epochs"]
    # The program is open: TensorFlow has traced its graph, LiteRT has prepared its signatures.
    side.begin()
    side.train(*of("sample_0"), rates[0], 1, lambda: None)
    tried = {}
    for rate in rates if len(rates) > 1 else ():
        found = [curve(side, of(f"sample_{n}"), of("validation"), rate, epochs) for n in range(task["compared"])]
        tried[rate] = float(np.mean([each["accuracy"] for one in found for each in one[-3:]]))
    rate = max(tried, key=tried.__getitem__) if tried else rates[0]
    curves = [steady_curve(side, of(f"sample_{n}"), of("held_out"), rate, epochs) for n in range(task["choices"])]
    return {"side": name, "rate": rate, "rates": tried, "peak_bytes": peak_bytes(), "curves": curves}


if __name__ == "__main__":
    main()
