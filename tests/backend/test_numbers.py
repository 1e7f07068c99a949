"""Truth values that go in and out as numbers."""

from __future__ import annotations

import numpy as np

from converter.backend import builtins as tfl
from converter.ir import BOOL, Builder, TensorType
from converter.program.flatbuffer.truth_values import with_numbers
from tests.backend.stock import file, run


def test_truth_values_go_in_and_out_as_numbers() -> None:
    b = Builder()
    flags, x = b.input("flags", TensorType((3,), BOOL)), b.input("x", TensorType((3,)))
    b.graph.outputs = {"not": b(tfl.LogicalNot(), flags), "chosen": b(tfl.SelectV2(), flags, x, b(tfl.Neg(), x))}
    truths, row = np.array([True, False, True]), np.float32([1, 2, 3])
    program = file(b.graph)
    given = run(with_numbers(program), {"flags": truths.astype(np.int32), "x": row}, True)
    assert given["not"].dtype == np.int32
    for name, array in run(program, {"flags": truths, "x": row}, True).items():
        np.testing.assert_array_equal(given[name], array)


def test_what_has_none_stays_as_it_is() -> None:
    b = Builder()
    b.graph.outputs = {"y": b(tfl.Neg(), b.input("x", TensorType((3,))))}
    program = file(b.graph)
    assert with_numbers(program) is program
