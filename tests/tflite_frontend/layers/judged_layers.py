"""Judges files of random layers: the gradient of each tensor that trains beside differences of the stock interpreter.

`python -m tests.tflite_frontend.layers.judged_layers FIRST COUNT` judges files of so many seeds, a line for each tensor
that is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import pocketune

ROWS = 2
#: Steps of the differences: of a tensor the one that agrees best counts, as float32 makes small ones rough and
#: curvature large ones.
STEPS = (1e-2, 3e-3, 1e-3)
#: How far a derivative along a random direction may be off, in lengths of the gradient.
TOLERANCE = 0.03


def written(seeds: Iterable[int], folder: Path) -> list[int]:
    """Let TensorFlow write files of some seeds; those that it can write."""
    script = Path(__file__).with_name("random_layers.py")
    wanted = [str(seed) for seed in seeds]
    settings = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, script, folder, *wanted], check=True, env=settings, capture_output=True)
    return [int(seed) for seed in wanted if folder.joinpath(f"{seed}.tflite").exists()]


def judge(path: Path) -> list[str]:
    """Return what is wrong with the gradients of a file: a line for each tensor, and the layers of the file.

    Args:
        path: of the file; what its inputs are given stands beside it, in a .npz.

    Raises:
        PocketuneError: it is refused.
    """
    data, given = path.read_bytes(), dict(np.load(path.with_suffix(".npz")))
    rng = np.random.default_rng(1)
    factors = [rng.standard_normal(y.shape[1:], np.float32) for y in _outputs(data, given)]

    def loss(y: Any) -> Any:
        outputs = [y[name] for name in sorted(y, key=_number)] if isinstance(y, dict) else [y]
        return sum((one * f).reshape(ROWS, -1).sum(1) for one, f in zip(outputs, factors, strict=True))

    def total(changed: bytes) -> float:
        return sum(float((y * f).sum()) for y, f in zip(_outputs(changed, given), factors, strict=True)) / ROWS

    program = pocketune.build(str(path), loss=loss, optimizer="sgd", batch=ROWS, check=False)
    with pocketune.TrainingSession(program.data) as session:
        before = session.parameters()
        session.train({f"x_{_number(name)}": array for name, array in given.items()}, learning_rate=1.0)
        after = session.parameters()
    found = []
    for name, array in before.items():
        if (place := _place(data, array)) is None:
            continue
        begin, stored, order = place
        gradient = (array - after[name]).reshape(-1)[order].astype(np.float64)
        direction = rng.standard_normal(stored.shape)
        slope = float((gradient * direction).sum())

        def moved(step: float, begin: int = begin, stored: Any = stored, direction: Any = direction) -> bytes:
            other = (stored + step * direction).astype(np.float32).tobytes()
            return data[:begin] + other + data[begin + len(other) :]

        slopes = [(total(moved(step)) - total(moved(-step))) / (2 * step) for step in STEPS]
        if min(abs(s - slope) for s in slopes) > TOLERANCE * (np.linalg.norm(gradient) + 1e-2):
            found.append(f"{name}: {slope:.5g}, differences {slopes}")
    return [*found, path.with_suffix(".txt").read_text()] if found else []


def _number(name: str) -> int:
    """Return the number in a name, 0 where it has none."""
    return int("".join(c for c in name.partition(":")[0] if c.isdigit()) or 0)


def _outputs(data: bytes, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what the stock interpreter says, by its own kernels."""
    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=data, num_threads=1, experimental_op_resolver_type=resolver)
    interpreter.allocate_tensors()
    for spec in interpreter.get_input_details():
        interpreter.set_tensor(spec["index"], given[f"x{_number(spec['name'])}"])
    interpreter.invoke()
    return [interpreter.get_tensor(spec["index"]).astype(np.float64) for spec in interpreter.get_output_details()]


def _place(data: bytes, array: np.ndarray) -> tuple[int, np.ndarray, np.ndarray] | None:
    """Return where a file holds the numbers of an array, these in its order, and which of the array each is.

    None where several tensors hold them, or they are zeros, as the biases that the converter adds.
    """
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    numbers = np.sort(array, axis=None)
    held = [bytes(b.data) for b in model.buffers if b.data is not None and len(b.data) == array.nbytes]
    alike = [one for one in held if np.array_equal(np.sort(np.frombuffer(one, np.float32)), numbers)]
    if not array.any() or len(alike) != 1 or data.count(alike[0]) != 1:
        return None
    stored = np.frombuffer(alike[0], np.float32).astype(np.float64)
    order = np.empty(stored.size, int)
    order[np.argsort(stored, kind="stable")] = np.argsort(array, axis=None, kind="stable")
    return data.find(alike[0]), stored, order


def main(first: int, count: int) -> None:
    """Print what is wrong with the files of some seeds."""
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            if written([seed], Path(folder)):
                for line in judge(Path(folder, f"{seed}.tflite")):
                    print(seed, line, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
