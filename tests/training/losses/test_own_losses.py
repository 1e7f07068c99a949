"""Losses of the user's own: what they are given, and what is said where they are written another way."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import converter
from converter.support.errors import UsageError
from jax_frontend import Model

RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 3)).astype(np.float32)
X = RNG.standard_normal((4, 4)).astype(np.float32)
MODEL = Model(lambda w, x: x @ w, W, [jax.ShapeDtypeStruct((1, 4), "float32")])


def labelled(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)[:, 0]


@pytest.mark.parametrize(
    "loss",
    [keras.losses.Huber(delta=0.3), keras.losses.Poisson(), keras.losses.log_cosh, keras.losses.MeanSquaredError()],
    ids=["huber", "poisson", "log_cosh", "mse"],
)
def test_a_loss_of_keras_is_that_of_keras(loss: Any) -> None:
    model = Model(lambda w, x: jnp.exp(0.1 * (x @ w)), W, MODEL.inputs)
    y = RNG.random((4, 3)).astype(np.float32)
    program = converter.build(model, loss=loss, batch=4)
    with converter.runtime.TrainingSession(program.data) as session:
        expected = np.mean(loss(y, model.apply(W, X)))
        np.testing.assert_allclose(session.evaluate(X, y)["loss"], expected, rtol=1e-5)


def test_a_loss_that_keras_alone_has_is_refused() -> None:
    class Own(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return y_pred - y_true

    with pytest.raises(UsageError, match="the loss Own cannot be taken over"):
        converter.build(MODEL, loss=Own(), batch=4)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y_true, y_pred: jnp.maximum(y_true - y_pred, 0).mean(-1),
        lambda labels, logits: jnp.maximum(labels - logits, 0).mean(-1),
        lambda targets, outputs: jnp.maximum(targets - outputs, 0).mean(-1),
    ],
)
def test_targets_first_is_refused(loss: Any) -> None:
    with pytest.raises(UsageError, match="takes the targets first"):
        converter.build(MODEL, loss=loss, batch=4)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y_pred, y_true: jnp.maximum(y_true - y_pred, 0).mean(-1),
        lambda y, t: jnp.maximum(t - y, 0).mean(-1),
        lambda *both: jnp.maximum(both[1] - both[0], 0).mean(-1),
    ],
)
def test_other_names_are_taken_as_they_come(loss: Any) -> None:
    y = RNG.random((4, 3)).astype(np.float32)
    program = converter.build(MODEL, loss=loss, batch=4)
    with converter.runtime.TrainingSession(program.data) as session:
        expected = np.maximum(y - X @ W, 0).mean()
        np.testing.assert_allclose(session.evaluate(X, y)["loss"], expected, rtol=1e-5)


def test_what_y_is_has_to_be_said() -> None:
    with pytest.raises(TypeError) as raised:
        converter.build(MODEL, loss=labelled, batch=4)
    assert any("y=jax.ShapeDtypeStruct" in note for note in raised.value.__notes__)
    with pytest.raises(UsageError, match="the first axis is the batch"):
        converter.build(MODEL, loss=labelled, y=jax.ShapeDtypeStruct((), "int32"), batch=4)
    with pytest.raises(ValueError, match="ncompatible shapes") as raised:
        converter.build(
            MODEL, loss=lambda o, y: ((o - y) ** 2).mean(-1), y=jax.ShapeDtypeStruct((3,), "float32"), batch=4
        )
    assert any("y as float32[4]" in note for note in raised.value.__notes__)
    assert converter.build(MODEL, loss=labelled, y=jax.ShapeDtypeStruct((1,), "int32"), batch=4)


@pytest.mark.parametrize("y", [np.zeros(1, np.int64), np.zeros(1, np.uint8), jnp.zeros(1, "int32"), "torch"])
def test_arrays_say_what_y_is(y: Any) -> None:
    if isinstance(y, str):
        y = pytest.importorskip("torch").zeros(1, dtype=pytest.importorskip("torch").int64)
    program = converter.build(MODEL, loss=labelled, y=y, batch=4)
    labels = np.arange(4, dtype=np.int32) % 3
    with converter.runtime.TrainingSession(program.data) as session:
        expected = np.mean([labelled(jnp.asarray(row[None]), labels[i : i + 1]) for i, row in enumerate(X @ W)])
        np.testing.assert_allclose(session.evaluate(X, labels)["loss"], expected, rtol=1e-5)


def test_complex_targets_are_refused() -> None:
    with pytest.raises(UsageError, match="float32, int32 or bool, and it is complex64"):
        converter.build(MODEL, loss=labelled, y=np.zeros(1, np.complex64), batch=4)
