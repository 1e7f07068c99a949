"""Activities from five seconds of accelerometer and gyroscope, a small Keras net, pretrained in seconds."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from examples.data.motions import ACTIVITIES, CHANNELS, load, windows
from examples.data.synthetic import clusters

LENGTH = 50
_EVERY, _EPOCHS, _BATCH, _LEARNING_RATE = 5, 8, 16, 1e-3


def build(width: int = 24, pretrained: bool = True, seed: int = 0) -> Any:
    """A `keras.Model`: float32 [B, 50, 6] at 10 Hz -> logits [B, 4] of standing, running, walking, badminton.

    Args:
        width: channels of the first convolution; the others have twice as many.
        pretrained: trained on real recordings, which scripts/pretrained fetches (the same weights each time); else new.
        seed: of the weights.
    """

    def conv(x: Any, index: int, filters: int, stride: int) -> Any:
        initializer = keras.initializers.HeNormal(seed=seed + index)
        return layers.Conv1D(
            filters, 5, stride, "same", activation="relu", kernel_initializer=initializer, name=f"conv_{index}"
        )(x)

    inputs = keras.Input((LENGTH, CHANNELS), name="motion")
    x = conv(inputs, 1, width, 1)
    x = conv(x, 2, 2 * width, 2)
    x = conv(x, 3, 2 * width, 2)
    x = conv(x, 4, 2 * width, 1)
    x = layers.GlobalMaxPooling1D(name="pool")(x)
    initializer = keras.initializers.GlorotUniform(seed=seed)
    model = keras.Model(
        inputs, layers.Dense(len(ACTIVITIES), kernel_initializer=initializer, name="classifier")(x), name="imu"
    )
    if pretrained:
        _pretrain(model)
    return model


def _pretrain(model: Any) -> None:
    x, y = windows(load()[0], LENGTH, _EVERY)
    order = np.random.default_rng(0).permutation(len(y))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(_LEARNING_RATE), loss)
    # They are shuffled here; Keras would do it by the process' own random numbers.
    model.fit(x[order], y[order], batch_size=_BATCH, epochs=_EPOCHS, shuffle=False, verbose=0)


def sample_batch(batch: int, seed: int = 0, **options: Any) -> tuple[np.ndarray, ...]:
    """x float32 [batch, 50, 6], y int32 [batch]."""
    return clusters((LENGTH, CHANNELS), len(ACTIVITIES), batch, seed)
