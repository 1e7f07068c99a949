"""Trial run of carried operators, in a process of its own: files are of strangers, and kernels do not check them.

    python trial.py FOLDER ROWS BYTES

The folder holds `original.tflite`, the operators as the file has them, and `carried.tflite`, the same for the rows of a
program. What the second gives is compared with what the first gives row by row; `answer` says what was found.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from converter.support import logs
from converter.support.errors import UsageError

SAME = "same"
#: How far float results for several rows may be from those of each: kernels add up in another order.
_CLOSE = 1e-5
_SECONDS = 20
_BYTES = 1 << 30


@lru_cache(64)
def try_out(path: str, original: bytes, carried: bytes, rows: int, largest: int) -> None:
    """Run the operators of a file, and what was carried over of them.

    Args:
        path: of the file, for the message.
        original: a file of the operators that are carried, for as many rows as it was made for.
        carried: the same for the rows of the program; inputs and outputs have the same order.
        rows: how many these are.
        largest: bytes of the largest tensor.

    Raises:
        UsageError: the runtime does not run them, ends, takes too long, or gives other numbers for several rows.
    """
    with tempfile.TemporaryDirectory(prefix="pocketune-") as name:
        folder = Path(name)
        (folder / "original.tflite").write_bytes(original)
        (folder / "carried.tflite").write_bytes(carried)
        try:
            ran = subprocess.run(  # noqa: S603 (this interpreter, on a folder of our own)
                [sys.executable, "-P", __file__, name, str(rows), str(_BYTES + 8 * largest)],
                env=os.environ | logs.quiet_environment() | {"PYTHONPATH": os.pathsep.join(_import_path())},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
            found = (folder / "answer").read_text() if (folder / "answer").exists() else ""
            ended = f"ends with {ran.returncode}" if not found else ""

        except subprocess.TimeoutExpired:
            found, ended = "", f"does not come to an end in {_SECONDS} s"
    if found != SAME:
        raise UsageError(
            f"{path}: the operators in front of what trains are the file's own, and the stock runtime "
            f"{found or ended}. Train with batch=1, or cut the model before them (cut=)",
            page="tflite-files",
        )


def _import_path() -> list[str]:
    root = str(Path(__file__).resolve().parents[__name__.count(".")])
    return [root, *(entry for entry in sys.path if entry)]


def main(folder: Path, rows: int) -> str:
    """Return SAME, or what the runtime does, in words."""
    from converter.support.litert import Interpreter

    try:
        one, many = (Interpreter(str(folder / f"{name}.tflite")) for name in ("original", "carried"))
        one.allocate_tensors()
        many.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        return f"does not take them ({str(error).strip().splitlines()[-1]})"
    fed = [_numbers(details, i) for i, details in enumerate(many.get_input_details())]
    try:
        at_once = _fit(one, fed, rows)
        whole = _run(many, fed)
        parts = [_run(one, [array[i : i + at_once] for array in fed]) for i in range(0, rows, at_once)]
    except (RuntimeError, ValueError) as error:
        return f"does not run them ({str(error).strip().splitlines()[-1]})"
    for i, found in enumerate(whole):
        expected = np.concatenate([part[i] for part in parts]) if found.ndim else parts[0][i]
        if not _equal(found, expected):
            return f"gives other numbers for {rows} rows at once than for each ({many.get_output_details()[i]['name']})"
    return SAME


def _fit(runtime: Any, fed: Sequence[np.ndarray], rows: int) -> int:
    """Give the original the shapes of the program, for as many rows as it takes; return how many these are."""
    details = runtime.get_input_details()
    first = int(details[0]["shape"][0]) if len(details[0]["shape"]) else 1
    at_once = first if first > 1 and rows % first == 0 else 1
    for one, array in zip(details, fed, strict=True):
        wanted = (at_once, *array.shape[1:])
        if tuple(one["shape"]) != wanted:
            runtime.resize_tensor_input(one["index"], wanted)
    runtime.allocate_tensors()
    return at_once


def _numbers(details: Mapping[str, Any], seed: int) -> np.ndarray:
    rng, shape, dtype = np.random.default_rng(seed), tuple(details["shape"]), np.dtype(details["dtype"])
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.itemsize > 2 or dtype.kind == "b":  # places and truth values
        return np.zeros(shape, dtype)
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)


def _run(runtime: Any, fed: Sequence[np.ndarray]) -> list[np.ndarray]:
    for details, array in zip(runtime.get_input_details(), fed, strict=True):
        runtime.set_tensor(details["index"], array)
    runtime.invoke()
    return [runtime.get_tensor(details["index"]).copy() for details in runtime.get_output_details()]


def _equal(found: np.ndarray, expected: np.ndarray) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if found.dtype.kind not in "fc":
        return bool(np.array_equal(found, expected))
    size = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    return bool(np.allclose(found, expected, rtol=0, atol=_CLOSE * size, equal_nan=True))


if __name__ == "__main__":
    limit = int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = main(Path(sys.argv[1]), int(sys.argv[2]))
    (Path(sys.argv[1]) / "answer").write_text(answer)
