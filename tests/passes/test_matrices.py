"""Products that read and make what lies row by row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_frontend
from converter.ir import Builder, Graph, TensorType, ops
from converter.ir.evaluate import evaluate
from converter.passes import eliminate_dead_code, simplify
from converter.passes.autodiff import differentiate
from converter.passes.canonical import canonicalize
from converter.passes.idioms import with_idioms


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def _transposes(graph: Graph) -> list[tuple[int, ...]]:
    return [node.op.perm for node in graph.nodes if isinstance(node.op, ops.Transpose)]


def test_an_attention_moves_whole_rows_only() -> None:
    """Forward and backward: every transpose keeps the last axis, no product of scores is turned around."""
    shapes = [jax.ShapeDtypeStruct((2, 5, 3, 4), np.float32)] * 3
    forward = canonicalize(with_idioms(jax_frontend.trace_function(_attention, shapes, ["q", "k", "v"])))
    b = Builder(forward.copy())
    (y,) = forward.outputs.values()
    b.graph.outputs = {"loss": b(ops.Sum((0, 1, 2, 3)), b(ops.Mul(), y, y))}
    graph, gradients = differentiate(b.graph, b.graph.outputs["loss"], b.graph.inputs)
    graph.outputs |= {f"d{v.name}": gradients[v] for v in graph.inputs}
    graph = simplify(eliminate_dead_code(graph))
    assert _transposes(graph) == [(0, 2, 1, 3)] * 9
    of_products = [node.op for node in graph.nodes if isinstance(node.op, ops.MatMul)]
    assert sum(op.adj_x for op in of_products) == 2, "of the scores and of their cotangent, for k and v"
    sums = [node.inputs[0].shape for node in graph.nodes if isinstance(node.op, ops.Sum)]
    assert sums[1:] == [(2, 5, 3, 4)], "behind the loss: over features, not over keys, of what the result is made of"
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs}
    results, _ = evaluate(graph, feed)
    expected = jax.grad(lambda *args: jnp.square(_attention(*args)).sum(), argnums=(0, 1, 2))(
        *(feed[v.name] for v in graph.inputs)
    )
    for value, wanted in zip(graph.inputs, expected, strict=True):
        np.testing.assert_allclose(results[f"d{value.name}"], wanted, rtol=2e-5, atol=2e-6)


@given(
    perm=st.permutations(range(4)),
    back=st.permutations(range(4)),
    adj=st.tuples(st.booleans(), st.booleans()),
    both=st.booleans(),
)
def test_products_of_transposes_are_the_same(perm: list[int], back: list[int], adj: tuple, both: bool) -> None:
    """Whichever way the operands and the result are turned, and whoever else reads them."""
    rng = np.random.default_rng(0)
    b = Builder()
    m, k, n = 3, 4, 5
    left, right = (2, 6, *((k, m) if adj[0] else (m, k))), (2, 6, *((n, k) if adj[1] else (k, n)))
    x = b.input("x", TensorType(left))
    w = b.input("w", TensorType(tuple(right[perm.index(a)] for a in range(4))))
    transposed = b.transpose(w, tuple(perm))
    product = b(ops.MatMul(*adj), x, transposed)
    b.graph.outputs = {"y": b.transpose(product, tuple(back))}
    if both:
        b.graph.outputs |= {"turned": b(ops.Neg(), transposed), "product": b(ops.Neg(), product)}
    after = simplify(b.graph)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
    (results, _), (expected, _) = evaluate(after, feed), evaluate(b.graph, feed)
    for name, wanted in expected.items():
        np.testing.assert_allclose(results[name], wanted, rtol=1e-5, atol=1e-5)
    assert len(after.nodes) <= len(b.graph.nodes), "nothing is turned twice"


def test_what_others_read_turned_stays() -> None:
    """A transpose that is made anyway is not made a second time in another order."""
    b = Builder()
    x, w = b.input("x", TensorType((2, 3, 4))), b.input("w", TensorType((5, 2, 4)))
    transposed = b.transpose(w, (1, 2, 0))
    b.graph.outputs = {"y": b(ops.MatMul(), x, transposed), "z": b(ops.Neg(), transposed)}
    assert _transposes(simplify(b.graph)) == [(1, 2, 0)]
    del b.graph.outputs["z"]
    b.graph = eliminate_dead_code(b.graph)
    assert _transposes(simplify(b.graph)) == [(1, 0, 2)]


@pytest.mark.parametrize(("divisor", "scaled"), [(8.0, (2, 6, 4)), (3.0, (2, 6, 4)), (1e-30, (2, 6, 6)), (0.0, None)])
def test_a_divisor_of_scores_goes_to_the_queries(divisor: float, scaled: tuple[int, ...] | None) -> None:
    """One of ordinary size; what is left of a smaller operand would overflow by an extreme one."""
    b = Builder()
    q, k = b.input("q", TensorType((2, 6, 4))), b.input("k", TensorType((2, 6, 4)))
    b.graph.outputs = {"y": b(ops.Div(), b(ops.MatMul(adj_y=True), q, k), b.constant(np.float32(divisor)))}
    after = simplify(b.graph)
    factors = [node.output.shape for node in after.nodes if not isinstance(node.op, ops.MatMul)]
    assert factors == [scaled or (2, 6, 6)]
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
    with np.errstate(divide="ignore"):
        (results, _), (expected, _) = evaluate(after, feed), evaluate(b.graph, feed)
    np.testing.assert_allclose(results["y"], expected["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("other", ["", "weights", "matrix", "axis", "sum", "factor", "wide"])
def test_a_sum_over_keys_is_one_over_features(other: str) -> None:
    """Of the same weights and the same matrix, along the keys, where it reads fewer numbers."""
    b = Builder()
    features = 9 if other == "wide" else 3
    p, d, v, v2, p2 = (
        b.input(name, TensorType((2, 5, n)))
        for name, n in (("p", 5), ("d", features), ("v", features), ("v2", features), ("p2", 5))
    )
    b.graph.outputs["o"] = b(ops.MatMul(), p2 if other == "weights" else p, v2 if other == "matrix" else v)
    weighted = b(ops.Mul(), b(ops.MatMul(adj_y=True), d, v), p)
    axes = (1,) if other == "axis" else (-1,)
    total = b(ops.Sum(axes, keepdims=True), b(ops.Neg(), weighted) if other == "sum" else weighted)
    b.graph.outputs["ds"] = b(ops.Sub(), weighted, b(ops.Mul(), p2 if other == "factor" else p, total))
    after = simplify(b.graph)
    made = next(node for node in after.nodes if isinstance(node.op, ops.Sum))
    assert made.inputs[0].shape == ((2, 5, 5) if other else (2, 5, 3))
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in b.graph.inputs}
    (results, _), (expected, _) = evaluate(after, feed), evaluate(b.graph, feed)
    np.testing.assert_allclose(results["ds"], expected["ds"], rtol=1e-5, atol=1e-5)
