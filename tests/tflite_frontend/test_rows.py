"""Batches of files that are for one row: each row is what the stock interpreter makes of it alone, or it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from converter.frontends import tflite as tflite_frontend
from converter.ir import evaluate
from converter.support.errors import PocketuneError
from tests.tflite_frontend.written import Operator, file_of

ROWS = 3


def ints(*numbers: Any) -> np.ndarray:
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.int32)


def sliced(begin: list[int], end: list[int], given: tuple[int, ...], made: tuple[int, ...], **masks: int) -> bytes:
    """A file that turns x so that its batch comes second, cuts it, and turns it back."""
    tensors = {
        "x": ((1, 3, 4), "float32"),
        "p": ints(1, 0, 2),
        "t": (given, "float32"),
        "b": ints(begin),
        "e": ints(end),
        "s": ints([1] * len(begin)),
        "c": (made, "float32"),
        "y": ((made[1], made[0], made[2]), "float32"),
    }
    operators: list[Operator] = [
        ("TRANSPOSE", ("x", "p"), ("t",), None),
        ("STRIDED_SLICE", ("t", "b", "e", "s"), ("c",), ("StridedSliceOptions", masks)),
        ("TRANSPOSE", ("c", "p"), ("y",), None),
    ]
    return file_of(tensors, operators)


def first_row_alone() -> bytes:
    tensors = {
        "x": ((1, 4), "float32"),
        "b": ints(0, 0),
        "e": ints(1, 4),
        "s": ints(1, 1),
        "y": ((4,), "float32"),
    }
    return file_of(
        tensors, [("STRIDED_SLICE", ("x", "b", "e", "s"), ("y",), ("StridedSliceOptions", {"shrinkAxisMask": 1}))]
    )


def of_shapes() -> bytes:
    """A file that flattens x by arithmetic on its shape, of which it takes the first number as a vector of one."""
    tensors = {
        "x": ((1, 2, 3), "float32"),
        "n": ((3,), "int32"),
        "b": ints([0]),
        "e": ints([1]),
        "s": ints([1]),
        "first": ((1,), "int32"),
        "rest": ints([6]),
        "shape": ((2,), "int32"),
        "y": ((1, 6), "float32"),
    }
    operators: list[Operator] = [
        ("SHAPE", ("x",), ("n",), ("ShapeOptions", {"outType": 2})),
        ("STRIDED_SLICE", ("n", "b", "e", "s"), ("first",), ("StridedSliceOptions", {})),
        ("CONCATENATION", ("first", "rest"), ("shape",), ("ConcatenationOptions", {"axis": 0})),
        ("RESHAPE", ("x", "shape"), ("y",), ("ReshapeOptions", {})),
    ]
    return file_of(tensors, operators)


def by_interpreter(data: bytes, x: np.ndarray) -> np.ndarray:
    runtime = Interpreter(model_content=data)
    runtime.allocate_tensors()
    found = []
    for row in x:
        runtime.set_tensor(runtime.get_input_details()[0]["index"], row[None])
        runtime.invoke()
        found.append(runtime.get_tensor(runtime.get_output_details()[0]["index"]).copy())
    return np.stack(found)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(sliced([0, 0, 0], [1, 1, 4], (3, 1, 4), (1, 1, 4)), id="first of as many steps as rows"),
        pytest.param(sliced([0, 0, 1], [3, 1, 3], (3, 1, 4), (3, 1, 2)), id="features"),
        pytest.param(of_shapes(), id="arithmetic of shapes"),
    ],
)
def test_a_batch_is_its_rows(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(data)
    graph, _ = tflite_frontend.Model(path).graph(ROWS)
    x = np.random.default_rng(0).standard_normal(graph.inputs[0].shape).astype(np.float32)
    expected = by_interpreter(data, x)
    np.testing.assert_array_equal(evaluate(graph, [x])[0]["output"].reshape(expected.shape), expected)


def test_the_layer_that_is_for_one_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(first_row_alone())
    with pytest.raises(PocketuneError, match=r"(?s)the only row: the file is for one row at a time.*net.tflite:0"):
        tflite_frontend.Model(path).graph(ROWS)
    graph, _ = tflite_frontend.Model(path).graph(1)
    x = np.arange(4, dtype=np.float32)[None]
    np.testing.assert_array_equal(evaluate(graph, [x])[0]["output"], x)
