"""Attention of few queries: the same steps as in JAX, without products of all tokens with what makes keys or values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import converter
import jax_frontend
from converter.backend.prepare import absorb_projections
from converter.ir import Builder, Graph, TensorType, evaluate, ops, verify
from converter.runtime import TrainingSession
from tests.backend.prepare.test_blocks import EAGER
from tests.models.oracle import Oracle, assert_trains_as_in_jax

BATCH, TOKENS, WIDTH, HEADS = 2, 16, 24, 3
Params = dict[str, Any]
_RNG = np.random.default_rng(0)
PARAMS = {part: _RNG.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32) for part in "qkvo"}
BIASES = {f"{part}_bias": _RNG.normal(0, 0.3, WIDTH).astype(np.float32) for part in "qkv"}
BY_HEADS = {part: array.reshape(WIDTH, HEADS, -1) for part, array in PARAMS.items() if part in "qkv"}


def _heads(x: jax.Array) -> jax.Array:
    return x.reshape(*x.shape[:2], HEADS, -1)


def _weights(q: jax.Array, k: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * (WIDTH // HEADS) ** -0.5)


def _mixed(weights: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _out(p: Params, x: jax.Array, mixed: jax.Array) -> jax.Array:
    return (x[:, :1] + mixed.reshape(len(x), 1, -1) @ p["o"])[:, 0, :5]


def _first_token(p: Params, x: jax.Array) -> jax.Array:
    q, k, v = (_heads(x @ p[part] + p.get(f"{part}_bias", 0.0)) for part in "qkv")
    return (x + _mixed(_weights(q, k), v).reshape(x.shape) @ p["o"])[:, 0, :5]


def _jax_nn(p: Params, x: jax.Array) -> jax.Array:
    q, k, v = (_heads(x @ p[part] + p[f"{part}_bias"]) for part in "qkv")
    return _out(p, x, jax.nn.dot_product_attention(q[:, -1:], k, v))


def _einsum(p: Params, x: jax.Array) -> jax.Array:
    """Matrices that have heads, as Flax and Keras keep them."""
    q, k, v = (jnp.einsum("bsd,dhe->bshe", x, p[part]) for part in "qkv")
    return _out(p, x, _mixed(_weights(q[:, :1], k), v))


def _of_dropped(p: Params, x: jax.Array) -> jax.Array:
    """Weights that do not sum up to 1, as behind dropout: the bias of the values counts less."""
    q, k, v = (_heads(x @ p[part] + p[f"{part}_bias"]) for part in "qkv")
    dropped = _weights(q[:, :1], k) * np.linspace(0, 2, TOKENS, dtype=np.float32)
    return _out(p, x, _mixed(dropped, v))


def _rotated(p: Params, x: jax.Array) -> jax.Array:
    """Keys that depend on their place are not linear in x alone: only values are absorbed."""
    q, k, v = (_heads(x @ p[part]) for part in "qkv")
    k = k * np.cos(np.arange(TOKENS, dtype=np.float32))[:, None, None]
    return _out(p, x, _mixed(_weights(q[:, :1], k), v))


def _pooled(p: Params, x: jax.Array) -> jax.Array:
    """A learned query of one head."""
    query = jnp.broadcast_to(p["query"], (len(x), 1, WIDTH))
    weights = jax.nn.softmax(query @ (x @ p["k"] + p["k_bias"]).mT)
    return _out(p, x, weights @ (x @ p["v"] + p["v_bias"]))


_ALL = PARAMS | BIASES
#: Apply function, parameters, and how many matrices still meet all tokens.
SPELLED: dict[str, tuple[Callable[[Params, jax.Array], jax.Array], Params, int]] = {
    "first token": (_first_token, PARAMS, 0),
    "biases": (_first_token, _ALL, 0),
    "last token, jax.nn": (_jax_nn, _ALL, 0),
    "einsum": (_einsum, BY_HEADS | {"o": PARAMS["o"]}, 0),
    "dropped": (_of_dropped, _ALL, 0),
    "rotated": (_rotated, PARAMS, 1),
    "pooled": (_pooled, {k: v for k, v in _ALL.items() if k not in ("q", "q_bias")} | {"query": BIASES["q_bias"]}, 0),
}


def _of_all_tokens(graph: Graph) -> int:
    """Products of all tokens with a matrix of [WIDTH, WIDTH], the step's gradients included."""
    sizes = [n.op.cost(tuple(v.type for v in n.inputs), (n.output.type,)).flops for n in graph.nodes if n.outputs]
    return sum(flops >= 2 * BATCH * TOKENS * WIDTH * WIDTH for flops in sizes)


@pytest.mark.parametrize("trained", ["all", "o"])
@pytest.mark.parametrize("spelled", SPELLED)
def test_each_spelling_trains_as_in_jax(spelled: str, trained: str) -> None:
    apply, params, left = SPELLED[spelled]
    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, TOKENS, WIDTH), np.float32)])
    scheme = "full" if trained == "all" else converter.UpdateScheme("late", {"o": 1.0})
    rng, rule = np.random.default_rng(1), optax.sgd(1.0)
    x, y = rng.normal(0, 1, (BATCH, TOKENS, WIDTH)).astype(np.float32), np.array([1, 3], np.int32)
    program = converter.build(model, optimizer=rule, update=scheme, batch=BATCH, target=EAGER)
    passes = 1 if trained == "o" else 2  # x is given: it has no gradient
    assert _of_all_tokens(program.signatures["train"]) == left * passes
    assert _of_all_tokens(program.signatures["evaluate"]) == left
    assert_trains_as_in_jax(program, model, rule, x, y)


def _graph(draw: Callable[..., Any]) -> Graph:
    """Queries, or weights of attention, meet what a matrix makes of tokens, in any of the ways to write it."""
    batch, heads, tokens, size, features, queries = (draw(st.integers(1, most)) for most in (3, 3, 9, 4, 9, 3))
    scores, first, transposed, by_heads = (draw(st.booleans()) for _ in range(4))
    b, rng = Builder(), np.random.default_rng(draw(st.integers(0, 99)))
    x = b.input("x", TensorType((batch, tokens, features)))
    shape = (heads * size, features) if transposed else (features, heads * size)
    array = rng.normal(0, 1, shape).astype(np.float32)
    w = b.constant(array) if draw(st.booleans()) else b.input("w", TensorType(shape))
    made = b(ops.MatMul(adj_y=transposed), x, w)
    bias = b.input("bias", TensorType((heads * size,)))
    biased = draw(st.booleans())
    if biased and not by_heads:
        made = b(ops.Add(), made, bias)
    made = b.reshape(made, (batch, tokens, heads, size))
    if biased and by_heads:
        made = b(ops.Add(), b.reshape(bias, (heads, size)), made)
    tokens_last = draw(st.booleans())
    made = b(ops.Transpose((0, 2, 3, 1) if tokens_last else (0, 2, 1, 3)), made)
    contracted, summed_last = (size if scores else tokens), scores != tokens_last
    swapped = draw(st.booleans())
    a = b.input("a", TensorType((batch, heads, *((contracted, queries) if swapped else (queries, contracted)))))
    if first:
        result = b(ops.MatMul(not summed_last, not swapped), made, a)
    else:
        result = b(ops.MatMul(swapped, summed_last), a, made)
    b.graph.outputs = {"y": result} | ({"all": made} if draw(st.integers(0, 4)) == 0 else {})
    return b.graph


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_way_to_write_it_gives_the_same_numbers_by_no_more_products(data: st.DataObject) -> None:
    graph = _graph(data.draw)
    absorbed = absorb_projections(graph, EAGER)
    verify(absorbed)
    rng = np.random.default_rng(0)
    given_ = {v.name: rng.normal(0, 1, v.shape).astype(np.float32) for v in graph.inputs}
    (wanted, _), (found, _) = evaluate(graph, given_), evaluate(absorbed, given_)
    assert wanted.keys() == found.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-4)
    if "all" in wanted:  # what is computed anyhow
        assert [node.op for node in absorbed.nodes] == [node.op for node in graph.nodes]


@pytest.mark.parametrize(("name", "queries", "products"), [("litert-2", 1, 0), ("litert-2", 64, 4), ("gpu", 1, 2)])
def test_it_is_done_where_that_saves_time(name: str, queries: int, products: int) -> None:
    """Of as many queries nothing is saved; what engines of accelerators gain by it nobody measured.

    With them, their own projection and what is mixed are as large as keys and values.
    """
    tokens, width = 64, 32

    def apply(p: Params, x: jax.Array) -> jax.Array:
        q, k, v = (x @ p[part] for part in "qkv")
        return jax.nn.dot_product_attention(q[:, :queries, None], k[:, :, None], v[:, :, None]).sum((1, 2))

    params = {part: np.eye(width, dtype=np.float32) for part in "qkv"}
    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, tokens, width), np.float32)])
    program = converter.build(model, batch=4, target=name, signatures=("train", "evaluate"), check=False)
    of_all = [n for n in program.signatures["evaluate"].nodes if n.output.type.size == 4 * tokens * width]
    assert sum(n.op.name in ("BatchMatmul", "FullyConnected") for n in of_all) == products


def test_keras_attention_over_one_query_trains_as_in_keras() -> None:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((TOKENS, WIDTH))
    mixed = keras.layers.MultiHeadAttention(HEADS, 8)(inputs[:, :1], inputs)
    model = keras.Model(inputs, keras.layers.Dense(5)(keras.layers.Flatten()(mixed)))
    rng, rule = np.random.default_rng(1), optax.adam(1.0)
    x, y = rng.normal(0, 1, (BATCH, TOKENS, WIDTH)).astype(np.float32), np.array([1, 3], np.int32)
    program = converter.build(model, optimizer=rule, batch=BATCH, target=EAGER)
    assert _of_all_tokens(program.signatures["train"]) == 0
    oracle = Oracle(model, {row.parameter: row.fraction for row in program.table}, rule)
    with TrainingSession(program.data) as session:
        for _ in range(4):
            wanted = oracle.train(x, y, 0.01, np.ones(BATCH, np.float32))
            assert session.train(x, y, learning_rate=0.01) == pytest.approx(wanted, rel=1e-5)
