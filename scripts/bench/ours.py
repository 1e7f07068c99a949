"""Our side: builds a workload's program; as a program, measures its step, as JSON, in a process of its own.

    .venv/bin/python scripts/bench/ours.py FILE.tflite BATCH.npz        # one JSON object on stdout

What is measured, how, and --interactive: scripts/bench/measured.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measured
import numpy as np

from scripts.arguments import existing

if TYPE_CHECKING:
    from workloads import Workload


def main() -> None:
    """Parse the arguments and print the JSON; a program that fails is a result with an `error`, not a crash."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=existing, help="the program")
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
    """Return the step of the loaded program; packed weights are in a file, as they would be on a device.

    Not with several threads: sessions with a cache compute on one what XNNPACK does not take.
    """
    from converter.runtime import TrainingSession

    session = TrainingSession(file, threads=threads, weight_cache=None if threads > 1 else file.parent / "packed")
    if "features" not in session.manifest.signatures:
        return lambda: float(session.train(x, y, learning_rate=measured.LEARNING_RATE))
    # One step of `fit` in an epoch after the first; `fit` itself tells the time of whole epochs only.
    signature = session.manifest.step_on_features
    examples = session._examples(signature, session.features(x), y)
    return lambda: session._step(examples, measured.LEARNING_RATE, signature)


def built(
    net: Workload,
    scheme: str,
    file: Path,
    target: str,
    micro_batch: int | None = None,
    frozen: str | None = None,
    cached: bool = False,
    memory_budget: str | None = None,
) -> dict[str, Any]:
    """Writes the program of a workload that offers nothing but its step, and tells what was built.

    `cached`: the step is on what the frozen first layers gave, where there are some.
    """
    import time

    import optax

    import converter

    signatures = ("train", "features") if cached and scheme != "full" else ("train",)
    options: dict[str, Any] = {"target": target, "signatures": signatures, "check": False}
    options |= {"micro_batch": micro_batch, "memory_budget": memory_budget}
    if frozen is not None and scheme != "full":  # nothing is frozen there
        options |= {"frozen": frozen, "calibration": net.x}
    options |= {"optimizer": optax.sgd(1.0), "update": net.updates[scheme], "batch": net.batch}
    start = time.perf_counter()
    program = converter.build(net.model, net.loss, **options)
    program.write(file)
    return {"build_s": round(time.perf_counter() - start, 2), "costs": program.costs}


def model_flops(net: Workload, scheme: str, target: str, micro_batch: int | None = None) -> int:
    """Of a step in float32 with every convolution as the model has it, by which rates are told."""
    import optax

    from converter.backend.targets import target as find
    from converter.driver.build import plan
    from converter.driver.options import Options
    from converter.program.origins import PHASES

    options: dict[str, Any] = {"target": find(target).storing_once(), "signatures": ("train",)}
    options |= {"optimizer": optax.sgd(1.0), "update": net.updates[scheme], "batch": net.batch}
    costs = plan(net.model, Options(loss=net.loss, micro_batch=micro_batch, **options)).costs
    return sum(costs[f"flops_{phase}"] for phase in PHASES)


if __name__ == "__main__":
    main()
