"""A small Keras convolutional net for scikit-learn's real 8 x 8 digits, pretrained in a few seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from examples.data.digits import Digits, augmented, load

#: Of the pretraining. A few photo negatives: enough for light ink to be nothing strange, too few to be good at it.
NEGATIVES = 0.01
COPIES = 7
EPOCHS = 4
BATCH = 32
LEARNING_RATE = 2e-3


def build(pretrained: bool = True, seed: int = 0, digits: Sequence[int] = range(10)) -> Any:
    """A `keras.Model`: float32 [B, 8, 8, 1] -> logits [B, digits].

    Args:
        pretrained: trained on the digits' pretraining split (the same weights each time), else fresh.
        seed: of the weights.
        digits: the classes in order; it is trained on no others.
    """

    def conv(x: Any, index: int, filters: int) -> Any:
        initializer = keras.initializers.HeNormal(seed=seed + index)
        return keras.layers.Conv2D(
            filters, 3, padding="same", activation="relu", kernel_initializer=initializer, name=f"conv_{index}"
        )(x)

    inputs = keras.Input((8, 8, 1), name="image")
    x = conv(inputs, 1, 24)
    x = keras.layers.MaxPooling2D(name="pool_2")(conv(x, 2, 48))
    x = keras.layers.MaxPooling2D(name="pool_3")(conv(x, 3, 96))
    x = keras.layers.Flatten(name="flatten")(x)
    initializer = keras.initializers.GlorotUniform(seed=seed)
    logits = keras.layers.Dense(len(digits), kernel_initializer=initializer, name="classifier")(x)
    model = keras.Model(inputs, logits, name="digits_cnn")
    if pretrained:
        _pretrain(model, seed, digits)
    return model


def _pretrain(model: Any, seed: int, digits: Sequence[int]) -> None:
    x, y = load()[0]
    known = np.isin(y, digits)
    labels = np.array([list(digits).index(digit) for digit in y[known]], y.dtype)
    rows = augmented(Digits(x[known], labels), COPIES, NEGATIVES, seed)
    steps = EPOCHS * (len(rows.y) // BATCH)
    schedule = keras.optimizers.schedules.PolynomialDecay(LEARNING_RATE, steps, LEARNING_RATE / 100)
    model.compile(keras.optimizers.Adam(schedule), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # The digits are shuffled already; Keras would do it by the process' own random numbers.
    model.fit(rows.x, rows.y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)


def sample_batch(batch: int, seed: int = 0, pretrained: bool = True) -> tuple[np.ndarray, ...]:
    """x float32 [batch, 8, 8, 1], y int32 [batch]: held-out digits."""
    x, y = load()[1]
    chosen = np.random.default_rng(seed).integers(0, len(y), batch)
    return x[chosen], y[chosen]
