"""Single rules of `simplify`; what it does to whole networks is in test_stages."""

from __future__ import annotations

import numpy as np
import pytest

from converter.ir import Builder, TensorType, Value, ops
from converter.ir.evaluate import evaluate
from converter.passes import simplify


def test_a_factor_goes_before_a_scatter() -> None:
    """The rows of a batch are multiplied, not those of a whole table."""
    b = Builder()
    indices = b.input("i", TensorType((3,), np.dtype(np.int32)))
    rows, rate = b.input("u", TensorType((3, 4))), b.input("rate", TensorType((1,)))
    b.graph.outputs = {"y": b(ops.Mul(), rate, b(ops.ScatterAdd(100), indices, rows))}
    after = simplify(b.graph)
    (product,) = (node for node in after.nodes if isinstance(node.op, ops.Mul))
    assert product.output.shape == (3, 4)
    rng = np.random.default_rng(0)
    feed = {"i": np.array([7, 99, 7], np.int32), "u": rng.standard_normal((3, 4)), "rate": np.array([0.1])}
    (results, _), (expected, _) = evaluate(after, feed), evaluate(b.graph, feed)
    np.testing.assert_allclose(results["y"], expected["y"], rtol=1e-6)


def test_a_factor_goes_before_a_product_with_fewer_elements() -> None:
    """The learning rate meets the rows' cotangents, not the gradient of a dense layer, unless that is smaller."""
    for rows, scaled in ((3, (3, 20)), (50, (20, 30))):
        b = Builder()
        x, dy = b.input("x", TensorType((rows, 20))), b.input("dy", TensorType((rows, 30)))
        b.graph.outputs = {"y": b(ops.Mul(), b(ops.MatMul(adj_x=True), x, dy), b.input("rate", TensorType((1,))))}
        after = simplify(b.graph)
        (product,) = (node for node in after.nodes if isinstance(node.op, ops.Mul))
        assert product.output.shape == scaled
        rng = np.random.default_rng(0)
        feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
        (results, _), (expected, _) = evaluate(after, feed), evaluate(b.graph, feed)
        np.testing.assert_allclose(results["y"], expected["y"], rtol=1e-5, atol=1e-6)


def test_what_is_always_true_asks_for_nothing() -> None:
    b = Builder()
    mask = b.input("mask", TensorType((1, 4, 1, 1, 5), np.dtype(np.bool_)))
    both = b(ops.LogicalAnd(), b.constant(np.ones(1, np.bool_)), mask)
    b.graph.outputs = {"y": b(ops.LogicalOr(), both, b.constant(np.zeros((4, 1, 1, 5), np.bool_)))}
    assert not simplify(b.graph).nodes
    b.graph.outputs = {"y": b(ops.LogicalAnd(), mask, b.constant(np.ones((2, 1, 1, 1, 1), np.bool_)))}
    assert len(simplify(b.graph).nodes) == 1, "it repeats the mask"
    b.graph.outputs = {"y": b(ops.LogicalOr(), mask, b.constant(np.ones(1, np.bool_)))}
    assert len(simplify(b.graph).nodes) == 1


def test_small_factors_meet_before_the_large_operand() -> None:
    """A folded scale and the learning rate: one pass over a gradient; two operands that are both large stay."""
    rng = np.random.default_rng(0)
    for scale, products in (((6, 1, 1), [(6, 1, 1), (6, 4, 5)]), ((6, 4, 5), [(6, 4, 5), (6, 4, 5)])):
        b = Builder()
        gradient, factor = b.input("g", TensorType((6, 4, 5))), b.input("s", TensorType(scale))
        b.graph.outputs = {"y": b(ops.Mul(), b.input("rate", TensorType((1,))), b(ops.Mul(), factor, gradient))}
        after = simplify(b.graph)
        assert [node.output.shape for node in after.nodes] == products
        feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
        (results, _), (expected, _) = evaluate(after, feed), evaluate(b.graph, feed)
        np.testing.assert_allclose(results["y"], expected["y"], rtol=1e-6)


def test_what_has_no_elements_is_left_out() -> None:
    """As an associative scan makes it of an odd length; the GPU's engine gives up at it."""
    b = Builder()
    x = b.input("x", TensorType((4, 3)))
    none = b(ops.Neg(), b(ops.Slice((2, 0), (0, 3)), x))
    b.graph.outputs = {
        "x": b(ops.Concat(0), none, x, none),
        "two": b(ops.Concat(0), x, none, b(ops.Neg(), x)),
        "sum": b(ops.Add(), x, b(ops.Pad(((1, 3), (0, 0))), none)),
    }
    after = simplify(b.graph)
    assert after.outputs["x"] is after.outputs["sum"] is x
    assert sorted(type(node.op).__name__ for node in after.nodes) == ["Concat", "Neg"]
    assert not any(value.type.size == 0 for node in after.nodes for value in node.inputs)
    feed = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}
    (results, _), (expected, _) = evaluate(after, feed), evaluate(b.graph, feed)
    for name, wanted in expected.items():
        np.testing.assert_array_equal(results[name], wanted)


@pytest.mark.parametrize(
    ("order", "kinds"),
    [
        ((0, 1, 2, 3), ["Concat"]),
        ((3, 2, 1, 0), ["Concat"]),
        ((2, 1, 3), ["Concat", "Pad"]),
        ((0, 2), ["Add", "Pad", "Pad"]),
    ],
)
def test_pieces_side_by_side_are_put_together(order: tuple[int, ...], kinds: list[str]) -> None:
    """The cotangents of what was split are not padded to its whole size and added up."""
    b = Builder()
    sizes, x = (2, 3, 1, 4), TensorType((3, 10, 2))
    ends = np.cumsum(sizes)
    total: Value | None = None
    for i in order:
        piece = b.input(f"x{i}", x.with_shape((3, sizes[i], 2)))
        spread = b(ops.Pad(((0, 0), (int(ends[i]) - sizes[i], 10 - int(ends[i])), (0, 0))), piece)
        total = spread if total is None else b(ops.Add(), total, spread)
    assert total is not None
    b.graph.outputs = {"y": total}
    after = simplify(b.graph)
    assert sorted(type(node.op).__name__ for node in after.nodes) == kinds
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
    np.testing.assert_array_equal(evaluate(after, feed)[0]["y"], evaluate(b.graph, feed)[0]["y"])


@pytest.mark.parametrize("swapped", [False, True])
def test_pieces_added_to_something_are_put_together_first(swapped: bool) -> None:
    """As the cotangents of something that was read whole and in halves."""
    b = Builder()
    whole, first, second = (b.input(name, TensorType((3, n))) for name, n in (("u", 4), ("a", 1), ("b", 3)))
    parts = b(ops.Pad(((0, 0), (0, 3))), first), b(ops.Pad(((0, 0), (1, 0))), second)
    one, other = parts[::-1] if swapped else parts
    b.graph.outputs = {"y": b(ops.Add(), other, b(ops.Add(), one, whole))}
    after = simplify(b.graph)
    assert [type(node.op) for node in after.nodes] == [ops.Concat, ops.Add]
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
    np.testing.assert_array_equal(evaluate(after, feed)[0]["y"], evaluate(b.graph, feed)[0]["y"])


@pytest.mark.parametrize(
    ("factor", "again", "negations"),
    [((5, 1, 4), False, 0), ((4,), False, 0), ((5, 1, 1), False, 1), ((2, 5, 3, 4), False, 1), ((5, 1, 4), True, 1)],
)
def test_signs_of_halves_go_into_a_constant(factor: tuple[int, ...], again: bool, negations: int) -> None:
    """As a rotary embedding has them; not into numbers for each element, nor where others read them."""
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input("x", TensorType((2, 5, 3, 4)))
    left, right = (b(ops.Slice((0, 0, 0, start), (2, 5, 3, 2)), x) for start in (0, 2))
    transposed = b(ops.Concat(3), b(ops.Neg(), right), left)
    b.graph.outputs = {"y": b(ops.Mul(), transposed, b.constant(rng.standard_normal(factor).astype(np.float32)))}
    if again:
        b.graph.outputs["z"] = b(ops.Exp(), transposed)
    after = simplify(b.graph)
    assert sum(isinstance(node.op, ops.Neg) for node in after.nodes) == negations
    feed = {"x": rng.standard_normal(x.shape).astype(np.float32)}
    np.testing.assert_array_equal(evaluate(after, feed)[0]["y"], evaluate(b.graph, feed)[0]["y"])


@pytest.mark.parametrize(
    ("op", "number"), [(ops.Mul(), 0.1), (ops.Div(), 5.0)], ids=["times a number", "over a number"]
)
def test_a_factor_of_a_product_with_itself_is_there_once(op: ops.Mul | ops.Div, number: float) -> None:
    """Both operands are one value, of which one alone is scaled."""
    b = Builder()
    x = b.input("x", TensorType((5, 3)))
    b.graph.outputs = {"y": b(op, b(ops.MatMul(False, True), x, x), number)}
    after = simplify(b.graph)
    assert [node.output.shape for node in after.nodes] == [(5, 3), (5, 5)], "the smaller operand is scaled"
    feed = {"x": np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)}
    (results, _), (expected, _) = evaluate(after, feed), evaluate(b.graph, feed)
    np.testing.assert_allclose(results["y"], expected["y"], rtol=1e-5, atol=1e-6)
