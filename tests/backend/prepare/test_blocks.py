"""Masked attention in blocks: the same function and the same steps, fewer products, however the mask is spelled."""

from collections.abc import Callable
from dataclasses import replace
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
from converter.backend.prepare import attend_in_blocks
from converter.backend.prepare.visible import Visible
from converter.backend.targets import target
from converter.ir import Builder, Graph, TensorType, evaluate, evaluate_values, ops, verify
from converter.runtime import TrainingSession
from tests.models.oracle import Oracle, assert_trains_as_in_jax

LENGTH, WIDTH, HEADS, BATCH = 16, 12, 3, 2
_TABLE = target("litert-2")
_FREE = dict.fromkeys(_TABLE.per_byte, 1e-9)
#: Products alone cost much: whatever saves one is cut.
EAGER = replace(_TABLE, per_operator=0.0, lanes=1, rows=1, per_byte=_FREE, per_byte_beyond=_FREE)
CAUSAL = np.tri(LENGTH, dtype=bool)
WINDOW = CAUSAL & ~np.tri(LENGTH, k=-4, dtype=bool)
SCALE = (WIDTH // HEADS) ** -0.5


def _scores(q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.einsum("bqhd,bkhd->bhqk", q, k) * SCALE


def _mixed(weights: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _softmax_of(masked: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    return lambda q, k, v: _mixed(jax.nn.softmax(masked(_scores(q, k))), v)


def _zeroed(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """As Keras' Softmax layer does: weights are hidden again behind the softmax."""
    weights = jax.nn.softmax(jnp.where(CAUSAL, _scores(q, k), -1e9))
    return _mixed(jnp.where(CAUSAL, weights, 0.0), v)


SPELLED: dict[str, Callable[..., jax.Array]] = {
    "added": _softmax_of(lambda s: s + np.where(CAUSAL, 0, -1e9).astype(np.float32)),
    "chosen": _softmax_of(lambda s: jnp.where(CAUSAL, s, jnp.finfo(s.dtype).min)),
    "infinite": _softmax_of(lambda s: jnp.where(CAUSAL, s, -jnp.inf)),
    "scaled behind": _softmax_of(lambda s: (s / SCALE + np.where(CAUSAL, 0, -1e9)) / 2.0),
    "as in GPT-2": _softmax_of(lambda s: s * CAUSAL - 1e10 * (1.0 - CAUSAL.astype(np.float32))),
    "window": _softmax_of(lambda s: jnp.where(WINDOW, s, -1e9)),
    "jax.nn": lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
    "zeroed": _zeroed,
}


def _model(attention: Callable[..., jax.Array]) -> jax_frontend.Model:
    rng = np.random.default_rng(0)
    params = {part: rng.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32) for part in "qkvo"}

    def apply(p: Any, x: jax.Array) -> jax.Array:
        q, k, v = ((x @ p[part]).reshape(*x.shape[:2], HEADS, -1) for part in "qkv")
        return (x + attention(q, k, v).reshape(x.shape) @ p["o"]).mean(1)[:, :5]

    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, LENGTH, WIDTH), np.float32)])


def _products(graph: Graph) -> int:
    """Multiply-adds of the products of attention."""
    products = [n for n in graph.nodes if n.op.name in ("BatchMatmul", "MatMul") and len(n.output.shape) > 3]
    return sum(n.op.cost(tuple(v.type for v in n.inputs), (n.output.type,)).flops // 2 for n in products)


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(0, 1, (BATCH, LENGTH, WIDTH)).astype(np.float32), np.arange(BATCH).astype(np.int32)


@pytest.mark.parametrize("spelled", SPELLED)
def test_each_spelling_trains_as_in_jax_by_fewer_products(spelled: str) -> None:
    model, rule, (x, y) = _model(SPELLED[spelled]), optax.sgd(1.0), _data()
    program = converter.build(model, optimizer=rule, batch=BATCH, target=EAGER)
    whole = 2 * BATCH * HEADS * LENGTH * LENGTH * WIDTH // HEADS
    assert _products(program.signatures["infer"]) == whole
    # Eight blocks of 2 queries see 2, 4, ... 16 of 16 keys; of a window of 4 tokens 2, 4 and then 5 at once.
    seen = (2 + 4 + 6 * 5) / 128 if spelled == "window" else 72 / 128
    assert _products(program.signatures["evaluate"]) == round(whole * seen)
    assert _products(program.signatures["train"]) == round(3 * whole * seen)
    assert_trains_as_in_jax(program, model, rule, x, y)


@pytest.mark.parametrize("padding", [False, True], ids=["causal", "and padding"])
def test_keras_attention_is_cut(padding: bool) -> None:
    """Padding, known at run time only, may hide all that the causal mask leaves of a row: all keys weigh alike then."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(20, WIDTH, mask_zero=padding)(ids)
    x = keras.layers.MultiHeadAttention(HEADS, 4)(x, x, use_causal_mask=True)
    model = keras.Model(ids, keras.layers.Dense(5)(keras.ops.mean(x, 1)))
    rule = optax.sgd(1.0)
    program = converter.build(model, optimizer=rule, batch=BATCH, target=EAGER)
    share = _products(program.signatures["evaluate"]) / _products(program.signatures["infer"])
    assert share == 1 if padding else share < 0.6
    oracle = Oracle(model, {row.parameter: row.fraction for row in program.table}, rule)
    tokens, y = np.random.default_rng(2).integers(1, 20, (BATCH, LENGTH)).astype(np.int32), _data()[1]
    tokens[0, :6] = tokens[1, 9:] = 0
    # The losses alone: the bias of keys has no gradient, so that it is nothing but what was rounded.
    with TrainingSession(program.data) as session:
        for _ in range(4):
            wanted = oracle.train(tokens, y, 0.1, np.ones(BATCH, np.float32))
            assert session.train(tokens, y, learning_rate=0.1) == pytest.approx(wanted, rel=1e-5)


#: Masks of which not all is known when a program is made, beside a causal one: of scores and whether a key is padding.
JOINED: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "and": lambda s, pad: jnp.where(CAUSAL & ~pad, s, -1e9),
    "or": lambda s, pad: jnp.where(pad | ~CAUSAL, jnp.finfo(s.dtype).min, s),
    "one by one": lambda s, pad: jnp.where(CAUSAL, jnp.where(pad, -1e9, s), -1e9),
    "added": lambda s, pad: s + jnp.where(CAUSAL, 0, -1e9) + pad * -1e9,
    "taken away": lambda s, pad: s - pad * 1e9 + np.where(CAUSAL, 0, -1e9).astype(np.float32),
    "least": lambda s, pad: jnp.minimum(jnp.where(pad, -1e9, jnp.inf), s) + jnp.where(CAUSAL, 0, -1e9),
    "logarithm": lambda s, pad: jnp.maximum(jnp.log(1.0 - pad), -1e9) + jnp.where(CAUSAL, s, -1e9),
    "divided": lambda s, pad: jnp.where(CAUSAL, s - pad / 1e-9, -1e9),
    "chosen from": lambda s, pad: jnp.where(CAUSAL, s + jnp.array([0, -1e9])[pad.astype(int)], -1e9),
}


@pytest.mark.parametrize("joined", JOINED)
def test_a_mask_that_is_not_known_may_hide_a_whole_row(joined: str) -> None:
    """The first tokens are padding: of their rows a causal mask leaves nothing else."""

    def apply(p: Any, x: jax.Array) -> jax.Array:
        q, k, v = ((x @ p[part]).reshape(*x.shape[:2], HEADS, -1) for part in "qkv")
        masked = JOINED[joined](_scores(q, k), (x[:, :, 0] == 0)[:, None, None])
        return (x + _mixed(jax.nn.softmax(masked), v).reshape(x.shape) @ p["o"]).mean(1)[:, :5]

    model, rule, (x, y) = replace(_model(SPELLED["added"]), apply=apply), optax.sgd(1.0), _data()
    x[:, :6, 0] = 0
    assert_trains_as_in_jax(converter.build(model, optimizer=rule, batch=BATCH, target=EAGER), model, rule, x, y)


def test_a_mask_may_be_an_input_or_train() -> None:
    """What a caller passes, or a mask that trains, may hide anything."""

    def added(p: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
        q, k, v = ((x @ p[part]).reshape(*x.shape[:2], HEADS, -1) for part in "qkv")
        masked = _scores(q, k) + p["learned"] + mask[:, None] + np.where(CAUSAL, 0, -1e9).astype(np.float32)
        return (x + _mixed(jax.nn.softmax(masked), v).reshape(x.shape) @ p["o"]).mean(1)[:, :5]

    plain = _model(SPELLED["added"])
    x, y = _data()
    for given_, learned in ((-1e9, 0.0), (0.0, -1e9)):
        params = {**plain.params, "learned": np.zeros((LENGTH, LENGTH), np.float32)}
        params["learned"][:, :6] = learned
        inputs = [*plain.inputs, jax.ShapeDtypeStruct((1, LENGTH, LENGTH), np.float32)]
        model = replace(plain, apply=added, params=params, inputs=inputs)
        mask = np.zeros((BATCH, LENGTH, LENGTH), np.float32)
        mask[:, :, :6] = given_
        program = converter.build(model, batch=BATCH, target=EAGER)
        wanted = optax.softmax_cross_entropy_with_integer_labels(added(params, x, mask), y).mean()
        with TrainingSession(program.data) as session:
            assert session.train((x, mask), y, learning_rate=0.1) == pytest.approx(float(wanted), rel=1e-5)


def _graph(mask: np.ndarray, added: bool, read: bool = False) -> Graph:
    """softmax(q k' masked) v of [batch, heads, queries or keys, 4]."""
    b = Builder()
    queries, keys = mask.shape[-2:]
    q, k, v = (b.input(name, TensorType((2, 3, n, 4))) for name, n in (("q", queries), ("k", keys), ("v", keys)))
    scores = b(ops.MatMul(adj_y=True), q, k)
    low = np.where(mask, 0, -1e9).astype(np.float32)
    scores = b(ops.Add(), scores, low) if added else b(ops.Select(), b.constant(mask), scores, -1e9)
    weights = b(ops.Softmax(), scores)
    b.graph.outputs = {"y": b(ops.MatMul(), weights, v)} | ({"weights": weights} if read else {})
    return b.graph


def _given(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {v.name: rng.normal(0, 3, v.shape).astype(np.float32) for v in graph.inputs}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_mask_gives_the_same_numbers(data: st.DataObject) -> None:
    """Masks of any pattern, alike in all heads or not, of rows that see nothing, too, which see all alike then."""
    queries, keys = data.draw(st.integers(1, 9), "queries"), data.draw(st.integers(1, 9), "keys")
    heads = data.draw(st.sampled_from([(), (1, 1), (3,), (2, 1)]), "heads")
    share, seed = data.draw(st.sampled_from([0.1, 0.5, 0.9])), data.draw(st.integers(0, 999))
    mask = np.random.default_rng(seed).random((*heads, queries, keys)) < share
    graph = _graph(mask, data.draw(st.booleans(), "added"), data.draw(st.booleans(), "read"))
    cut = attend_in_blocks(graph, EAGER)
    verify(cut)
    given_ = _given(graph, seed)
    (wanted, _), (found, _) = evaluate(graph, given_), evaluate(cut, given_)
    assert wanted.keys() == found.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)
    values = evaluate_values(graph, given_)
    known = Visible(graph)
    for value, array in values.items():
        zero = known.zero(value)
        assert zero is None or not array[np.broadcast_to(zero, array.shape)].any()


def test_weights_that_are_a_result_are_computed_once() -> None:
    graph = attend_in_blocks(_graph(CAUSAL, added=True, read=True), EAGER)
    assert sum(isinstance(node.op, ops.Softmax) for node in graph.nodes) == 1


@pytest.mark.parametrize(("name", "length", "blocks"), [("litert-2", 8, 1), ("litert-2", 512, 8), ("gpu", 512, 1)])
def test_it_is_cut_where_that_saves_time(name: str, length: int, blocks: int) -> None:
    """Few tokens are not worth operators of their own, and what engines of accelerators gain by it nobody measured."""

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    model = replace(_model(attention), inputs=[jax.ShapeDtypeStruct((1, length, WIDTH), np.float32)])
    program = converter.build(model, batch=1, target=name, signatures=("train",), check=False)
    softmaxes = [node for node in program.signatures[program.manifest.step].nodes if node.op.name == "Softmax"]
    assert len(softmaxes) == blocks + 1  # and that of the loss


def test_nothing_else_is_touched() -> None:
    for mask in (np.ones((8, 8), bool), np.tri(8, k=7, dtype=bool)):
        graph = _graph(mask, added=False)
        assert attend_in_blocks(graph, EAGER) is graph
