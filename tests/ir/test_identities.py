"""Identities (`converter/ir/identities.py`) in the builder that traces and in the pass: the same value, fewer nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from converter.ir import BOOL, FLOAT32, Builder, Graph, Op, TensorType, Value, evaluate, folding, ops
from converter.ir.folding import FoldingBuilder
from converter.ir.identities import OF_TRACES
from converter.passes import eliminate_dead_code, simplify

INF = float("inf")
Build = Callable[[Any, Value], Value]
#: What is built of x [2, 3, 1, 4], and how many nodes the builder and the pass leave of it.
CASES: dict[str, tuple[Build, int]] = {
    "x + 0": (lambda b, x: b(ops.Add(), x, 0.0), 0),
    "0 + x": (lambda b, x: b(ops.Add(), 0.0, x), 0),
    "x - 0": (lambda b, x: b(ops.Sub(), x, 0.0), 0),
    "0 - x": (lambda b, x: b(ops.Sub(), 0.0, x), 1),
    "x * ones": (lambda b, x: b(ops.Mul(), x, b.constant(np.ones((3, 1, 1), np.float32))), 0),
    "x * ones of more axes": (lambda b, x: b(ops.Mul(), x, b.constant(np.ones((5, 1, 1, 1, 1), np.float32))), 1),
    "x / 1": (lambda b, x: b(ops.Div(), x, 1.0), 0),
    "1 / x": (lambda b, x: b(ops.Div(), 1.0, x), 1),
    "max(x, -inf)": (lambda b, x: b(ops.Maximum(), x, -INF), 0),
    "min(inf, x)": (lambda b, x: b(ops.Minimum(), INF, x), 0),
    "max(x, inf)": (lambda b, x: b(ops.Maximum(), x, INF), 1),
    "sum / count": (lambda b, x: b(ops.Div(), b(ops.Sum((1, 3)), x), 12.0), 1),
    "sum * 1 / count": (lambda b, x: b(ops.Mul(), 1 / 12, b(ops.Sum((1, 3)), x)), 1),
    "sum / another number": (lambda b, x: b(ops.Div(), b(ops.Sum((1, 3)), x), 11.0), 2),
    "-(-x)": (lambda b, x: b(ops.Neg(), b(ops.Neg(), x)), 0),
    "reshapes": (lambda b, x: b(ops.Reshape((6, 4)), b(ops.Reshape((24,)), x)), 1),
    "reshapes and back": (lambda b, x: b(ops.Reshape((2, 3, 1, 4)), b(ops.Reshape((24,)), x)), 0),
    "transposes": (lambda b, x: b(ops.Transpose((2, 0, 3, 1)), b(ops.Transpose((1, 0, 3, 2)), x)), 1),
    "transposes and back": (lambda b, x: b(ops.Transpose((1, 0, 3, 2)), b(ops.Transpose((1, 0, 3, 2)), x)), 0),
    "reversed twice": (lambda b, x: b(ops.Reverse((1, 3)), b(ops.Reverse((1, 3)), x)), 0),
    "reversed on two axes": (lambda b, x: b(ops.Reverse((1,)), b(ops.Reverse((3,)), x)), 1),
    "a truth as a number and back": (
        lambda b, x: b(ops.NotEqual(), b(ops.Cast(FLOAT32), b(ops.Less(), x, 0.0)), 0.0),
        1,
    ),
    "one or nothing": (lambda b, x: b(ops.Select(), b(ops.Less(), x, 0.0), b.constant(1.0), b.constant(0.0)), 2),
}


def built(make: Build, b: Builder) -> Graph:
    x = b.input("x", TensorType((2, 3, 1, 4)))
    b.graph.outputs = {"y": make(b, x)}
    return b.graph


#: What only the builder of traces makes another op of.
OF_TRACES_ALONE: dict[str, Build] = {
    "the axes of a maximum": lambda b, x: b(ops.Reshape((2, 1, 1, 4)), b(ops.Max((1,)), x)),
    "a transpose of size 1": lambda b, x: b(ops.Transpose((2, 0, 1, 3)), x),
}


@pytest.mark.parametrize("case", CASES)
def test_the_builder_and_the_pass_leave_as_much(case: str) -> None:
    make, nodes = CASES[case]
    plain = built(make, Builder())
    for graph in (eliminate_dead_code(built(make, FoldingBuilder())), simplify(plain)):
        assert len(graph.nodes) == nodes
        same(graph, plain)


@pytest.mark.parametrize("case", OF_TRACES_ALONE)
def test_passes_that_choose_forms_decide_on_the_rest(case: str) -> None:
    make = OF_TRACES_ALONE[case]
    plain = built(make, Builder())
    traced = eliminate_dead_code(built(make, FoldingBuilder()))
    assert [node.op for node in simplify(plain).nodes] == [node.op for node in plain.nodes]
    assert len(traced.nodes) == 1
    assert not isinstance(traced.nodes[0].op, ops.Transpose)
    same(traced, plain)


def same(graph: Graph, plain: Graph) -> None:
    """Asserts that both compute the same."""
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 1, 4)).astype(np.float32)}
    found, expected = (evaluate(g, feed)[0]["y"] for g in (graph, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_masks_are_imported_as_they_are_written() -> None:
    """A saved state belongs to a model by what is imported of it; the pass leaves nothing of them."""

    def make(b: Builder, x: Value) -> Value:
        return b(ops.LogicalAnd(), b(ops.Less(), x, 0.0), b.constant(np.ones((), BOOL)))

    assert len(built(make, FoldingBuilder()).nodes) == 2
    assert len(simplify(built(make, Builder())).nodes) == 1


@pytest.mark.parametrize("entry", OF_TRACES, ids=lambda entry: entry[1].__name__)
def test_every_identity_is_tried(entry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it some case is built otherwise."""
    makes = [*(make for make, _ in CASES.values()), *OF_TRACES_ALONE.values()]

    def applied() -> list[list[Op]]:
        graphs = (eliminate_dead_code(built(make, FoldingBuilder())) for make in makes)
        return [[node.op for node in graph.nodes] for graph in graphs]

    whole = applied()
    monkeypatch.setattr(folding, "OF_TRACES", tuple(other for other in OF_TRACES if other is not entry))
    assert applied() != whole
