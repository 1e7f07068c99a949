"""What is read in part is computed in part: the same numbers, and no more products than these take."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import converter
import jax_frontend
from converter.ir import Builder, Graph, Parameter, TensorType, Value, evaluate, ops, verify
from converter.passes import eliminate_dead_code, propagate_slices
from tests.models.oracle import assert_trains_as_in_jax

LENGTH, WIDTH, HEADS, BATCH = 16, 24, 3, 4


def _norm(p: Any, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["shift"]


def _layer(p: Any, x: jax.Array) -> jax.Array:
    q, k, v = (jnp.reshape(x @ p[part], (*x.shape[:2], HEADS, -1)) for part in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(WIDTH // HEADS)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    x = _norm(p["norm"], x + mixed.reshape(x.shape) @ p["o"])
    return _norm(p["last"], x + jax.nn.gelu(x @ p["up"] + p["bias"], approximate=False) @ p["down"])


def _encoder(place: int, params: Any, x: jax.Array) -> jax.Array:
    for layer in params["layers"]:
        x = _layer(layer, x)
    return x[:, place] @ params["head"]


def _model(place: int) -> jax_frontend.Model:
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)

    def norm() -> dict[str, np.ndarray]:
        return {"scale": weights(WIDTH) + 1, "shift": weights(WIDTH)}

    layers = [
        {part: weights(WIDTH, WIDTH) for part in "qkvo"}
        | {"up": weights(WIDTH, 2 * WIDTH), "bias": weights(2 * WIDTH), "down": weights(2 * WIDTH, WIDTH)}
        | {"norm": norm(), "last": norm()}
        for _ in range(2)
    ]
    params = {"layers": layers, "head": weights(WIDTH, 5)}
    shape = jax.ShapeDtypeStruct((1, LENGTH, WIDTH), np.float32)
    return jax_frontend.Model(lambda p, x: _encoder(place, p, x), params, [shape])


def _work(graph: Graph) -> int:
    """Multiply-adds of all matrix products."""
    products = [node for node in graph.nodes if node.op.name.startswith(("BatchMatmul", "FullyConnected", "MatMul"))]
    return sum(n.op.cost(tuple(v.type for v in n.inputs), (n.output.type,)).flops // 2 for n in products)


@pytest.mark.parametrize("update", ["full", {"layers/1/*": 1.0, "head": 1.0}], ids=["full", "sparse"])
@pytest.mark.parametrize("place", [0, 7, -1])
def test_a_model_that_reads_one_token_trains_as_in_jax(place: int, update: Any) -> None:
    """The last layer computes keys and values of all tokens, and all else of one."""
    model, rule = _model(place), optax.sgd(1.0)
    program = converter.build(model, optimizer=rule, update=update, batch=BATCH)
    rng = np.random.default_rng(1)
    x, y = rng.normal(0, 1, (BATCH, LENGTH, WIDTH)).astype(np.float32), np.arange(BATCH).astype(np.int32)
    assert_trains_as_in_jax(program, model, rule, x, y)
    tokens, attention = BATCH * LENGTH, 2 * WIDTH
    layer = tokens * (8 * WIDTH * WIDTH + LENGTH * attention)
    last = tokens * (2 * WIDTH * WIDTH + attention) + BATCH * 6 * WIDTH * WIDTH
    forward = eliminate_dead_code(program.signatures["infer"])
    assert _work(forward) == layer + last + BATCH * WIDTH * 5


def _checked(graph: Graph) -> Graph:
    """The graph narrowed, which gives the same numbers."""
    after = verify(propagate_slices(graph), "propagate_slices")
    rng = np.random.default_rng(0)
    feed = {v.name: rng.standard_normal(v.shape).astype(v.dtype) for v in graph.inputs}
    (results, _), (expected, _) = evaluate(after, feed, np.float64), evaluate(graph, feed, np.float64)
    assert results.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(results[name], wanted, rtol=1e-12, atol=1e-12)
    return after


def _dense(b: Builder, x: Value) -> Value:
    return b(ops.Add(), b(ops.MatMul(), x, np.ones((12, 7), np.float32)), np.arange(7, dtype=np.float32))


def _scores(b: Builder, x: Value) -> Value:
    return b(ops.Softmax(), b(ops.MatMul(adj_y=True), x, b(ops.Exp(), x)))


def _rotated(b: Builder, x: Value) -> Value:
    """As a rotary embedding does: by an angle for each place."""
    first, second = (b(ops.Slice((0, 0, at), (3, 8, 6)), x) for at in (0, 6))
    angles = np.arange(8, dtype=np.float32).reshape(8, 1)
    transposed = b(ops.Concat(2), b(ops.Neg(), second), first)
    return b(ops.Add(), b(ops.Mul(), x, np.cos(angles)), b(ops.Mul(), transposed, np.sin(angles)))


#: What is done to x [3, 8, 12] before the second axis of the result is cut.
CASES: dict[str, Callable[[Builder, Value], Value]] = {
    "dense": _dense,
    "scores": _scores,
    "rotated": _rotated,
    "moved": lambda b, x: b.transpose(b.reshape(b.transpose(x, (1, 0, 2)), (8, 3, 4, 3)), (1, 0, 2, 3)),
    "summed": lambda b, x: b(ops.Mean((2,), keepdims=True), b(ops.Mul(), x, x)),
    "repeated": lambda b, x: b.broadcast_to(b.reshape(b(ops.Sum((0, 2)), x), (1, 8, 1)), (3, 8, 5)),
    "chosen": lambda b, x: b(ops.Select(), b(ops.Greater(), x, 0.0), x, b(ops.Exp(), x)),
}


@given(case=st.sampled_from(sorted(CASES)), at=st.integers(0, 7), many=st.integers(1, 4), step=st.integers(1, 3))
def test_what_is_cut_is_the_same(case: str, at: int, many: int, step: int) -> None:
    """Whatever is cut from whatever was made; a quarter of the elements or less are all that is computed."""
    b = Builder()
    y = CASES[case](b, b.input("x", TensorType((3, 8, 12))))
    many = min(many, (7 - at) // step + 1)
    begin, size = (0, at, *(0,) * (len(y.shape) - 2)), (y.shape[0], many, *y.shape[2:])
    steps = (1, step, *(1,) * (len(y.shape) - 2)) if step > 1 else ()
    b.graph.outputs["y"] = b(ops.Neg(), b(ops.Slice(begin, size, steps), y))
    after = _checked(b.graph)
    makes_all = any(v.shape[:2] in ((3, 8), (8, 3)) for n in after.nodes for v in n.outputs if n.op != ops.Exp())
    assert makes_all == ((many - 1) * step + 1 > 2)


def test_what_else_is_read_is_made() -> None:
    """By others whole, by two slices what holds both; the constants that are met are cut as well."""
    b = Builder()
    x = b.input("x", TensorType((2, 32, 4)))
    made = b(ops.Add(), x, np.arange(128, dtype=np.float32).reshape(32, 4))
    other = b(ops.Exp(), x)
    for name, at in (("a", 3), ("b", 5)):
        b.graph.outputs[name] = b(ops.Slice((0, at, 0), (2, 2, 4)), made)
    b.graph.outputs["c"] = b(ops.Slice((0, 1, 0), (2, 2, 4)), other)
    after = _checked(b.graph)
    assert [node.output.shape for node in after.nodes if isinstance(node.op, ops.Add)] == [(2, 4, 4)]
    assert [node.output.shape for node in after.nodes if isinstance(node.op, ops.Exp)] == [(2, 2, 4)]
    b.graph.outputs["all"] = other
    assert (2, 32, 4) in [node.output.shape for node in _checked(b.graph).nodes if isinstance(node.op, ops.Exp)]


def test_what_trains_or_mixes_places_is_not_cut() -> None:
    """A trained table of places, running sums; a softmax along the last axis needs all of that, and no more rows."""
    b = Builder()
    x = b.input("x", TensorType((2, 8, 4)))
    table = Value(TensorType((8, 4)), "table")
    b.graph.parameters[table] = Parameter("table", np.ones((8, 4), np.float32))
    whole = [b(ops.Add(), x, table), b(ops.CumSum(1), x), b(ops.Reverse((1,)), x)]
    softmax = b(ops.Softmax(), b.transpose(x, (0, 2, 1)))
    for i, made in enumerate((*whole, softmax)):
        b.graph.outputs[f"y{i}"] = b(ops.Slice((0, 0, 0), (2, 1, 1)), made)
    made = {
        node.op.name: node.output.shape
        for node in propagate_slices(b.graph).nodes
        if not isinstance(node.op, ops.Slice)
    }
    assert made == dict.fromkeys(("Add", "CumSum", "Reverse"), (2, 8, 4)) | {
        "Transpose": (2, 1, 8),
        "Softmax": (2, 1, 8),
    }
    b.graph.outputs = {name: value for name, value in b.graph.outputs.items() if name != "y3"}
    graph = eliminate_dead_code(b.graph)
    assert propagate_slices(graph) is graph, "nothing is left to narrow"
