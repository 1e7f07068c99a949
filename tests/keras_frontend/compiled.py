"""A small compiled model, and ten steps of it against Keras' own training step on JAX."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import layers

import converter
from tests.steps import assert_alike, stepped

BATCH, FEATURES, CLASSES, STEPS = 6, 5, 4, 10
RNG = np.random.default_rng(0)
X = RNG.standard_normal((BATCH, FEATURES)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, BATCH).astype(np.int32)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[LABELS]
VALUES = RNG.standard_normal((BATCH, CLASSES)).astype(np.float32)
BITS = RNG.integers(0, 2, (BATCH, CLASSES)).astype(np.float32)


def net(activation: str | None = None) -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(7, activation="tanh"),
            layers.Dense(CLASSES, activation=activation, name="head"),
        ]
    )


def trained_alike(
    program: converter.Program, model: Any, y: np.ndarray, rate: float | None, rtol: float = 1e-4
) -> None:
    """Ten steps of both; the model is compiled."""
    expected = [float(np.ravel(model.train_on_batch(X, y))[0]) for _ in range(STEPS)]
    found = stepped(program, [(X, y)] * STEPS, rate)
    np.testing.assert_allclose(found.losses, expected, rtol=rtol)
    assert_alike(found.parameters, weights_of(model, found.parameters), rtol=1e-3, atol=1e-5)


def weights_of(model: Any, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Weights of a Keras model by what a program calls them: Keras drops the outermost name of models that it loads."""
    found = {}
    for name in names:
        (weight,) = (w for w in model.weights if w.path.endswith(name))
        found[name] = weight.numpy()
    return found
