"""Models that end in a softmax or sigmoid train as Keras and JAX train them, and `infer` still gives probabilities."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from keras import layers

import converter
import jax_frontend
from converter.support.errors import UsageError

BATCH, FEATURES, CLASSES, STEPS, RATE = 6, 5, 4, 10, 0.5


def dense(units: int, **options: Any) -> Any:
    return keras.Sequential(
        [keras.Input((FEATURES,)), layers.Dense(7, activation="tanh"), layers.Dense(units, **options)]
    )


def with_layer(layer: Callable[[], Any], units: int) -> Any:
    return keras.Sequential([keras.Input((FEATURES,)), layers.Dense(units), layer()])


def per_place(activation: str) -> Any:
    """A distribution for each of three places."""
    inputs = keras.Input((FEATURES,))
    x = layers.Reshape((3, CLASSES))(layers.Dense(3 * CLASSES)(inputs))
    return keras.Model(inputs, layers.Activation(activation)(x))


def reshaped_probabilities() -> Any:
    inputs = keras.Input((FEATURES,))
    x = layers.Softmax()(layers.Reshape((3, 1, CLASSES))(layers.Dense(3 * CLASSES)(inputs)))
    return keras.Model(inputs, layers.Reshape((3, CLASSES))(x))


RNG = np.random.default_rng(0)
X = RNG.standard_normal((BATCH, FEATURES)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, BATCH).astype(np.int32)
PLACES = RNG.integers(0, CLASSES, (BATCH, 3)).astype(np.int32)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[LABELS]
BITS = RNG.integers(0, 2, (BATCH, 1)).astype(np.float32)
TAGS = RNG.integers(0, 2, (BATCH, CLASSES)).astype(np.float32)

SPARSE, CATEGORICAL, BINARY = (
    "sparse_categorical_crossentropy",
    "categorical_crossentropy",
    "binary_crossentropy",
)
CASES: dict[str, tuple[Callable[[], Any], str, np.ndarray]] = {
    "softmax of the last dense": (lambda: dense(CLASSES, activation="softmax"), SPARSE, LABELS),
    "one-hot": (lambda: dense(CLASSES, activation="softmax"), CATEGORICAL, ONE_HOT),
    "softmax layer": (lambda: with_layer(layers.Softmax, CLASSES), SPARSE, LABELS),
    "activation layer": (lambda: with_layer(lambda: layers.Activation("softmax"), CLASSES), SPARSE, LABELS),
    "places": (lambda: per_place("softmax"), SPARSE, PLACES),
    "reshaped": (reshaped_probabilities, SPARSE, PLACES),
    "sigmoid": (lambda: dense(1, activation="sigmoid"), BINARY, BITS),
    "tags": (lambda: with_layer(lambda: layers.Activation("sigmoid"), CLASSES), BINARY, TAGS),
    "focal": (lambda: dense(CLASSES, activation="softmax"), "categorical_focal_crossentropy", ONE_HOT),
}


@pytest.mark.parametrize("case", CASES)
def test_keras_models_train_as_in_keras(case: str) -> None:
    build, name, y = CASES[case]
    keras.utils.set_random_seed(3)
    model = build()
    program = converter.build(model, loss=name, optimizer=optax.sgd(1.0), batch=BATCH)
    assert [(note.status, note.subject != "") for note in program.notes] == [("in the loss", True)]
    expected_output = np.asarray(model(X))
    model.compile(keras.optimizers.SGD(RATE), loss=name)
    expected = [float(model.train_on_batch(X, y)) for _ in range(STEPS)]
    with converter.runtime.TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(X), expected_output, rtol=1e-5, atol=1e-6)
        found = [session.train(X, y, learning_rate=RATE) for _ in range(STEPS)]
        np.testing.assert_allclose(found, expected, rtol=2e-5)
        np.testing.assert_allclose(session.infer(X), np.asarray(model(X)), rtol=1e-4, atol=1e-6)
        for weight in model.weights:
            np.testing.assert_allclose(session.parameters()[weight.path], weight.numpy(), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize(
    ("last", "loss", "y", "of_probabilities"),
    [
        (jax.nn.softmax, SPARSE, LABELS, lambda p, y: -jnp.log(jnp.take_along_axis(p, y[:, None], 1)[:, 0])),
        (lambda z: jax.nn.softmax(z)[:, ::-1], CATEGORICAL, ONE_HOT, lambda p, y: -(jnp.log(p) * y).sum(-1)),
        (jax.nn.log_softmax, CATEGORICAL, ONE_HOT, lambda logs, y: -(logs * y).sum(-1)),
        (jax.nn.sigmoid, BINARY, TAGS, lambda p, y: -(y * jnp.log(p) + (1 - y) * jnp.log(1 - p)).mean(-1)),
        (
            lambda z: 1 / (1 + jnp.exp(-z)),
            BINARY,
            TAGS,
            lambda p, y: optax.losses.sigmoid_binary_cross_entropy(jnp.log(p / (1 - p)), y).mean(-1),
        ),
    ],
    ids=["softmax", "turned", "log softmax", "sigmoid", "sigmoid by hand"],
)
def test_jax_models_train_as_in_jax(
    last: Any, loss: str, y: np.ndarray, of_probabilities: Any, micro_batch: int | None
) -> None:
    params = {"w": RNG.standard_normal((FEATURES, CLASSES)).astype(np.float32), "b": np.zeros(CLASSES, np.float32)}

    def apply(p: Any, x: Any) -> Any:
        return last(x @ p["w"] + p["b"])

    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, FEATURES), "float32")])
    program = converter.build(model, loss=loss, batch=BATCH, micro_batch=micro_batch)
    step = jax.jit(jax.value_and_grad(lambda p: of_probabilities(apply(p, X), y).mean()))
    with converter.runtime.TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(X), apply(params, X), rtol=1e-5, atol=1e-6)
        for _ in range(STEPS):
            value, gradient = step(params)
            np.testing.assert_allclose(session.train(X, y, learning_rate=RATE), value, rtol=2e-5)
            params = jax.tree.map(lambda p, g: p - RATE * g, params, gradient)
        np.testing.assert_allclose(session.parameters()["w"], params["w"], rtol=1e-4, atol=1e-6)


def test_logits_are_read_as_they_are() -> None:
    assert not converter.build(dense(CLASSES), loss=SPARSE, optimizer=optax.sgd(0.1), batch=2, check=False).notes


def test_a_sum_of_squares_compares_with_the_probabilities_themselves() -> None:
    model = dense(CLASSES, activation="softmax")
    program = converter.build(model, loss="mse", optimizer=optax.sgd(0.1), batch=BATCH, check=False)
    assert not program.notes
    expected = float(np.square(np.asarray(model(X)) - ONE_HOT).mean())
    with converter.runtime.TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.train(X, ONE_HOT), expected, rtol=1e-5)


def of(last: Callable[[Any], Any], units: int = CLASSES) -> jax_frontend.Model:
    w = RNG.standard_normal((FEATURES, units)).astype(np.float32)
    return jax_frontend.Model(lambda p, x: last(x @ p["w"]), {"w": w}, [jax.ShapeDtypeStruct((1, FEATURES), "float32")])


@pytest.mark.parametrize(
    ("last", "loss", "message"),
    [
        (jax.nn.sigmoid, SPARSE, "ends in a sigmoid.*use binary_crossentropy"),
        (jax.nn.softmax, BINARY, "ends in a softmax.*use sparse_categorical_crossentropy"),
        (lambda z: jnp.clip(jax.nn.softmax(z), 1e-7, 1 - 1e-7), SPARSE, "holds probabilities"),
        (lambda z: (jax.nn.softmax(z) + jax.nn.softmax(2 * z)) / 2, SPARSE, "holds probabilities"),
        (lambda z: jnp.concatenate([jax.nn.softmax(z), jax.nn.softmax(-z)], -1), SPARSE, "holds probabilities"),
        (lambda z: jax.nn.softmax(z)[:, :2], CATEGORICAL, "holds probabilities"),
        (jax.nn.hard_sigmoid, BINARY, "holds probabilities"),
        (lambda z: 1 - jax.nn.sigmoid(z), BINARY, "holds probabilities"),
        (lambda z: (jnp.tanh(z) + 1) / 2, BINARY, "holds probabilities"),
        (lambda z: jnp.pad(jax.nn.sigmoid(z), ((0, 0), (1, 0))), BINARY, "holds probabilities"),
        (lambda z: jnp.where(jnp.arange(CLASSES) < 2, jax.nn.softmax(z), 0.0), SPARSE, "holds probabilities"),
        (lambda z: jax.nn.softmax(z)[:, jnp.array([0, 0, 1, 2])], SPARSE, "holds probabilities"),
    ],
    ids=[
        "sigmoid",
        "softmax",
        "clipped",
        "averaged",
        "concatenated",
        "cut",
        "hard sigmoid",
        "one less",
        "by tanh",
        "padded",
        "hidden",
        "looked up",
    ],
)
def test_probabilities_that_cannot_be_joined_are_refused(last: Any, loss: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        converter.build(of(last), loss=loss, batch=2)


def test_one_number_a_row_is_no_choice_of_classes() -> None:
    with pytest.raises(UsageError, match="one number a row: use binary_crossentropy"):
        converter.build(of(lambda z: z, 1), loss=SPARSE, batch=2)
