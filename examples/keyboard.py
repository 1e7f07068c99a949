"""The next character on a keyboard: two GRU layers in Keras, pretrained on real sentences in about a minute."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from examples.data.writings import ALPHABET, encode, load

#: What the net has read; how people write tweets it has to learn.
_READ = ("movieReviewSnippets", "nytEditorialSnippets", "amazonReviewSnippets")
_EPOCHS, _BATCH, _LEARNING_RATE = 2, 64, 3e-3


def build(length: int = 48, width: int = 96, pretrained: bool = True, seed: int = 0) -> Any:
    """A `keras.Model`: int32 [B, length] of `examples.data.writings.ALPHABET` -> logits [B, length, characters].

    Args:
        length: characters of a text.
        width: of the states of the GRUs.
        pretrained: trained on real sentences, which scripts/pretrained fetches (the same weights each time); else new.
        seed: of the weights.
    """

    def gru(index: int) -> Any:
        return layers.GRU(
            width,
            return_sequences=True,
            kernel_initializer=keras.initializers.GlorotUniform(seed + index),
            recurrent_initializer=keras.initializers.Orthogonal(seed=seed + index),
            name=f"gru_{index}",
        )

    keys = keras.Input((length,), dtype="int32", name="keys")
    table = keras.initializers.RandomNormal(0.0, 0.3, seed)
    x = layers.Embedding(len(ALPHABET), 32, embeddings_initializer=table, name="characters")(keys)
    x = gru(2)(gru(1)(x))
    head = layers.Dense(len(ALPHABET), kernel_initializer=keras.initializers.GlorotUniform(seed), name="next")
    model = keras.Model(keys, head(x), name="keyboard")
    if pretrained:
        _pretrain(model, length)
    return model


def _pretrain(model: Any, length: int) -> None:
    x, y = encode(tuple(text for kind in _READ for text in load(kind)), length)
    order = np.random.default_rng(0).permutation(len(y))
    steps = _EPOCHS * (len(y) // _BATCH)
    schedule = keras.optimizers.schedules.PolynomialDecay(_LEARNING_RATE, steps, _LEARNING_RATE / 100)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    model.compile(keras.optimizers.Adam(schedule, clipnorm=1.0), loss)
    model.fit(x[order], y[order], batch_size=_BATCH, epochs=_EPOCHS, shuffle=False, verbose=0)


def sample_batch(batch: int, seed: int = 0, length: int = 48, **options: Any) -> tuple[np.ndarray, ...]:
    """Keys int32 [batch, length] of words that come again and again, and the next ones, -1 after the end."""
    rng = np.random.default_rng((1, seed))
    words = ("the ", "rain ", "in ", "spain ", "stays ", "mainly ")
    texts = ("".join(words[i] for i in rng.integers(0, len(words), length)) for _ in range(batch))
    return encode(tuple(text[: rng.integers(length // 2, length + 1)] for text in texts), length)
