"""How often a step falls into the interval that `converter estimate` gives for it: on this machine, by its CPU time.

    .venv/bin/python scripts/bench/estimates.py
    .venv/bin/python scripts/bench/estimates.py digits-cnn lenet --schemes full head --table mine.toml

The models are built-in examples; one thread, synthetic data, the median step.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np

import converter
from converter.program.file import read_program
from converter.program.synthetic import synthetic_inputs, synthetic_targets
from converter.runtime import TrainingSession
from converter.tools.estimate import estimate
from examples import EXAMPLES

MODELS = ("digits-cnn", "lenet", "flax-cnn", "encoder", "mobilenetv2", "llama")


def seconds(program: bytes, steps: int) -> float:
    """CPU time of a step, the median of several."""
    manifest, rng = read_program(program).manifest, np.random.default_rng(0)
    x = synthetic_inputs(manifest.signatures["train"], rng)
    y = {name.removeprefix("y/"): array for name, array in synthetic_targets(manifest, rng).items()}
    times = []
    with TrainingSession(program) as session:
        for _ in range(steps):
            start = time.process_time()
            session.train(_alone(x), _alone(y), 1e-3)
            times.append(time.process_time() - start)
    return median(times[2:])


def _alone(arrays: dict[str, np.ndarray]) -> object:
    """Return an only array itself."""
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def main() -> None:
    """Measures, and prints a line for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--schemes", nargs="+", default=["full", "sparse", "head"])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--table", default="litert-2/x86-64")
    arguments = parser.parse_args()
    print("model, trains: interval in ms, measured, measured / table")
    inside = []
    for name in arguments.models:
        example = EXAMPLES[name]
        options = {"loss": example.loss, "target": arguments.table, "signatures": ("train",)}
        model = example.build()
        for row in estimate(model, "x86-64", arguments.schemes, **options).rows:
            program = converter.build(model, update=row.scheme, check=False, **options)
            found = seconds(program.data, arguments.steps)
            print(
                f"{name}, {row.scheme}: {row.step.low * 1e3:.3g} to {row.step.high * 1e3:.3g}, {found * 1e3:.3g}, "
                f"{found / row.costs['step_cost'] * 1e9:.2f}",
                flush=True,
            )
            inside.append(found in row.step)
    print(f"{sum(inside)} of {len(inside)} inside")


if __name__ == "__main__":
    main()
