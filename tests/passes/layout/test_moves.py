"""Layout rules of operators: an op on operands that lie otherwise gives what it gave, lying otherwise."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.ir import Builder, Graph, Op, Shape, TensorType, evaluate, ops
from converter.passes.layout.memory import Memory, compose, inverse, joined, natural, strides_of
from converter.passes.layout.moves import Bounds, Known, Moved, moved, moves
from tests.ir import applications_of_structure
from tests.ir.applications import APPLICATIONS, Numbers, graph_of

assert applications_of_structure
#: Ops whose operator is known in other layouts, of those that have applications.
MOVING = sorted((kind for kind in APPLICATIONS if kind not in (ops.Reshape, ops.Transpose)), key=lambda k: k.__name__)
#: Of these some application takes another layout.
SURE = {ops.Add, ops.Concat, ops.Slice, ops.Pad, ops.Sum, ops.ArgMax, ops.Softmax, ops.MatMul, ops.Gather}


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_memories_are_permutations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(d) for d in rng.choice([1, 2, 3, 4, 6], rng.integers(1, 5)))
    inner, outer = random_memory(rng, shape), random_memory(rng, shape)
    x = np.arange(prod(shape))
    np.testing.assert_array_equal(lying(lying(x, outer), inverse(outer)), x)
    both = compose(inner, outer)
    assert both is None or (lying(x, both) == lying(lying(x, outer), inner)).all()
    assert compose(natural(len(x)), outer) == outer


@pytest.mark.parametrize("kind", MOVING, ids=lambda kind: kind.__name__)
def test_an_op_gives_the_same_in_another_layout(kind: type[Op]) -> None:
    found = sum(check(kind, seed) for seed in range(12))
    assert found or kind not in SURE


@pytest.mark.slow
@pytest.mark.parametrize("kind", MOVING, ids=lambda kind: kind.__name__)
def test_an_op_gives_the_same_in_another_layout_often(kind: type[Op]) -> None:
    for seed in range(2000):
        check(kind, seed)


def check(kind: type[Op], seed: int) -> bool:
    """Return whether a random application can be moved, and raise AssertionError where it then gives something else."""
    rng = np.random.default_rng(seed)
    drawn = APPLICATIONS[kind](Numbers(rng))
    graph = graph_of(drawn)
    (node,) = graph.nodes
    if not moves(node):
        return False
    place = int(rng.integers(len(node.inputs) + 1))
    value = node.outputs[0] if place == len(node.inputs) else node.inputs[place]
    memory = random_memory(rng, value.shape)
    ones = tuple(int(d) for d in rng.permutation(value.shape))
    known = Known(None if place == len(node.inputs) else place, memory, ones if rng.integers(2) else ())
    made = moved(node, known, Bounds({node.outputs[0], *graph.inputs}))
    if made is None:
        return False
    feed = {f"x{k}": a for k, a in enumerate(drawn.operands) if k not in (drawn.constants or {})}
    expected = evaluate(graph, feed, np.float64)[0]["y0"]
    found = emitted(made, drawn.operands)
    assert found.size == prod(made.shape)
    np.testing.assert_allclose(found.reshape(-1), lying(expected, made.result), rtol=1e-6, atol=1e-6, err_msg=str(node))
    return True


def emitted(made: Moved, operands: list[np.ndarray]) -> np.ndarray:
    """Return what a moved node gives of operands that lie as it wants them."""
    b, values, feed = Builder(Graph()), [], {}
    for k, (array, memory, shape) in enumerate(zip(operands, made.operands, made.shapes, strict=True)):
        values.append(b.input(f"x{k}", TensorType(shape, array.dtype)))
        feed[f"x{k}"] = lying(array, memory).reshape(shape)
    b.graph.outputs = {"y": made.emit(b, *values)}
    return evaluate(b.graph, feed, np.float64)[0]["y"]


def lying(array: np.ndarray, memory: Memory) -> np.ndarray:
    """Return the elements of an array in the order of a memory layout, by its definition."""
    places = np.zeros((), int)
    for size, stride in memory:
        places = places[..., None] + stride * np.arange(size)
    return array.reshape(-1)[places.reshape(-1)]


def random_memory(rng: np.random.Generator, shape: Shape) -> Memory:
    """Return the axes of a shape in another order; some of them in two parts."""
    loops = []
    for size, stride in zip(shape, strides_of(shape), strict=True):
        divisors = [d for d in range(2, size) if size % d == 0]
        inner = int(rng.choice(divisors)) if divisors and rng.integers(2) else 1
        loops += [(size // inner, inner * stride), (inner, stride)]
    return joined(loops[i] for i in rng.permutation(len(loops)))
