"""Losses of logits that a model masks, with -inf or a large number, against Keras and optax."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.runtime import TrainingSession
from converter.support.errors import NumericError

LOGITS = np.array([[1, 2, 3, 4], [0, 1, 0, 1], [0.5, 0, 0, 0], [1, 2, 3, 4], [1, 2, 3, 4]], np.float32)
#: The label of the last row is hidden.
SHOWN = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]], bool)
X = np.concatenate([LOGITS, SHOWN], 1)
LABELS = np.array([0, 1, 0, 3, 3], np.int32)
ONE_HOT = np.eye(4, dtype=np.float32)[LABELS]
BITS = np.array([[1, 0, 0, 0]] * 4 + [[0, 0, 0, 1]], np.float32)
SCALES = np.array([1, 1.1, 0.9, 1.2], np.float32)
BATCH, RATE = 4, 0.5
k = keras.losses

#: Name, targets, of probabilities in Keras, of logits.
CASES: list[tuple[str, np.ndarray, Callable, Callable | None]] = [
    (
        "sparse_categorical_crossentropy",
        LABELS,
        k.sparse_categorical_crossentropy,
        lambda y, z: optax.softmax_cross_entropy_with_integer_labels(z, y),
    ),
    (
        "categorical_crossentropy",
        ONE_HOT,
        k.categorical_crossentropy,
        lambda y, z: optax.safe_softmax_cross_entropy(z, y),
    ),
    (
        "categorical_focal_crossentropy",
        ONE_HOT,
        k.categorical_focal_crossentropy,
        lambda y, z: k.categorical_focal_crossentropy(y, z, from_logits=True),
    ),
    (
        "binary_focal_crossentropy",
        BITS,
        k.binary_focal_crossentropy,
        lambda y, z: k.binary_focal_crossentropy(y, z, from_logits=True),
    ),
    ("binary_crossentropy", BITS, k.binary_crossentropy, None),
    ("kl_divergence", ONE_HOT, k.kl_divergence, None),
]

#: Losses are written in other operators for microcontrollers.
TARGETS = ("litert-2", "tflm")


def masked(fill: float, link: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """A model of the first columns of x, which the others show or hide."""
    return lambda params, x: link(jnp.where(x[:, 4:] > 0, x[:, :4] * params["w"], fill))


def compare(apply: Callable, loss: str, x: np.ndarray, y: np.ndarray, reference: Callable) -> None:
    """Asserts that a step has the reference's loss and gradient."""
    model = jax_frontend.Model(apply, {"w": SCALES}, [jax.ShapeDtypeStruct((1, 8), jnp.float32)])
    value, gradient = jax.value_and_grad(lambda w: reference(jnp.asarray(y), apply({"w": w}, x)).mean())(SCALES)
    for target in TARGETS:
        program = converter.build(model, loss=loss, optimizer=optax.sgd(0.1), batch=BATCH, check=False, target=target)
        with TrainingSession(program.data) as session:
            assert session.train(x, y, RATE) == pytest.approx(float(value), rel=1e-5, abs=1e-6)
            np.testing.assert_allclose(session.parameters()["w"], SCALES - RATE * gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fill", [-np.inf, -1e9])
@pytest.mark.parametrize(("name", "y", "of_probabilities", "of_logits"), CASES, ids=[case[0] for case in CASES])
def test_what_is_masked_costs_nothing_and_a_masked_label_what_keras_clips_it_to(
    name: str, y: np.ndarray, of_probabilities: Callable, of_logits: Callable | None, fill: float
) -> None:
    link = jax.nn.sigmoid if name.startswith("binary") else jax.nn.softmax
    compare(masked(fill, link), name, X[1:], y[1:], of_probabilities)
    if of_logits is not None:
        compare(masked(fill, lambda z: z), name, X[:4], y[:4], of_logits)


@pytest.mark.parametrize(("name", "y", "of_probabilities", "of_logits"), CASES, ids=[case[0] for case in CASES])
def test_classes_may_be_padded_with_what_masks_them(
    name: str, y: np.ndarray, of_probabilities: Callable, of_logits: Callable | None
) -> None:
    link = jax.nn.sigmoid if name.startswith("binary") else jax.nn.softmax

    def padded(params: Any, x: Any) -> Any:
        return jnp.pad(x[:, :3] * params["w"][:3], ((0, 0), (0, 1)), constant_values=-1e9)

    compare(lambda params, x: link(padded(params, x)), name, X[:4], y[:4], of_probabilities)
    if of_logits is not None:
        rows = np.array([0, 1, 2, 0])  # without the label that is hidden
        compare(padded, name, X[rows], y[rows], of_logits)


def test_a_masked_label_of_logits_makes_the_loss_infinite_as_in_jax() -> None:
    model = jax_frontend.Model(masked(-np.inf, lambda z: z), {"w": SCALES}, [jax.ShapeDtypeStruct((1, 8), jnp.float32)])
    for loss, y in (("sparse_categorical_crossentropy", LABELS), ("categorical_crossentropy", ONE_HOT)):
        for target in TARGETS:
            program = converter.build(model, loss=loss, optimizer="sgd", batch=BATCH, check=False, target=target)
            with TrainingSession(program.data) as session, pytest.raises(NumericError, match="the loss is inf"):
                session.train(X[1:], y[1:], RATE)


def test_a_teacher_may_mask_classes_too() -> None:
    model = jax_frontend.Model(lambda p, x: x * p["w"], {"w": SCALES}, [jax.ShapeDtypeStruct((1, 4), jnp.float32)])
    y = np.where(SHOWN, LOGITS[:, ::-1], np.float32(-1e30))[:4]

    def total(w: Any) -> Any:
        p = jax.nn.softmax(y / 2)
        return 4 * optax.losses.kl_divergence(jax.nn.log_softmax(LOGITS[:4] * w / 2), p).mean()

    value, gradient = jax.value_and_grad(total)(SCALES)
    program = converter.build(model, loss="distillation", optimizer=optax.sgd(0.1), batch=BATCH, check=False)
    with TrainingSession(program.data) as session:
        assert session.train(LOGITS[:4], y, RATE) == pytest.approx(float(value), rel=1e-5)
        np.testing.assert_allclose(session.parameters()["w"], SCALES - RATE * gradient, rtol=1e-4, atol=1e-5)


def test_labels_that_are_no_class_cost_nothing_beside_masked_classes() -> None:
    """Class 0 is masked, and stands nearest to a label below 0."""
    logits = np.where(np.arange(4) > 0, LOGITS, -np.inf)
    labels = np.array([1, -100, 2, 7, 3], np.int32)

    def losses(z: jax.Array, y: jax.Array) -> jax.Array:
        return -jnp.where(jax.nn.one_hot(y, 4) > 0, jax.nn.log_softmax(z), 0.0).sum(-1)

    def ours(z: jax.Array, y: jax.Array) -> jax.Array:
        return -(jax.nn.log_softmax(z) * jax.nn.one_hot(y, 4)).sum(-1)

    expected, pull_back = jax.vjp(lambda z: losses(z, labels), logits)
    cotangent = np.arange(1, 6, dtype=np.float32)
    found = converter.function(ours, logits.astype(np.float32), labels, gradient=True).run(logits, labels, cotangent)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    np.testing.assert_allclose(found[1], pull_back(cotangent)[0], rtol=1e-5, atol=1e-6)


def test_elements_are_looked_up_beside_infinite_ones() -> None:
    x = np.where(SHOWN, LOGITS, -np.inf).astype(np.float32)

    def found(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.take_along_axis(x, y[:, None], 1)[:, 0], (-jax.nn.log_softmax(x))[jnp.arange(len(x)), y]

    expected = found(x, LABELS)
    assert np.isneginf(expected[0][-1])
    np.testing.assert_allclose(converter.function(found, x, LABELS).run(x, LABELS), expected, rtol=1e-5)
