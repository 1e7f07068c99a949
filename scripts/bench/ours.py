"""Time and memory of a step of our program, as JSON: the counterpart of official/measure.py, in a process of its own.

    .venv/bin/python scripts/bench/ours.py FILE.tflite BATCH.npz        # one JSON object on stdout

What is measured, how, and --interactive: scripts/bench/measured.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import measured
import numpy as np


def main() -> None:
    """Parse the arguments and print the JSON; a program that fails is a result with an `error`, not a crash."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the program")
    parser.add_argument("batch", type=Path, help=".npz with x and y")
    measured.add_arguments(parser)
    args = parser.parse_args()
    facts = {"side": "ours", "runtime": f"ai-edge-litert {version('ai-edge-litert')}"}
    with measured.report(facts) as (result, say):
        measured.pin(args.threads)
        # Here for its side effect: the runtime is loaded before memory is first looked at.
        import converter.runtime  # noqa: F401

        with np.load(args.batch, allow_pickle=False) as batch:
            x, y = batch["x"], batch["y"]
        result["file_bytes"] = args.file.stat().st_size
        result |= measured.measure(lambda: _load(args.file, x, y, args.threads), args, say)


def _load(file: Path, x: np.ndarray, y: np.ndarray, threads: int) -> Callable[[], float]:
    """The step of the loaded program."""
    from converter.runtime import TrainingSession

    session = TrainingSession(file, threads=threads)
    return lambda: session.train(x, y, learning_rate=measured.LEARNING_RATE)


if __name__ == "__main__":
    main()
