"""A file and a program in the stock interpreter, and by how much a process grows that runs one of them.

python scripts/bench/tflite_files/runs.py FILE inference|step ROWS
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter


def inference(path: Path, rows: int) -> Callable[[], object]:
    """Return a run of a file for so many rows."""
    runtime = Interpreter(str(path), num_threads=1)
    (given,) = runtime.get_input_details()
    runtime.resize_tensor_input(given["index"], [rows, *given["shape"][1:]])
    runtime.allocate_tensors()
    (given,), made = runtime.get_input_details(), runtime.get_output_details()
    fed = np.zeros(given["shape"], given["dtype"])

    def call() -> list[np.ndarray]:
        runtime.set_tensor(given["index"], fed)
        runtime.invoke()
        return [runtime.get_tensor(details["index"]) for details in made]

    return _warm(call)


def step(path: Path) -> Callable[[], object]:
    """Return a training step of a program."""
    runner = Interpreter(str(path), num_threads=1).get_signature_runner("train")
    fed = {n: np.zeros(d["shape"], d["dtype"]) for n, d in runner.get_input_details().items()}
    return _warm(lambda: runner(**fed))


def _warm(call: Callable[[], object]) -> Callable[[], object]:
    for _ in range(3):
        call()
    return call


def grown(path: Path, kind: str, rows: int) -> float:
    """Return by how many MiB this process grows, at most, when a file is loaded and run."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _mebibytes("VmRSS")
    kept = inference(path, rows) if kind == "inference" else step(path)
    after = _mebibytes("VmHWM")
    del kept
    return after - before


def _mebibytes(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


if __name__ == "__main__":
    print(grown(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
