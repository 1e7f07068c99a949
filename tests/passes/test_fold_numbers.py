"""Numbers that multiply a value are held by the constants that it is made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from converter.ir import Builder, Graph, Parameter, TensorType, Value, described, evaluate, ops, verify
from converter.passes import fold_numbers

RNG = np.random.default_rng(0)
WEIGHT, BIAS = RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal(8).astype(np.float32)
TABLE = RNG.standard_normal((5, 1, 4)).astype(np.float32)


def _queries(b: Builder, x: Value, weight: Value | None = None) -> Value:
    """[2, 5, 6] -> [2, 5, 2, 4], two heads."""
    rows = b(ops.Add(), b(ops.MatMul(), x, b.constant(WEIGHT) if weight is None else weight), BIAS)
    return b.reshape(rows, (2, 5, 2, 4))


def _rotated(b: Builder, x: Value) -> Value:
    """By tables of angles."""
    q = _queries(b, x)
    halves = [b(ops.Slice((0, 0, 0, at), (2, 5, 2, 2)), q) for at in (2, 0)]
    return b(ops.Add(), b(ops.Mul(), q, TABLE), b(ops.Mul(), b(ops.Concat(3), *halves), 2 * TABLE))


def _trained(b: Builder, x: Value) -> Value:
    weight = Value(TensorType(WEIGHT.shape), "w")
    b.graph.parameters[weight] = Parameter("w", WEIGHT)
    return _queries(b, x, weight)


def _read_twice(b: Builder, x: Value) -> Value:
    q = _queries(b, x)
    b.graph.outputs["q"] = b(ops.Neg(), q)
    return q


def _behind_another(b: Builder, x: Value) -> Value:
    return b(ops.Exp(), _queries(b, x))


FOLDED: dict[str, Callable[[Builder, Value], Value]] = {"queries": _queries, "rotated": _rotated}
LEFT: dict[str, Callable[[Builder, Value], Value]] = {
    "a weight that trains": _trained,
    "read by others": _read_twice,
    "not a multiple": _behind_another,
}


def _scaled(make: Callable[[Builder, Value], Value], number: float) -> Graph:
    b = Builder()
    moved = b.transpose(make(b, b.input("x", TensorType((2, 5, 6)))), (0, 2, 1, 3))
    b.graph.outputs["y"] = b(ops.Mul(), moved, number)
    return b.graph


@pytest.mark.parametrize("make", [*FOLDED.values(), *LEFT.values()], ids=[*FOLDED, *LEFT])
def test_a_number_goes_into_constants(make: Callable[[Builder, Value], Value]) -> None:
    graph = _scaled(make, 0.3)
    after = verify(fold_numbers(graph), "fold_numbers")
    assert len(graph.nodes) - len(after.nodes) == (make in FOLDED.values())
    feed = {"x": RNG.standard_normal((2, 5, 6)).astype(np.float32)}
    (found, _), (wanted, _) = (evaluate(g, feed, np.float64) for g in (after, graph))
    assert wanted.keys() == found.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6)


def test_numbers_beyond_the_ordinary_stay() -> None:
    """The constants would leave float32's range sooner than the product."""
    graph = _scaled(_queries, 1e-30)
    assert len(fold_numbers(graph).nodes) == len(graph.nodes)


def test_a_weight_that_others_read_is_stored_twice_where_that_is_less() -> None:
    """Than the numbers that are not multiplied: 48 of a weight, 80 or 16 of a result."""
    for rows, is_folded in ((5, True), (1, False)):
        b = Builder()
        x, weight = b.input("x", TensorType((2, rows, 6))), b.constant(WEIGHT)
        b.graph.outputs["k"] = b(ops.MatMul(), b(ops.Exp(), x), weight)
        b.graph.outputs["y"] = b(ops.Mul(), b(ops.MatMul(), x, weight), 0.3)
        assert len(b.graph.nodes) - len(fold_numbers(b.graph).nodes) == is_folded


def test_weights_without_numbers_are_folded_as_those_with() -> None:
    """A plan has the nodes of the program."""

    def of_shapes(b: Builder, x: Value) -> Value:
        return _queries(b, x, b.constant(described(WEIGHT.shape, "w")))

    planned, made = (fold_numbers(_scaled(make, 0.3)) for make in (of_shapes, _queries))
    assert [node.op for node in planned.nodes] == [node.op for node in made.nodes]
