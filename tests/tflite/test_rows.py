"""Cotangents of dense layers, met as rows: right in the stock interpreter, against numpy, with one view of them."""

from __future__ import annotations

import numpy as np
import pytest

from converter.ir import Builder, Graph, Origin, TensorType, Value, verify
from converter.tflite import builtins as tfl
from converter.tflite.rows import met_as_rows
from tests.tflite.stock import file, run

RNG = np.random.default_rng(0)
ROWS, IN, OUT = 2 * 3 * 5, 4, 6


def backward(b: Builder, phase: str = "backward", elsewhere: bool = False) -> Value:
    """The gradients of x @ w + bias for x [2,3,5,IN]; returns that of x. `elsewhere`: another op reads dy as it is."""
    dy = b(tfl.Tanh(), b.input("dy", TensorType((2, 3, 5, OUT))))
    x, w = b.input("x", TensorType((ROWS, IN))), b.input("w", TensorType((IN, OUT)))
    with b.at(Origin("dense", "", phase)):
        b.graph.outputs["dw"] = b(tfl.BatchMatmul(adj_x=True), x, b(tfl.Reshape((ROWS, OUT)), dy))
        b.graph.outputs["db"] = b(tfl.Sum((0, 1, 2), keepdims=True), dy)
        b.graph.outputs["dx"] = b(tfl.BatchMatmul(adj_y=True), dy, w)
        if elsewhere:
            b.graph.outputs["norm"] = b(tfl.Sum((1, 2, 3)), dy)
    return b.graph.outputs["dx"]


def views(graph: Graph) -> list[tuple[int, ...]]:
    return [node.output.shape for node in graph.nodes if isinstance(node.op, tfl.Reshape)]


def assert_same(before: Graph, after: Graph) -> None:
    feed = {v.name: RNG.standard_normal(v.shape).astype(np.float32) for v in before.inputs}
    found = run(file(verify(after, "rows")), feed, xnnpack=True)
    dy = np.tanh(feed["dy"])
    np.testing.assert_allclose(found["dw"], feed["x"].T @ dy.reshape(ROWS, OUT), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["db"], dy.sum((0, 1, 2), keepdims=True), rtol=1e-4, atol=1e-5)
    expected = dy @ feed["w"].T
    np.testing.assert_allclose(found["dx"], expected.reshape(found["dx"].shape), rtol=1e-4, atol=1e-5)


def test_all_readers_share_one_view() -> None:
    b = Builder()
    backward(b)
    after = met_as_rows(b.graph)
    assert_same(b.graph, after)
    (tanh,) = (n.output for n in after.nodes if isinstance(n.op, tfl.Tanh))
    assert len(after.consumers()[tanh]) == 1
    assert views(after).count((ROWS, OUT)) == 1


def test_rows_of_a_gradient_are_those_of_the_next_layer() -> None:
    """[rows, IN] -> [2,3,5,IN] -> [rows, IN] is nothing to do."""
    b = Builder()
    dx = backward(b)
    w = b.input("v", TensorType((3, IN)))
    with b.at(Origin("before", "", "backward")):
        b.graph.outputs["dv"] = b(tfl.BatchMatmul(adj_x=True), b(tfl.Reshape((ROWS, IN)), dx), b.graph.inputs[1])
        b.graph.outputs["dx"] = b(tfl.BatchMatmul(adj_y=True), dx, w)
    after = verify(met_as_rows(b.graph), "rows")
    feed = {v.name: RNG.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
    expected, found = (run(file(graph), feed, xnnpack=True) for graph in (b.graph, after))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    assert (ROWS, IN) not in views(after)


@pytest.mark.parametrize("options", [{"phase": "forward"}, {"elsewhere": True}])
def test_what_others_read_as_it_is_stays(options: dict[str, object]) -> None:
    """Residuals are the forward pass' own; two shapes are met anyway."""
    b = Builder()
    backward(b, **options)  # type: ignore[arg-type]
    after = met_as_rows(b.graph)
    assert_same(b.graph, after)
    assert [n.op for n in after.nodes] == [n.op for n in b.graph.nodes]
