"""What a net in NCHW costs against the same one in NHWC: operators, TRANSPOSEs, arena and step, as ratios.

    .venv/bin/python scripts/bench/layouts                                          # on litert-2; 10 minutes
    .venv/bin/python scripts/bench/layouts --targets gpu hexagon web --sizes 64
    .venv/bin/python scripts/bench/layouts --nets ConvNeXt --timed 10               # and steps that are run, in turns

It needs PyTorch and torchvision (scripts/torch/install PYTHON nets).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
sys.path.insert(0, str(Path(__file__).parents[3]))  # the nets are those of the tests

import numpy as np
from nets import CLASSES, PAIRS
from rich.console import Console
from rich.table import Table

import converter


def main() -> None:
    """Builds the pairs and prints the table."""
    args = _arguments()
    table = Table("net", "update", "target", "operators", "TRANSPOSE", "arena", "step", "CPU s of the build")
    if args.timed:
        table.add_column("step, run")
    for name in (name for name in PAIRS if any(part in name for part in args.nets)):
        for size in args.sizes:
            for update in args.updates:
                for target in args.targets:
                    table.add_row(f"{name}, {size}", update, target, *_row(name, size, update, target, args))
    Console(width=160).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=[""], help="those whose name contains one of these")
    parser.add_argument("--sizes", nargs="+", type=int, default=[224], help="height and width of the pictures")
    parser.add_argument("--updates", nargs="+", default=["full"])
    parser.add_argument("--targets", nargs="+", default=["litert-2"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--timed", type=int, default=0, help="how many steps are run of each, in turns")
    return parser.parse_args()


def _row(name: str, size: int, update: str, target: str, args: argparse.Namespace) -> Iterator[str]:
    """Yield the cells of a pair: NCHW, NHWC and their ratio."""
    made = []
    for make in PAIRS[name]:
        start = time.process_time()
        program = converter.build(
            make(size),
            loss="sparse_categorical_crossentropy",
            optimizer="sgd",
            update=update,
            batch=args.batch,
            target=target,
            check=False,
        )
        made.append((program, time.process_time() - start))
    (first, cpu_first), (last, cpu_last) = made
    step = next(iter(first.signatures))  # forward and backward; of a split step without the update
    assert first.costs["trained_parameters"] == last.costs["trained_parameters"], "they train different weights"
    yield _ratio(*(len(program.signatures[step].nodes) for program in (first, last)))
    yield " ".join(str(_transposes(program, step)) for program in (first, last))
    yield _ratio(first.costs["arena_bytes"], last.costs["arena_bytes"])
    yield _ratio(first.costs["step_cost"], last.costs["step_cost"])
    yield f"{cpu_first:.1f} {cpu_last:.1f}"
    if args.timed:
        yield _ratio(*_steps(first, last, size, args))


def _transposes(program: converter.Program, step: str) -> int:
    return sum(node.op.name == "Transpose" for node in program.signatures[step].nodes)


def _steps(first: converter.Program, last: converter.Program, size: int, args: argparse.Namespace) -> list[float]:
    """Return the milliseconds of CPU time of a step of each, the median of steps in turns."""
    rng, times = np.random.default_rng(0), [list[float](), list[float]()]
    x = rng.standard_normal((args.batch, size, size, 3)).astype(np.float32)
    y = rng.integers(0, CLASSES, args.batch)
    feeds: list[Any] = [np.ascontiguousarray(x.transpose(0, 3, 1, 2)), x]
    sessions = [converter.runtime.TrainingSession(program.data) for program in (first, last)]
    for _ in range(args.timed + 1):  # the first one warms up
        for session, feed, taken in zip(sessions, feeds, times, strict=True):
            start = time.process_time()
            session.train(feed, y, 1e-6)
            taken.append(1e3 * (time.process_time() - start))
    return [statistics.median(taken[1:]) for taken in times]


def _ratio(first: float, last: float) -> str:
    return f"{first:.6g} / {last:.6g} = {first / last:.3f}"


if __name__ == "__main__":
    main()
