"""Hostile files: they are refused with a sentence, and take neither time nor memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tflite_frontend
from converter.support.errors import PocketuneError
from tests.tflite_frontend.mutated import mutated
from tests.tflite_frontend.quantised_nets import quantised_nets
from tests.tflite_frontend.test_quantised import edited
from tests.tflite_frontend.test_recurrent import lstm
from tests.tflite_frontend.written import Operator, file_of

HUGE = 1 << 30
X = {"x": ((1, 4), "float32"), "y": ((1, 4), "float32")}


def of(kind: str, operands: tuple[str, ...], options: Any, shape: tuple[int, ...] = (1, 4), **constants: Any) -> bytes:
    """One operator, and the sum of what it makes and x."""
    tensors = {**X, **{k: np.asarray(v) for k, v in constants.items()}, "made": (shape, "float32")}
    operators: list[Operator] = [
        (kind, operands, ("made",), options),
        ("ADD", ("x", "made"), ("y",), ("AddOptions", {})),
    ]
    return file_of(tensors, operators)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def overlapping(tensors: int) -> bytes:
    """Many constants of one buffer: each a part of a sum."""

    def share(model: Any) -> None:
        graph = model.subgraphs[0]
        for tensor in graph.tensors[2 : 2 + tensors]:
            tensor.buffer = graph.tensors[2].buffer

    given: dict[str, Any] = {**X, **{f"c{i}": np.full((1, 4), i, np.float32) for i in range(tensors)}}
    given["c0"] = np.zeros((1, 1 << 18), np.float32)
    model = edited(file_of(given, [("ADD", ("x", "c1"), ("y",), ("AddOptions", {}))]), share)
    return edited(model, lambda model: [setattr(t, "shape", [1, 1 << 18]) for t in model.subgraphs[0].tensors[2:]])


def changed(field: str, value: Any) -> bytes:
    """The first operator's results, or its operands, are others."""
    return edited(
        quantised_nets()["int8"], lambda model: setattr(model.subgraphs[0].operators[0], field, np.array(value))
    )


FILES = {
    "constants that overlap": lambda: overlapping(200),
    "fill": lambda: of("FILL", ("d", "v"), ("FillOptions", {}), d=ints(1 << 15, 1 << 15), v=np.float32(1)),
    "pad": lambda: of("PAD", ("c", "w"), ("PadOptions", {}), c=np.zeros((1, 4), np.float32), w=[ints(HUGE, HUGE)] * 2),
    "range": lambda: of("RANGE", ("a", "b", "s"), ("RangeOptions", {}), a=ints(0), b=ints(HUGE), s=ints(1)),
    "tile": lambda: of("TILE", ("c", "m"), None, c=np.zeros((1, 4), np.float32), m=ints(HUGE, 1)),
    "mirror": lambda: of("MIRROR_PAD", ("x", "w"), ("MirrorPadOptions", {}), w=[ints(0, 0), ints(HUGE, HUGE)]),
    "one hot": lambda: of(
        "ONE_HOT",
        ("i", "n", "on", "off"),
        ("OneHotOptions", {"axis": -1}),
        i=ints(1),
        n=ints(HUGE)[0],
        on=np.float32(1),
        off=np.float32(0),
    ),
    "split": lambda: of("SPLIT", ("a", "x"), ("SplitOptions", {"numSplits": HUGE}), a=ints(1)[0]),
    "reads itself": lambda: file_of(X, [("ADD", ("y", "x"), ("y",), ("AddOptions", {}))]),
    "cycle": lambda: file_of(
        {**X, "z": ((1, 4), "float32")},
        [("ADD", ("x", "z"), ("y",), ("AddOptions", {})), ("ADD", ("x", "y"), ("z",), ("AddOptions", {}))],
    ),
    "no such operand": lambda: changed("inputs", [10**6, 1, 2]),
    "too few operands": lambda: changed("inputs", [0]),
    "no results": lambda: changed("outputs", np.zeros(0, np.int32)),
}


@pytest.mark.parametrize("kind", FILES)
def test_it_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(FILES[kind]())
    for rows in (1, 2):
        with pytest.raises(PocketuneError):
            tflite_frontend.Model(path).graph(rows)


def test_what_goes_round_in_circles_behind_the_last_layer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(file_of(X, [("RESHAPE", ("y",), ("y",), ("ReshapeOptions", {}))]))
    with pytest.raises(PocketuneError, match="damaged"):
        tflite_frontend.Model(path, classes=3).graph(1)


@pytest.mark.slow
def test_no_mutated_file_crashes_or_hangs_or_fills_the_memory(tmp_path: Path) -> None:
    """1500 cases in processes of their own, of which 25 are built and run; for a machine that does nothing else."""
    paths = [tmp_path / f"{form}.tflite" for form in ("int8", "dynamic", "spectral", "loop", "loop_dynamic")]
    for path in paths:
        path.write_bytes(quantised_nets()[path.stem])
    command = [sys.executable, "-m", "tests.tflite_frontend.mutated", *map(str, paths), "--cases", "1500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout[-3000:]


def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    """The first of many: `python -m tests.tflite_frontend.mutated` goes on."""
    path = tmp_path / "net.tflite"
    files = [quantised_nets()["int8"], quantised_nets()["loop"], lstm()]
    read = 0
    for number in range(90):
        path.write_bytes(mutated(files[number % len(files)], number))
        try:
            tflite_frontend.Model(path, classes=(None, 3)[number % 2]).graph(1 + number % 4 // 2)
            read += 1
        except PocketuneError:
            continue
    assert 0 < read < 60
