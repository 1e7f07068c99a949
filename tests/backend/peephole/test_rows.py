"""Dense layers and their cotangents, met as rows: right in the stock interpreter, against numpy, with one view each."""

from __future__ import annotations

import numpy as np
import pytest

from converter.backend import builtins as tfl
from converter.backend.peephole.flat_rows import contracted_as_rows
from converter.ir import Builder, Graph, Origin, TensorType, Value, verify
from tests.backend.stock import file, run

RNG = np.random.default_rng(0)
ROWS, IN, OUT = 2 * 3 * 5, 4, 6


def backward(b: Builder, elsewhere: bool = False) -> Value:
    """The gradients of x @ w + bias for x [2,3,5,IN]; returns that of x. `elsewhere`: another op reads dy as it is."""
    dy = b(tfl.Tanh(), b.input("dy", TensorType((2, 3, 5, OUT))))
    x, w = b.input("x", TensorType((ROWS, IN))), b.input("w", TensorType((IN, OUT)))
    with b.at(Origin("dense", "", "backward")):
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
    after = contracted_as_rows(b.graph)
    assert_same(b.graph, after)
    (tanh,) = (n.output for n in after.nodes if isinstance(n.op, tfl.Tanh))
    assert tanh.shape == (ROWS, OUT)
    assert not any(isinstance(reader.op, tfl.Reshape) for reader in after.consumers()[tanh])
    assert views(after).count((ROWS, OUT)) == 1


def test_rows_of_a_gradient_are_those_of_the_next_layer() -> None:
    """[rows, IN] -> [2,3,5,IN] -> [rows, IN] is nothing to do."""
    b = Builder()
    dx = backward(b)
    w = b.input("v", TensorType((3, IN)))
    with b.at(Origin("before", "", "backward")):
        b.graph.outputs["dv"] = b(tfl.BatchMatmul(adj_x=True), b(tfl.Reshape((ROWS, IN)), dx), b.graph.inputs[1])
        b.graph.outputs["dx"] = b(tfl.BatchMatmul(adj_y=True), dx, w)
    after = verify(contracted_as_rows(b.graph), "rows")
    feed = {v.name: RNG.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
    expected, found = (run(file(graph), feed, xnnpack=True) for graph in (b.graph, after))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    assert (ROWS, IN) not in views(after)


def test_what_others_read_as_it_is_stays() -> None:
    """Two shapes are met anyway."""
    b = Builder()
    backward(b, elsewhere=True)
    after = contracted_as_rows(b.graph)
    assert_same(b.graph, after)
    assert [n.op for n in after.nodes] == [n.op for n in b.graph.nodes]


def layers(b: Builder) -> None:
    """Places are added to x [2,5,IN]; a dense layer, its normalization beside it, a softmax; heads of two; a mean."""
    x = b(tfl.Add(), b.input("x", TensorType((2, 5, IN))), b.input("places", TensorType((5, IN))))
    y = b(
        tfl.Add("RELU"), b(tfl.BatchMatmul(), x, b.input("w", TensorType((IN, OUT)))), b.input("b", TensorType((OUT,)))
    )
    deviation = b(tfl.Sub(), y, b(tfl.Mean((-1,), keepdims=True), y))
    scaled = b(tfl.Mul(), deviation, b.input("scale", TensorType((1, 1, OUT))))
    likely = b(tfl.Softmax(), b(tfl.Add(), scaled, y))
    heads = b(tfl.Transpose((0, 2, 1, 3)), b(tfl.Reshape((2, 5, 2, OUT // 2)), likely))
    b.graph.outputs = {
        "heads": b(tfl.Softmax(), heads),
        "largest": b(tfl.ReduceMax((2,)), likely),
        "sum": b(tfl.Sum((0, 1)), likely),
        "dw": b(tfl.BatchMatmul(adj_x=True), b(tfl.Reshape((10, IN)), x), b(tfl.Reshape((10, OUT)), likely)),
    }


def test_what_treats_rows_alike_computes_on_rows_around_a_dense_layer() -> None:
    b = Builder()
    layers(b)
    after = verify(contracted_as_rows(b.graph), "rows")
    feed = {v.name: RNG.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
    found = run(file(after), feed, xnnpack=True)
    for name, array in run(file(b.graph), feed, xnnpack=True).items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    x = feed["x"] + feed["places"]
    y = np.maximum(x @ feed["w"] + feed["b"], 0)
    e = np.exp((y - y.mean(-1, keepdims=True)) * feed["scale"] + y)
    likely = e / e.sum(-1, keepdims=True)
    np.testing.assert_allclose(found["sum"], likely.sum((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(found["largest"], likely.max(-1), rtol=1e-5)
    np.testing.assert_allclose(found["dw"], x.reshape(10, IN).T @ likely.reshape(10, OUT), rtol=1e-4, atol=1e-5)
    shapes = {type(node.op): node.output.shape for node in after.nodes}
    assert shapes[tfl.Sub] == shapes[tfl.Mul] == (10, OUT)
    assert shapes[tfl.Mean] == (10, 1)
    assert {n.output.shape for n in after.nodes if n.op == tfl.Softmax()} == {(10, OUT), (2, 2, 5, OUT // 2)}
    # x with its places, and what is turned into heads, are met in one shape each.
    for value, readers in after.consumers().items():
        if len(value.shape) > 2 and any(isinstance(node.op, tfl.Reshape) for node in readers):
            assert len({node.output.shape for node in readers}) == 1, value


def test_without_a_dense_layer_nothing_changes() -> None:
    b = Builder()
    x = b.input("x", TensorType((2, 3, 5, OUT)))
    b.graph.outputs = {"y": b(tfl.Softmax(), b(tfl.Mul(), b(tfl.Tanh(), x), x))}
    assert contracted_as_rows(b.graph).nodes == b.graph.nodes


@pytest.mark.parametrize("kind", [tfl.Sum, tfl.Mean, tfl.ReduceMax])
def test_what_is_reduced_along_its_last_axis_has_other_rows(kind: type) -> None:
    """A softmax behind it is of the axis that is the last one then."""
    b = Builder()
    x, w = b.input("x", TensorType((2, 3, 4, IN))), b.input("w", TensorType((IN, OUT)))
    y = b(tfl.Tanh(), x)
    b.graph.outputs = {
        "weights": b(tfl.Softmax(), b(kind((3,)), b(tfl.Mul(), y, b.input("v", TensorType((IN,)))))),
        "dense": b(tfl.BatchMatmul(), y, w),
        "dw": b(tfl.BatchMatmul(adj_x=True), b(tfl.Reshape((24, IN)), y), b.input("dy", TensorType((24, OUT)))),
    }
    after = verify(contracted_as_rows(b.graph), "rows")
    feed = {v.name: RNG.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
    found = run(file(after), feed, xnnpack=True)
    for name, array in run(file(b.graph), feed, xnnpack=True).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    assert found["weights"].shape == (2, 3, 4)
