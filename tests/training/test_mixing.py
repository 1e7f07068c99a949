"""Rows that influence each other: found in the graph, and a short batch is refused there, never filled up."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
from converter.ir.evaluate import evaluate_outputs
from converter.passes.canonical import canonicalize
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.training.batch_dependence import mixing
from jax_frontend import Model, trace

BATCH = 4
RNG = np.random.default_rng(0)
W = RNG.standard_normal((3, 5)).astype(np.float32)
IMAGES = ("NHWC", "HWIO", "NHWC")


def model(fn: Callable[..., Any], shape: tuple[int, ...] = (3,), dtype: str = "float32") -> Model:
    """A model `fn(w, x)`."""
    return Model(lambda params, x: fn(params["w"], x), {"w": W}, [jax.ShapeDtypeStruct((1, *shape), dtype)])


def place(made: Model) -> str | None:
    graph = canonicalize(trace(made, BATCH))
    return mixing(graph, graph.outputs.values())


def conv(x: jax.Array, *kernel: int, **options: Any) -> jax.Array:
    """A 2-D convolution with a kernel of ones."""
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": IMAGES} | options
    return jax.lax.conv_general_dilated(x, jnp.ones(kernel), **options)


def looped(step: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """500 steps, which stay a loop."""
    return jax.lax.scan(lambda state, _: (step(state), None), x, None, 500)[0]


def counted(w: jax.Array, x: jax.Array) -> jax.Array:
    """A while whose end no row decides."""

    def test(state: Any) -> jax.Array:
        return (state[0] < 99) & (state[1] < 5)

    return jax.lax.while_loop(test, lambda s: (s[0] + 1, s[1] + s[0] % 2, s[2] * 0.9), (0, 0, x @ w))[2]


MIXED = {
    "mean over the batch": lambda w, x: x @ w - (x @ w).mean(0),
    "softmax over the batch": lambda w, x: jax.nn.softmax(x @ w, 0),
    "the first row for all": lambda w, x: x[:1] @ w + jnp.ones((x.shape[0], 5)),
    "largest of the batch": lambda w, x: x @ w / jnp.max(jnp.abs(x)),
    "similarities": lambda w, x: (x @ w) @ (x @ w).T,
    "running sum": lambda w, x: jnp.cumsum(x @ w, 0),
    "sorted": lambda w, x: jnp.sort(x @ w, 0),
    "neighbours": lambda w, x: x @ w + jnp.roll(x, 1, 0) @ w,
    "rolled": lambda w, x: jnp.roll(x @ w, 1, 0),
    "flipped": lambda w, x: jnp.flip(x @ w, 0),
    "pairs": lambda w, x: (x @ w).reshape(2, 10).sum(-1, keepdims=True).repeat(2, 0),
    "laid out anew": lambda w, x: (x @ w).reshape(5, 4).T,
    "known rows": lambda w, x: (x @ w)[np.array([1, 0, 3, 2])],
    "computed rows": lambda w, x: (x @ w)[jnp.argmax(x, 1)],
    "first row for all": lambda w, x: x @ w + (x @ w)[:1],
    "a loop of means": lambda w, x: looped(lambda s: jnp.tanh(s + (s - s.mean(0)) @ W.T @ w), x @ w),
    "a loop over rows": lambda w, x: jax.lax.scan(lambda s, row: (jnp.tanh(s + row @ w), s), jnp.zeros(5), x)[1],
    "a loop that one row ends": lambda w, x: jax.lax.while_loop(
        lambda s: (s * s).sum() < 99, lambda s: s * 1.01, x @ w
    ),
}
APART: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "sorted": (lambda w, x: jnp.sort(x @ w, 1), (3,)),
    "top": (lambda w, x: jax.lax.top_k(x @ w, 2)[0], (3,)),
    "take along the last axis": (lambda w, x: jnp.take_along_axis(x @ w, jnp.argsort(x @ w, 1), 1), (3,)),
    "take along": (lambda w, x: jnp.take_along_axis(x @ w, jnp.argmax(x @ w, 1)[:, None], 1), (6, 3)),
    "element of each row": (lambda w, x: (x @ w)[jnp.arange(BATCH), jnp.argmax(x, 1)], (3,)),
    "vector of each row": (lambda w, x: (x @ w)[jnp.arange(BATCH), jnp.argmax(x.sum(2), 1)], (6, 3)),
    "cut of each row": (
        lambda w, x: jax.vmap(lambda r: jax.lax.dynamic_slice_in_dim(r, jnp.argmax(r.sum(1)), 2, 0))(x @ w),
        (6, 3),
    ),
    "attention": (lambda w, x: jax.nn.softmax(jnp.einsum("bthc,bshc->bhts", x @ w, x @ w)), (6, 2, 3)),
    "time first": (lambda w, x: jnp.swapaxes(jnp.cumsum(jnp.swapaxes(x @ w, 0, 1), 0), 0, 1), (6, 3)),
    "time in the batch": (lambda w, x: (x.reshape(-1, 3) @ w).reshape(BATCH, 6, 5).sum(1), (6, 3)),
    "recurrent": (
        lambda w, x: jax.lax.scan(
            lambda state, t: (jnp.tanh(state + t @ w), None), jnp.zeros((BATCH, 5)), jnp.swapaxes(x, 0, 1)
        )[0],
        (6, 3),
    ),
    "recurrent, long": (
        lambda w, x: (
            jax.lax.scan(
                lambda state, t: (jnp.tanh(state + t @ w), state.sum(-1)),
                jnp.zeros((BATCH, 5)),
                jnp.swapaxes(x, 0, 1),
                reverse=True,
            )[1].T
        ),
        (600, 3),
    ),
    "row by row": (lambda w, x: jax.lax.map(lambda row: looped(lambda s: jnp.tanh(s + s @ W.T @ w), row @ w), x), (3,)),
    "until a count is reached": (counted, (3,)),
    "a state before the first step": (
        lambda w, x: jnp.stack([jnp.zeros((BATCH, 5)), x @ w], 1).sum(-1),
        (3,),
    ),
    "class token": (lambda w, x: jnp.concatenate([jnp.broadcast_to(w[:1], (BATCH, 1, 5)), x @ w], 1)[:, 0], (6, 3)),
    "dilated": (lambda w, x: conv(x, 3, 3, 3, 2, rhs_dilation=(2, 2)) * w[0, 0], (8, 8, 3)),
    "transposed": (
        lambda w, x: conv(x, 3, 3, 3, 2, lhs_dilation=(2, 2), padding=((1, 1), (1, 1))) * w[0, 0],
        (8, 8, 3),
    ),
    "in groups": (lambda w, x: conv(x, 3, 3, 2, 4, feature_group_count=2) * w[0, 0], (8, 8, 4)),
    "in depth": (
        lambda w, x: jax.lax.conv_general_dilated(
            x @ w, jnp.ones((2, 3, 3, 5, 2)), (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
        ),
        (4, 4, 4, 3),
    ),
}

#: Of rows of five numbers five others, each made of its own row.
WITHIN: dict[str, Callable[[jax.Array], jax.Array]] = {
    "running sum by a scan": lambda x: jax.lax.associative_scan(jnp.add, x, axis=1),
    "running affine map": lambda x: jax.lax.associative_scan(
        lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, x + 1), axis=1, reverse=True
    )[1],
    "running largest": lambda x: jax.lax.cummax(x, 1),
    "running product, features first": lambda x: jax.lax.cumprod(x.T, 0, reverse=True).T,
    "running logsumexp": lambda x: jax.lax.cumlogsumexp(x, 1),
    "with a part of none": lambda x: jnp.concatenate([x[:, 2:], x[:, :0], x[:, :2]], 1),
    "between zeros": lambda x: jax.lax.pad(x, 0.0, ((0, 0, 0), (0, 0, 1)))[:, 2:7],
    "summed by column": lambda x: jax.ops.segment_sum(x.T, np.array([4, 0, 0, 2, 4]), 5).T,
    "summed by number": lambda x: x + jax.ops.segment_sum(x, np.arange(BATCH), BATCH),
    "largest by column": lambda x: x + jax.ops.segment_max(x.T, np.array([1, 0, 0, 2, 4]), 5)[:3].sum(0)[:, None],
    "a filter of each row": lambda x: jax.vmap(lambda row: jnp.convolve(row, row[1:4], "same"))(x),
    "sorted": lambda x: jnp.sort(x, 1),
    "a column set": lambda x: x.at[:, 1].set(0.5),
    "the largest set": lambda x: jax.vmap(lambda row: row.at[jnp.argmax(row)].set(0.0))(x),
    "the two largest added to": lambda x: jax.vmap(lambda row: row.at[jax.lax.top_k(row, 2)[1]].add(1.0))(x),
    "the largest of each row set": lambda x: x.at[jnp.arange(BATCH), jnp.argmax(x, 1)].set(0.0),
    "a matrix of each row": lambda x: jnp.einsum("bi,bj->bij", x, x).sum(1),
}
#: And such that read another row.
ACROSS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "mean": lambda x: x - x.mean(0),
    "running": lambda x: jax.lax.cummax(x, 0),
    "scan": lambda x: jax.lax.associative_scan(jnp.add, x),
    "two rows in one": lambda x: x + jax.ops.segment_sum(x, np.array([0, 1, 0, 3]), BATCH),
    "one row twice": lambda x: x + jax.ops.segment_sum(x[np.array([0, 0, 2, 3])], np.arange(BATCH), BATCH),
    "the largest of each column set": lambda x: x.at[jnp.argmax(x, 0), jnp.arange(5)].set(0.0),
    "as one list": lambda x: jnp.cumsum(x.reshape(-1)).reshape(x.shape),
}


@pytest.mark.parametrize(
    "names",
    [(name,) for name in (*WITHIN, *ACROSS)]
    + [tuple(np.random.default_rng(seed).choice([*WITHIN, *WITHIN, *ACROSS], 3).tolist()) for seed in range(10)],
    ids=" ".join,
)
def test_the_rows_that_move_with_another_are_those_that_are_found(names: tuple[str, ...]) -> None:
    """One row is changed after the other, and it is seen which rows of the result move."""
    steps = [(WITHIN | ACROSS)[name] for name in names]

    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        return reduce(lambda value, step: jnp.tanh(step(value)), steps, x @ w)

    graph = canonicalize(trace(model(fn), BATCH))
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (BATCH, 3)).astype(np.float32)

    def result(rows: np.ndarray) -> np.ndarray:
        return evaluate_outputs(graph, [rows])[0]

    before = result(x)
    moved = [
        (result(np.where(np.arange(BATCH)[:, None] == row, by - x, x)) != before).any(1) & (np.arange(BATCH) != row)
        for row in range(BATCH)
        for by in (-2, 2)
    ]
    assert (mixing(graph, graph.outputs.values()) is not None) == np.any(moved)


@pytest.mark.parametrize("fn", MIXED.values(), ids=MIXED)
def test_rows_that_influence_each_other_are_found(fn: Callable[..., Any]) -> None:
    """In JAX, rows change with others; the analysis says so, and where."""
    x = np.random.default_rng(0).standard_normal((BATCH, 3)).astype(np.float32)
    first, last = (np.where(np.arange(BATCH)[:, None] == row, 3 - x, x) for row in (0, BATCH - 1))
    before, otherwise, then = (np.asarray(fn(W, jnp.asarray(rows))) for rows in (x, first, last))
    assert not (np.array_equal(before[1:], otherwise[1:]) and np.array_equal(before[:-1], then[:-1]))
    found = place(model(fn))
    assert found is not None
    assert "test_mixing.py" in found


@pytest.mark.parametrize(("fn", "shape"), APART.values(), ids=APART)
def test_rows_that_stand_alone_raise_no_alarm(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    assert place(model(fn, shape)) is None


def test_words_raise_no_alarm() -> None:
    def last_word(w: jax.Array, x: jax.Array) -> jax.Array:
        return w[x][:, -1]

    assert place(model(last_word, (6,), "int32")) is None


def centered(w: jax.Array, x: jax.Array) -> jax.Array:
    with jax.named_scope("center"):
        return x @ w - (x @ w).mean(0)


def contrastive(outputs: jax.Array, y: jax.Array) -> jax.Array:
    similar = outputs @ outputs.T - 1e9 * jnp.eye(len(y))
    return optax.softmax_cross_entropy(similar, (y == y.T) * (1 - jnp.eye(len(y))))


X, Y = RNG.standard_normal((2 * BATCH, 3)).astype(np.float32), RNG.standard_normal((2 * BATCH, 5)).astype(np.float32)


def test_short_batches_are_refused_and_whole_ones_are_right() -> None:
    program = converter.build(model(centered), loss="mse", optimizer=optax.sgd(0.1), batch=BATCH)
    said = [(note.status, "center" in note.subject) for note in program.notes]
    assert said == [("whole batches", True), ("takes 4 rows", False)]
    with TrainingSession(program.data) as session:
        refused: list[Callable[[], Any]] = [
            lambda: session.train(X[:3], Y[:3]),
            lambda: session.evaluate(X[:5], Y[:5]),
            lambda: session.infer(X[:1]),
            lambda: session.fit(X[:7], Y[:7], progress=False),
            lambda: session.fit(X, Y, weight=np.arange(8), progress=False),
            lambda: session.fit([(X[:3], Y[:3])], epochs=1, progress=False),
            lambda: session.fit(X, Y, validation=(X[:3], Y[:3]), progress=False),
        ]
        before = session.state()
        for call in refused:
            with pytest.raises(UsageError, match=r"rows of a batch influence each other .*center.* multiple of 4"):
                call()
        assert all(np.array_equal(before[name], array) for name, array in session.state().items())
        expected = np.concatenate([centered(W, X[:4]), centered(W, X[4:])])
        np.testing.assert_allclose(session.infer(X), expected, atol=1e-5)
        assert session.evaluate(X, Y)["loss"] == pytest.approx(float(np.square(expected - Y).mean()), rel=1e-5)
        loss = session.train(X[:4], Y[:4], learning_rate=0.1)
        assert loss == pytest.approx(float(np.square(expected[:4] - Y[:4]).mean()), rel=1e-5)
        assert len(session.fit(X, Y, epochs=2, progress=False)["loss"]) == 2


def test_a_loss_of_the_whole_batch_leaves_infer_as_it_is() -> None:
    y = jax.ShapeDtypeStruct((1, 1), "float32")
    program = converter.build(model(lambda w, x: x @ w), loss=contrastive, y=y, batch=BATCH, check=False)
    assert {name for name, s in program.manifest.signatures.items() if s.mixing} == {"train", "evaluate"}
    labels = np.array([[0], [0], [1], [1]], np.float32)
    with TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(X[:3]), X[:3] @ W, atol=1e-5)
        expected = float(contrastive(jnp.asarray(X[:4] @ W), jnp.asarray(labels)).mean())
        assert session.train(X[:4], labels) == pytest.approx(expected, rel=1e-5)
        with pytest.raises(UsageError, match="influence each other"):
            session.train(X[:3], labels[:3])


def test_parts_of_a_batch_are_refused_where_rows_influence_each_other() -> None:
    for options in ({"micro_batch": 2}, {"micro_batch": 1}, {"memory_budget": "12KiB"}):
        with pytest.raises(UsageError, match=r"center.*micro-batches would train something else"):
            converter.build(model(centered), loss="mse", batch=BATCH, **options)


def test_one_row_at_once_is_refused_where_the_loss_or_augmentation_mixes_rows() -> None:
    plain = model(lambda w, x: x @ w)
    with pytest.raises(UsageError, match="micro-batches would train something else"):
        converter.build(plain, loss="dice", batch=BATCH, micro_batch=1)
    y = jax.ShapeDtypeStruct((1, 1), "float32")
    with pytest.raises(UsageError, match="micro-batches would train something else"):
        converter.build(plain, loss=contrastive, y=y, batch=BATCH, micro_batch=1)
    with pytest.raises(UsageError, match="micro-batches would train something else"):
        converter.build(plain, loss="mse", augment=lambda x, key: x + x[::-1], batch=BATCH, micro_batch=1)


def test_features_of_the_whole_batch_are_not_kept() -> None:
    params = {"first": {"w": W}, "second": {"w": RNG.standard_normal((5, 5)).astype(np.float32)}}

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return centered(params["first"]["w"], x) @ params["second"]["w"]

    made = Model(apply, params, [jax.ShapeDtypeStruct((1, 3), "float32")])
    update = {"*": 0, "second/*": 1}
    with pytest.raises(UsageError, match=r"frozen layers \(.*center"):
        converter.build(made, loss="mse", update=update, batch=BATCH, signatures=("train", "features"))
