"""What holds for every semantic op, on random applications: a new op needs one (`tests/ir/applications.py`)."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.backend.lowering.state import with_own_results
from converter.backend.stages import in_order, to_builtins
from converter.backend.targets import target
from converter.ir import Graph, Op, TensorType, evaluate, ops, verify
from converter.ir.builder import Builder
from converter.ir.ops.elementwise import Binary, Comparison, Unary
from converter.ir.ops.nn import OverLastAxis
from converter.passes import eliminate_dead_code
from converter.passes.autodiff import pull_back
from converter.support.errors import UnsupportedError
from tests.backend.stock import file, run
from tests.ir import applications_of_structure  # registers them
from tests.ir.applications import APPLICATIONS, Application, Numbers, graph_of

#: What classes of ops are derived from, without a meaning of its own.
BASES = {Unary, Binary, Comparison, OverLastAxis}
BASES |= {ops.Activation, ops.Layer, ops.Mark, ops.Movement, ops.Reduction, ops.Windowed, ops.Pool, ops.Segment}
#: What stands for something else until a step is made, or weights are rounded: there is no kernel for it.
PLACEHOLDERS = {ops.CallKey, ops.Foreign, ops.InTraining, ops.RandomBits, ops.SquaredNorms, ops.Stored}
LITERT = target("litert-2")


def all_ops() -> list[type[Op]]:
    """Every class of op in `converter/ir/ops`."""
    found = {c for _, c in inspect.getmembers(ops, inspect.isclass) if issubclass(c, Op)} - BASES - PLACEHOLDERS - {Op}
    return sorted((c for c in found if not c.__name__.startswith("_")), key=lambda c: c.__name__)


def test_there_are_applications_of_every_op() -> None:
    assert set(APPLICATIONS) == set(all_ops()), "describe valid operands in tests/ir/applications*.py"
    assert applications_of_structure


@pytest.mark.parametrize("kind", all_ops(), ids=lambda kind: kind.__name__)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_an_op_is_of_one_piece(kind: type[Op], seed: int) -> None:
    check(APPLICATIONS[kind](Numbers(np.random.default_rng(seed))), seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", all_ops(), ids=lambda kind: kind.__name__)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_an_op_is_of_one_piece_often(kind: type[Op], seed: int) -> None:
    check(APPLICATIONS[kind](Numbers(np.random.default_rng(seed))), seed)


def check(drawn: Application, seed: int) -> None:
    """Types, text, the emitted program and the derivative agree with what the op evaluates to."""
    graph = verify(graph_of(drawn), "drawn")
    assert str(drawn.op) in str(graph)
    feed = {f"x{k}": a for k, a in enumerate(drawn.operands) if k not in (drawn.constants or {})}
    values, _ = evaluate(graph, feed, np.float64)
    (node,) = graph.nodes
    types = node.op.infer(*(v.type for v in node.inputs))
    for made, type in zip(values.values(), types if isinstance(types, tuple) else (types,), strict=True):
        assert made.shape == type.shape
        assert made.dtype.kind == type.dtype.kind

    whole, cotangents = with_cotangents(graph, np.random.default_rng(seed))
    expected, _ = evaluate(whole, feed | cotangents, np.float64)
    for name, array in emitted(whole, feed | cotangents).items():
        close(array, expected[name], drawn.tolerance, f"{drawn.op}: {name} in the program")
    if drawn.smooth and cotangents:
        differences(drawn, graph, feed, cotangents, expected)


def with_cotangents(graph: Graph, rng: np.random.Generator) -> tuple[Graph, dict[str, np.ndarray]]:
    """The graph with the outputs `dx<k>`, from cotangents of the float outputs; as it is where there are none."""
    wanted = [v for v in graph.inputs if v.dtype.kind == "f"]
    floats = {name: v for name, v in graph.outputs.items() if v.dtype.kind == "f"}
    b = Builder(graph.copy())
    given = {v: b.input(f"d{name}", TensorType(v.shape)) for name, v in floats.items()}
    try:
        whole, found = pull_back(b.graph, given, wanted)
    except UnsupportedError:  # says so: backward helpers, loops without a bound
        return graph, {}
    if not found:
        return graph, {}
    whole.outputs |= {f"d{v.name}": cotangent for v, cotangent in found.items()}
    return whole, {f"d{name}": rng.uniform(0.5, 1.5, v.shape).astype(np.float32) for name, v in floats.items()}


def emitted(graph: Graph, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the stock interpreter makes of it."""
    lowered = with_own_results(in_order(to_builtins(eliminate_dead_code(graph), LITERT), LITERT))
    arrays = {v.name: feed[v.name].reshape(v.shape) for v in lowered.inputs}
    return run(file(lowered), arrays, xnnpack=True)


def differences(
    drawn: Application, graph: Graph, feed: dict[str, np.ndarray], cotangents: dict[str, np.ndarray], found: Any
) -> None:
    """The derivative along a random direction of each operand is that of central differences."""

    def loss(feed: dict[str, np.ndarray]) -> float:
        values, _ = evaluate(graph, feed, np.float64)
        return sum(float((values[name[1:]] * dy).sum()) for name, dy in cotangents.items())

    step = 1e-5
    for name, array in feed.items():
        if array.dtype.kind != "f":
            continue
        direction = np.random.default_rng(1).uniform(0.5, 1.5, array.shape)
        beside = [loss(feed | {name: array.astype(np.float64) + sign * step * direction}) for sign in (1, -1)]
        slope = (beside[0] - beside[1]) / (2 * step)
        along = float((found.get(f"d{name}", np.zeros(array.shape)) * direction).sum())
        assert abs(along - slope) <= 1e-4 * max(1.0, abs(slope)), f"{drawn.op}: cotangent of {name}"


def close(found: np.ndarray, expected: np.ndarray, tolerance: float, what: str) -> None:
    found = found.reshape(expected.shape)
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    largest = float(np.abs(expected).max(initial=1.0))
    np.testing.assert_allclose(found, expected, rtol=10 * tolerance, atol=tolerance * largest, err_msg=what)
