"""Trial run of carried operators, in a separate process: files are untrusted, and kernels do not check them.

    python trial.py FOLDER

The folder holds `original.tflite`, operators as the file has them, and `asked`: for the shapes of what they give, or
whether `carried.tflite`, the same for the rows of a program, gives what they give row by row. `answer` says it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
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
#: Seconds of CPU that running the operators may take, and by the clock so many times as many.
_SECONDS, _CLOCK = 16, 2
#: Bytes that it may take, and so many times those of the files: kernels keep weights as they want them.
_BYTES, _TIMES = 3 << 28, 2


@lru_cache(64)
def try_out(path: str, original: bytes, carried: bytes, rows: int) -> None:
    """Run the operators of a file, and what was carried over of them.

    Args:
        path: of the file, for the message.
        original: a file of the operators that are carried, for as many rows as it was made for.
        carried: the same for the rows of the program; inputs and outputs have the same order.
        rows: how many these are.

    Raises:
        UsageError: the runtime does not run them, ends, takes too long, or gives other numbers for several rows.
    """
    found = _in_child({"original": original, "carried": carried}, {"rows": rows}, _SECONDS)
    if found != SAME:
        raise UsageError(
            f"{path}: the operators before the first trained layer are the file's own, and the stock runtime {found}. "
            "Train with batch=1 or micro_batch=1, or cut the model before them (cut=)",
            page="tflite-files",
        )


def shapes_of(original: bytes, fed: Sequence[Sequence[int]], seconds: int) -> list[tuple[int, ...]] | str:
    """Return the shapes of what a file gives when it is fed such inputs, or what the runtime does, in words."""
    found = _in_child({"original": original}, {"shapes": [list(shape) for shape in fed]}, seconds)
    return found if isinstance(found, str) else [tuple(shape) for shape in found]


def _in_child(files: Mapping[str, bytes], asked: Mapping[str, Any], seconds: int) -> Any:
    """Return what the child answers; what becomes of it, in words, where it does not."""
    with tempfile.TemporaryDirectory(prefix="pocketune-") as name:
        folder = Path(name)
        for stem, data in files.items():
            (folder / f"{stem}.tflite").write_bytes(data)
        limits = {"bytes": _BYTES + _TIMES * sum(map(len, files.values())), "seconds": seconds}
        (folder / "asked").write_text(json.dumps({**asked, **limits}))
        try:
            ran = subprocess.run(  # noqa: S603 (this interpreter, on a folder of our own)
                [sys.executable, "-P", __file__, name],
                env=os.environ | logs.silent_environment() | {"PYTHONPATH": os.pathsep.join(_import_path())},
                capture_output=True,
                timeout=_CLOCK * seconds,
            )
        except subprocess.TimeoutExpired:
            return f"does not finish in {_CLOCK * seconds} s"
        if not (folder / "answer").exists():
            took_all = ran.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
            return f"does not finish in {seconds} s" if took_all else f"ends with {ran.returncode}"
        return json.loads((folder / "answer").read_text())


def _import_path() -> list[str]:
    root = str(Path(__file__).resolve().parents[__name__.count(".")])
    return [root, *(entry for entry in sys.path if entry)]


def main(folder: Path, asked: Mapping[str, Any]) -> Any:
    """Return the requested shapes, or SAME, or a sentence about what the runtime does instead."""
    from converter.support.litert import Interpreter

    try:
        one = Interpreter(str(folder / "original.tflite"))
        if "shapes" in asked:
            return _shapes(one, asked["shapes"])
        one.allocate_tensors()
        many = Interpreter(str(folder / "carried.tflite"))
        many.allocate_tensors()
        return _compared(one, many, asked["rows"])
    except MemoryError:
        return f"needs more than {asked['bytes'] >> 20} MiB for them"
    except (RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines() or [f"it says no reason; memory it has {asked['bytes'] >> 20} MiB"]
        return f"does not take them ({said[-1]})"


def _shapes(runtime: Any, fed: Sequence[Sequence[int]]) -> list[list[int]]:
    for details, shape in zip(runtime.get_input_details(), fed, strict=True):
        if list(details["shape"]) != shape:
            runtime.resize_tensor_input(details["index"], shape)
    runtime.allocate_tensors()
    return [list(array.shape) for array in _run(runtime, [_numbers(d, 0) for d in runtime.get_input_details()])]


def _compared(one: Any, many: Any, rows: int) -> str:
    fed = [_numbers(details, i) for i, details in enumerate(many.get_input_details())]
    at_once = _fit(one, fed, rows)
    whole = _run(many, fed)
    parts = [_run(one, [array[i : i + at_once] for array in fed]) for i in range(0, rows, at_once)]
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
        return rng.standard_normal(shape, np.float32).astype(dtype, copy=False)
    if dtype.itemsize > 2 or dtype.kind == "b":  # places and truth values
        return np.zeros(shape, dtype)
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)


def _run(runtime: Any, fed: Sequence[np.ndarray]) -> list[np.ndarray]:
    for details, array in zip(runtime.get_input_details(), fed, strict=True):
        runtime.set_tensor(details["index"], array.astype(details["dtype"], copy=False))
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
    place = Path(sys.argv[1])
    question = json.loads((place / "asked").read_text())
    resource.setrlimit(resource.RLIMIT_DATA, (question["bytes"], question["bytes"]))
    resource.setrlimit(resource.RLIMIT_CPU, (question["seconds"], question["seconds"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = json.dumps(main(place, question))
    (place / "answer").write_text(answer)
