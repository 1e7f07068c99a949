"""ONNX Runtime's step: a forward graph, to which its on-device training adds the gradients and the optimizer."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import task


def prepare(args: argparse.Namespace) -> str:
    """Imports ONNX Runtime."""
    _import_training()
    import onnxruntime

    return f"onnxruntime-training {onnxruntime.__version__}"


def _import_training() -> None:
    """Stands in for the package's own __init__, which imports PyTorch for parts that are not used here."""
    runtime = find_spec("onnxruntime")
    assert runtime is not None
    assert runtime.submodule_search_locations is not None
    package = ModuleType("onnxruntime.training")
    package.__path__ = [os.path.join(runtime.submodule_search_locations[0], "training")]  # noqa: PTH118
    sys.modules["onnxruntime.training"] = package
    import onnxruntime.training.api  # noqa: F401


def load(job: task.Task, x: np.ndarray, y: np.ndarray, args: argparse.Namespace) -> Callable[[], float]:
    """Return the step of the generated artifacts."""
    import onnxruntime
    from measured import LEARNING_RATE
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    folder = job.file.with_name(f"{args.scheme}.ort")
    again = [sys.executable, __file__, str(job.file), args.scheme, str(folder)]
    done = subprocess.run(again, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        last_words = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise RuntimeError(f"making the training graph failed:\n{last_words}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = args.threads
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    model = Module(str(folder / "training_model.onnx"), state, device="cpu", session_options=options)
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), model)
    optimizer.set_learning_rate(LEARNING_RATE)
    model.train()
    inputs = x if x.dtype == np.float32 else x.astype(np.int64)
    target = y.astype(np.int64).reshape(-1)

    def step() -> float:
        loss = model(inputs, target)
        optimizer.step()
        model.lazy_reset_grad()
        return float(loss)

    return step


def generate(job: task.Task, scheme: str, folder: Path) -> None:
    """Writes the training graph, the optimizer's and the weights."""
    _import_training()
    import ort_nets
    from onnxruntime.training import artifacts

    x, y = job.data()
    weights = dict(job.weights())
    chosen = job.trained[scheme]
    folder.mkdir(exist_ok=True)
    artifacts.generate_artifacts(
        ort_nets.model(job.kind, job.sizes, weights, x, y.size),
        requires_grad=chosen,
        frozen_params=[name for name in weights if name not in set(chosen)],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )


if __name__ == "__main__":
    if len(sys.argv) == 4 and not sys.argv[2].startswith("--"):
        _, source, scheme, target = sys.argv
        generate(task.Task.read(Path(source)), scheme, Path(target))
    else:
        task.run("ort", prepare, load)
