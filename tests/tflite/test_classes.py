"""Labels: the operators that a step gets for them, in the stock interpreter, against jax."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from converter.ir import INT32, Builder, Graph, TensorType, ops
from converter.targets import tables, target
from converter.tflite.lower import lower
from tests.tflite.stock import file, run

#: Engines of accelerators have kernels of their own for it, and round to float16.
ACCELERATORS = {"gpu", "web", "hexagon"}


def codes(graph: Graph) -> set[str]:
    return {node.op.code for node in graph.nodes}


@pytest.mark.parametrize("shape", [(9,), (3, 3), (3, 1, 3)])
@pytest.mark.parametrize("classes", [1, 6, 3000])
def test_labels_are_rows_of_zeros_and_ones(shape: tuple[int, ...], classes: int) -> None:
    """To the last bit, labels that are no class included."""
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    known = [0, classes - 1, classes, -1, least, most, 2**24 + 1, most - 1, classes // 2]
    y = np.asarray(known, np.int32).reshape(shape)
    b = Builder()
    b.graph.outputs = {"y": b(ops.OneHot(classes), b.input("x", TensorType(shape, INT32)))}
    lowered = lower(b.graph, target("litert-2"))
    assert "ONE_HOT" not in codes(lowered)
    expected = jax.nn.one_hot(y, classes)
    for xnnpack in (True, False):
        np.testing.assert_array_equal(run(file(lowered), {"x": y}, xnnpack)["y"], expected)


def test_more_classes_than_float32_tells_apart() -> None:
    b = Builder()
    b.graph.outputs = {"y": b(ops.OneHot(2**24 + 1), b.input("x", TensorType((1,), INT32)))}
    assert codes(lower(b.graph, target("litert-2"))) == {"ONE_HOT"}


@pytest.mark.parametrize("name", sorted(tables()))
def test_accelerators_keep_their_kernels(name: str) -> None:
    b = Builder()
    b.graph.outputs = {"y": b(ops.OneHot(3), b.input("x", TensorType((2,), INT32)))}
    assert ("ONE_HOT" in codes(lower(b.graph, target(name)))) == (name in ACCELERATORS)
