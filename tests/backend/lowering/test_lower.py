"""Lowering keeps the meaning, on every target, with operands known at compile time and at run time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.backend.lowering.lower import lower
from converter.backend.peephole.fuse import fuse
from converter.backend.targets import tables, target
from converter.ir import Builder, Graph, TensorType, evaluate, ops, verify
from converter.passes import eliminate_dead_code, fold_constants, simplify
from tests.cases import CASES, narrowed, with_gradients


def freeze_last(graph: Graph, arrays: list[np.ndarray]) -> tuple[Graph, list[np.ndarray]]:
    """The last operand becomes a constant: what lowering does with a frozen weight."""
    frozen = graph.copy()
    value = frozen.inputs.pop()
    frozen.constants[value] = arrays[-1]
    frozen.outputs.pop(value.name, None)
    return eliminate_dead_code(frozen), arrays[:-1]


@pytest.mark.parametrize("kind", CASES)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31), name=st.sampled_from(sorted(tables())), frozen=st.booleans())
def test_lowered_graph_means_the_same(kind: str, seed: int, name: str, frozen: bool) -> None:
    rng = np.random.default_rng(seed)
    op, arrays, reference = CASES[kind](rng)
    arrays = narrowed(arrays)
    dy = rng.standard_normal(np.shape(reference(*arrays))).astype(np.float32)
    graph = with_gradients(op, arrays, dy)
    if frozen and len(arrays) > 1:
        graph, arrays = freeze_last(graph, arrays)
    graph = simplify(graph)
    lowered = fuse(fold_constants(verify(lower(graph, target(name)), "lower")))

    expected, _ = evaluate(graph, arrays, np.float64)
    found, _ = evaluate(verify(lowered, "fuse"), [a.reshape(a.shape or (1,)) for a in arrays], np.float64)
    for key, array in expected.items():
        np.testing.assert_allclose(
            found[key], np.reshape(array, found[key].shape), rtol=1e-5, atol=1e-5, err_msg=f"{key} of {op} on {name}"
        )


@pytest.mark.parametrize("name", sorted(tables()))
def test_a_frozen_dense_layer_is_one_kernel(name: str) -> None:
    """With its bias and activation; int8 needs that, too."""
    b, rng = Builder(), np.random.default_rng(0)
    w, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (16,)))
    x = b.input("x", TensorType((4, 8)))
    b.graph.outputs = {"y": b(ops.Relu(), b(ops.Add(), b(ops.MatMul(), x, b.constant(w)), b.constant(bias)))}
    lowered = fuse(fold_constants(lower(b.graph, target(name))))
    assert [node.op.code for node in lowered.nodes] == ["FULLY_CONNECTED"]


@pytest.mark.parametrize("name", ["litert-2", "litert-2/x86-64"])
def test_a_weight_that_is_met_both_ways_is_stored_once(name: str) -> None:
    b = Builder()
    w = b.constant(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32))
    x, dy = b.input("x", TensorType((4, 8))), b.input("dy", TensorType((4, 16)))
    b.graph.outputs = {"y": b(ops.MatMul(), x, w), "dx": b(ops.MatMul(adj_y=True), dy, w)}
    lowered = eliminate_dead_code(fold_constants(lower(b.graph, target(name))))
    assert [v.shape for v in lowered.constants if v.type.size == 8 * 16] == [(16, 8)]  # as FULLY_CONNECTED reads it
