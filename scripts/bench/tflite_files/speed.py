"""What a fresh head on a file costs, beside plain inference of the file: time of a step, and memory.

    .venv/bin/python scripts/bench/tflite_files/speed.py                 # the quantised files of the list
    .venv/bin/python scripts/bench/tflite_files/speed.py FILE... --rows 8

A step of `update="head"` is called in the stock interpreter, in turns with the file itself for the same rows, one
thread each, inputs and results copied. Memory is how much a process of its own grows by loading either and running it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from packages import HERE, listed
from runs import inference, step

import pocketune
from converter.frontends import tflite as tflite_frontend
from scripts.arguments import existing

CLASSES = 5


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=existing)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    print("| file | rows | inference ms | step ms | times | inference MiB | step MiB | times |")
    print("|---|---|---|---|---|---|---|---|")
    for path in args.files or [file.fetched() for file in listed() if "silabs" in file.package]:
        for rows in args.rows:
            print(row(path, rows, args.rounds), flush=True)


def row(path: Path, rows: int, rounds: int) -> str:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.tflite"
        model = tflite_frontend.Model(path, classes=CLASSES)
        built = pocketune.build(model, update="head", optimizer="sgd", batch=rows, signatures=("train",), check=False)
        built.write(program)
        calls = inference(path, rows), step(program)
        times: list[list[float]] = [[], []]
        for _ in range(rounds):
            for found, call in zip(times, calls, strict=True):
                start = time.perf_counter()
                call()
                found.append(1e3 * (time.perf_counter() - start))
        before, after = (statistics.median(found) for found in times)
        memory = [measured(file, kind, rows) for file, kind in ((path, "inference"), (program, "step"))]
    shares = after / before, memory[1] / memory[0]
    return (
        f"| {path.name} | {rows} | {before:.2f} | {after:.2f} | {shares[0]:.2f} | {memory[0]:.1f} | {memory[1]:.1f} "
        f"| {shares[1]:.2f} |"
    )


def measured(path: Path, kind: str, rows: int) -> float:
    """Return by how many MiB a process of its own grows; the median of five."""
    command = [sys.executable, str(HERE / "runs.py"), str(path), kind, str(rows)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    return statistics.median(float(subprocess.check_output(command, env=environment, text=True)) for _ in range(5))


if __name__ == "__main__":
    main()
