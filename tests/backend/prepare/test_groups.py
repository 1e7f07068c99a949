"""Grouped queries: however they are written, keys are repeated along an axis, and a mask cuts queries into blocks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import converter
import jax_frontend
from converter.backend.prepare import attend_in_blocks, with_independent_groups
from converter.backend.prepare.visible import Visible
from converter.ir import Graph, evaluate_values, verify
from converter.passes.canonical import canonicalize
from converter.passes.layout.views import moves_data
from tests.backend.prepare.test_blocks import EAGER
from tests.jax_frontend.common import traced
from tests.models.oracle import assert_trains_as_in_jax

LENGTH, KEY_HEADS, EACH, SIZE, BATCH = 16, 2, 3, 4, 2
WIDTH, KEYS = KEY_HEADS * EACH * SIZE, KEY_HEADS * SIZE
SEEN = np.tri(LENGTH, dtype=bool)
WINDOW = SEEN & ~np.tri(LENGTH, k=-4, dtype=bool)

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def _weights(scores: jax.Array, seen: np.ndarray = SEEN) -> jax.Array:
    return jax.nn.softmax(jnp.where(seen, scores / np.sqrt(SIZE).astype(np.float32), -1e9))


def _einsum(scores: str, mixed: str, seen: np.ndarray = SEEN, shape: tuple[int, ...] = (KEY_HEADS, EACH)) -> Attention:
    """q [B, L, heads, size] by axes of heads in some order; k, v [B, L, heads of keys, size]."""

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        weights = _weights(jnp.einsum(scores, q.reshape(*q.shape[:2], *shape, SIZE), k), seen)
        return jnp.einsum(mixed, weights, v)

    return attention


def _multiplied(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """As PyTorch code does that repeats keys by broadcasting."""
    q = q.reshape(*q.shape[:2], KEY_HEADS, EACH, SIZE).transpose(0, 2, 3, 1, 4)
    k, v = (t.transpose(0, 2, 1, 3)[:, :, None] for t in (k, v))
    return (_weights(q @ k.swapaxes(-1, -2)) @ v).transpose(0, 3, 1, 2, 4)


def _of_heads(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Masked as [B, heads, queries, keys], as libraries that share code with plain attention do."""
    grouped = q.reshape(*q.shape[:2], KEY_HEADS, EACH, SIZE)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", grouped, k).reshape(len(q), -1, LENGTH, LENGTH)
    weights = _weights(scores).reshape(len(q), KEY_HEADS, EACH, LENGTH, LENGTH)
    return jnp.einsum("bkgqs,bskd->bqkgd", weights, v)


def _one_head(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """One head of keys for all queries."""
    k, v = k[:, :, 0], v[:, :, 0]
    return jnp.einsum("bhqs,bsd->bqhd", _weights(jnp.einsum("bqhd,bsd->bhqs", q, k)), v)


def _mapped(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The queries of a group by vmap."""

    def one(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.einsum("bkqs,bskd->bqkd", _weights(jnp.einsum("bqkd,bskd->bkqs", q, k)), v)

    grouped = q.reshape(*q.shape[:2], KEY_HEADS, EACH, SIZE)
    return jax.vmap(one, in_axes=(3, None, None), out_axes=3)(grouped, k, v)


def _repeated(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    k, v = (jnp.repeat(t, EACH, 2) for t in (k, v))
    return jnp.einsum("bhqs,bshd->bqhd", _weights(jnp.einsum("bqhd,bshd->bhqs", q, k)), v)


SPELLED: dict[str, Attention] = {
    "as examples/llama.py": _einsum("bqkgd,bskd->bkgqs", "bkgqs,bskd->bqkgd"),
    "window": _einsum("bqkgd,bskd->bkgqs", "bkgqs,bskd->bqkgd", WINDOW),
    "jax.nn": lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
    "jax.nn with a mask": lambda q, k, v: jax.nn.dot_product_attention(q, k, v, mask=SEEN[None, None]),
    "groups first": _einsum("bqgkd,bskd->bgkqs", "bgkqs,bskd->bqgkd", shape=(EACH, KEY_HEADS)),
    "heads of keys first": _einsum("bqgkd,bskd->bkgqs", "bkgqs,bskd->bqgkd", shape=(EACH, KEY_HEADS)),
    "multiplied": _multiplied,
    "of heads": _of_heads,
    "one head of keys": _one_head,
    "mapped": _mapped,
    "repeated": _repeated,
}
QUICK = ("jax.nn", "of heads", "one head of keys")


def _model(attention: Attention) -> jax_frontend.Model:
    rng = np.random.default_rng(0)
    columns = {"q": WIDTH, "k": KEYS, "v": KEYS, "o": WIDTH}
    params = {part: rng.normal(0, WIDTH**-0.5, (WIDTH, n)).astype(np.float32) for part, n in columns.items()}

    def apply(p: Any, x: jax.Array) -> jax.Array:
        q, k, v = ((x @ p[part]).reshape(*x.shape[:2], -1, SIZE) for part in "qkv")
        return (x + attention(q, k, v).reshape(x.shape) @ p["o"]).mean(1)[:, :5]

    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, LENGTH, WIDTH), np.float32)])


def _products(graph: Graph) -> int:
    """Multiply-adds of the products of attention."""
    products = [n for n in graph.nodes if n.op.name == "BatchMatmul" and len(n.inputs[1].shape) > 2]
    return sum(n.op.cost(tuple(v.type for v in n.inputs), (n.output.type,)).flops // 2 for n in products)


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(0, 1, (BATCH, LENGTH, WIDTH)).astype(np.float32), np.arange(BATCH).astype(np.int32)


@pytest.mark.parametrize(
    "spelled", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SPELLED]
)
def test_each_spelling_trains_as_in_jax_by_fewer_products(spelled: str) -> None:
    model, rule, (x, y) = _model(SPELLED[spelled]), optax.sgd(1.0), _data()
    program = converter.build(model, optimizer=rule, batch=BATCH, target=EAGER)
    whole = 2 * BATCH * WIDTH * LENGTH * LENGTH
    assert _products(program.signatures["infer"]) == whole
    seen = (2 + 4 + 6 * 5) / 128 if spelled == "window" else 72 / 128
    assert _products(program.signatures["evaluate"]) == round(whole * seen)
    assert _products(program.signatures["train"]) == round(3 * whole * seen)
    assert_trains_as_in_jax(program, model, rule, x, y)


@given(st.data())
@settings(max_examples=200, deadline=None)
@pytest.mark.slow
def test_any_order_of_axes_gives_the_same_numbers(data: st.DataObject) -> None:
    """Axes of q, k, v, the scores and the result in any order, any mask, none of it larger than the others or all."""
    sizes = {axis: data.draw(st.sampled_from(some), axis) for axis, some in _SIZES.items()}
    q, k, v, scores, mixed = (
        "".join(data.draw(st.permutations(axes), name))
        for name, axes in (("q", "bqkgd"), ("k", "bskd"), ("v", "bske"), ("scores", "bkgqs"), ("mixed", "bqkge"))
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 999), "seed"))
    seen = rng.random((sizes["q"], sizes["s"])) < data.draw(st.sampled_from([0.2, 0.5, 1.0]), "share")
    seen = np.tri(*seen.shape, dtype=bool) if data.draw(st.booleans(), "causal") else seen
    order = scores.replace("s", "") + "s"  # what a softmax goes over is last

    def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        shape = [sizes[axis] if axis in "qs" else 1 for axis in order]
        weights = jax.nn.softmax(jnp.where(seen.reshape(shape), jnp.einsum(f"{q},{k}->{order}", query, key), -1e9))
        return jnp.einsum(f"{order},{v}->{mixed}", weights, value)

    arrays = [rng.normal(0, 1, [sizes[axis] for axis in axes]).astype(np.float32) for axes in (q, k, v)]
    graph = canonicalize(traced(attention, *arrays))
    separate = with_independent_groups(graph, EAGER)
    cut = attend_in_blocks(separate, EAGER)
    inputs = {x.name: array for x, array in zip(graph.inputs, arrays, strict=True)}
    wanted = np.asarray(attention(*arrays))
    for made in (separate, cut):
        verify(made)
        values, known = evaluate_values(made, inputs), Visible(made)
        np.testing.assert_allclose(values[made.outputs["output"]], wanted, rtol=1e-4, atol=1e-5)
        for value, array in values.items():
            zero = known.zero(value)
            assert zero is None or not array[np.broadcast_to(zero, array.shape)].any()


_SIZES = {"b": (1, 2), "q": (1, 4, 6, 8), "s": (4, 6, 8), "k": (1, 2), "g": (1, 3, 9), "d": (1, 2, 5), "e": (2, 5)}


def test_scores_are_not_moved() -> None:
    model = _model(SPELLED["as examples/llama.py"])
    graph = canonicalize(traced(lambda x: model.apply(model.params, x), _data()[0]))
    scores = BATCH * WIDTH // SIZE * LENGTH * LENGTH

    def moved(graph: Graph) -> list[int]:
        return [n.output.type.size for n in graph.nodes if moves_data(n)]

    assert scores in moved(graph)
    assert max(moved(with_independent_groups(graph, EAGER))) < scores
