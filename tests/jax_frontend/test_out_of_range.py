"""Indices out of range, in the stock interpreter: values and gradients are JAX's by each mode, known or fed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import converter

RNG = np.random.default_rng(0)
X, X3, U = (RNG.standard_normal(shape).astype(np.float32) for shape in ((4, 5), (2, 3, 4), (5, 5)))
N, J = np.array([1, -1, 7, -9, 3], np.int32), np.array([2, -2, 9, 0], np.int32)
R = np.array([[1, -1], [7, -9], [0, 3], [5, 4]], np.int32)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "x[i]": (lambda x, i: x[i], (X, N)),
    "x[:, i]": (lambda x, i: x[:, i], (X, N)),
    "x[i, j]": (lambda x, i: x[i[:4], i[1:]], (X, N)),
    "x[arange, i]": (lambda x, i: x[jnp.arange(4), i[:4]], (X, N)),
    "x[n]": (lambda x, i: x[i[3]], (X, N)),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i[2], i[3]), (2, 3)), (X, N)),
    "dynamic_update_slice": (lambda x, i, u: lax.dynamic_update_slice(x, u[:2, :3], (i[2], i[3])), (X, N, U)),
    "one_hot": (lambda x, i: jax.nn.one_hot(i, 4) @ x, (X, N)),
    "switch": (lambda x, i: lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x), (X, np.int32(7))),
    "choose": (lambda x, i: jnp.choose(i, [x[0], x[1]], mode="wrap"), (X, N)),
    "put": (lambda x, i, u: jnp.put(x, i, u[0], inplace=False), (X, 3 * N, U)),
    "segment_sum": (lambda x, i: jax.ops.segment_sum(x, i[:4], num_segments=3), (X, N)),
    "eye[i]": (lambda x, i: jnp.eye(4)[i] @ x, (X, N)),
    "integers": (lambda x, i: jnp.take((x * 100).astype(np.int32), i, axis=0), (X, N)),
    "bools": (lambda x, i: jnp.take(x > 0, i, axis=0), (X, N)),
    "a number given": (lambda x, i: x.at[i].get(mode="fill", fill_value=3.0), (X, N)),
    "hidden behind": (
        lambda x, i: jnp.where(((i >= -4) & (i < 4))[:, None], jnp.log1p(jnp.take(x, i, axis=0) ** 2), 0),
        (X, N),
    ),
    "labels": (lambda x, i: optax.softmax_cross_entropy_with_integer_labels(x, i), (X, J)),
    "log_softmax": (lambda x, i: -jax.nn.log_softmax(x)[jnp.arange(4), i], (X, J)),
    "labels, hidden": (
        lambda x, i: jnp.where(i < 5, -jnp.take_along_axis(jax.nn.log_softmax(x), i[:, None], 1)[:, 0], 0),
        (X, J),
    ),
}
for mode in (None, "fill", "clip", "wrap"):
    for axis in (None, 0, 1):
        CASES[f"take {axis} {mode}"] = lambda x, i, a=axis, m=mode: jnp.take(x, i, axis=a, mode=m), (X, 5 * N)
for mode in (None, "clip", "promise_in_bounds"):
    along: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "last": (lambda x, i, m=mode: jnp.take_along_axis(x, i, 1, mode=m), (X, R)),
        "first": (lambda x, i, m=mode: jnp.take_along_axis(x, jnp.tile(i[:, :1], 5), 0, mode=m), (X, R)),
        "middle": (lambda x, i, m=mode: jnp.take_along_axis(x, i[:2, :, None], 1, mode=m), (X3, R)),
    }
    CASES |= {f"take_along_axis {place} {mode}": case for place, case in along.items()}
for mode, way in itertools.product((None, "clip", "drop"), ("get", "set", "add", "subtract", "multiply", "max", "min")):

    def rows(x: Any, i: Any, u: Any, m: Any = mode, w: str = way) -> Any:
        return x.at[i].get(mode=m) if w == "get" else getattr(x.at[i], w)(u, mode=m)

    def elements(x: Any, i: Any, u: Any, m: Any = mode, w: str = way) -> Any:
        places = x.at[i[:4], jnp.asarray(J)]
        return places.get(mode=m) if w == "get" else getattr(places, w)(u[0, :4], mode=m)

    def one_row(x: Any, i: Any, u: Any, m: Any = mode, w: str = way) -> Any:
        return x.at[i].get(mode=m) if w == "get" else getattr(x.at[i], w)(u[0], mode=m)

    if way != "multiply":  # JAX has no derivative of it where places may be the same
        CASES[f"{way} rows {mode}"], CASES[f"{way} elements {mode}"] = (rows, (X, N, U)), (elements, (X, N, U))
    CASES[f"{way} one row {mode}"] = one_row, (X, np.int32(-9), U)


@pytest.mark.parametrize("fed", [True, False], ids=["fed", "known"])
@pytest.mark.parametrize("name", CASES)
def test_as_in_jax(name: str, fed: bool) -> None:
    fn, given = CASES[name]
    indices = {k: a for k, a in enumerate(given) if np.asarray(a).dtype.kind == "i" and not fed}
    arguments = [a for k, a in enumerate(given) if k not in indices]

    def of_floats(*floats: Any) -> Any:
        left = iter(floats)
        return fn(*(indices[k] if k in indices else next(left) for k in range(len(given))))

    expected, back = jax.vjp(of_floats, *arguments)
    is_float = expected.dtype.kind == "f"
    cotangent = np.asarray(np.cos(np.arange(expected.size)).reshape(expected.shape), np.float32)
    gradients = back(cotangent if is_float else np.zeros(expected.shape, jax.dtypes.float0))
    program = converter.function(of_floats, *arguments, gradient=True)
    found = program.run(*arguments, *([cotangent] if is_float else []))
    wanted = [expected, *(g for g, a in zip(gradients, arguments, strict=True) if np.asarray(a).dtype.kind == "f")]
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_an_embedding_of_keras_reads_nan_outside() -> None:
    """As Keras on JAX, with a gradient for no row."""
    import keras

    keras.utils.set_random_seed(0)
    ids = keras.Input((3,), dtype="int32")
    hidden = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(6, 4, name="embedding")(ids))
    model = keras.Model(ids, keras.layers.Dense(2, name="head")(hidden))
    program = converter.build(model, batch=2, loss="mse", optimizer="sgd")
    x = np.array([[1, 2, 6], [0, -1, 5]], np.int32)
    with converter.runtime.TrainingSession(program.data) as session:
        found = session.infer(x)
    np.testing.assert_allclose(np.asarray(found)[1], np.asarray(model(x))[1], rtol=1e-5)
    assert np.isnan(np.asarray(found)[0]).all()
    assert np.isnan(np.asarray(model(x))[0]).all()
