"""A text classifier in Keras of the size of DistilBERT (Sanh et al., 2019), with random weights."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers as kl

from examples.data.synthetic import sentences

_EPSILON = 1e-12


class Positions(kl.Layer):
    """Adds what each place has learned."""

    def build(self, shape: Any) -> None:
        """Makes the table, [length, width]."""
        self.table = self.add_weight(shape=shape[1:], initializer=keras.initializers.RandomNormal(0.0, 0.5, 1))

    def call(self, x: Any) -> Any:
        """float32 [B, length, width] -> the same."""
        return x + self.table


def build(
    length: int = 128,
    classes: int = 2,
    layers: int = 6,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 30522,
    seed: int = 0,
) -> Any:
    """A `keras.Model`: int32 ids [B, length], padded with 0 -> logits [B, classes].

    Args:
        length: tokens of a text.
        classes: number of classes.
        layers: number of encoder layers; of this and the next three the defaults are those of DistilBERT.
        width: of the hidden states; the feed-forward part is four times as wide.
        heads: of the attention; they share the width.
        vocabulary: number of token ids.
        seed: of the weights.
    """
    keras.utils.set_random_seed(seed)
    ids = keras.Input((length,), dtype="int32", name="ids")
    # Nobody attends to padding.
    is_token = keras.ops.not_equal(ids, 0)[:, None, :]
    table = keras.initializers.RandomNormal(0.0, 0.5, 0)
    x = kl.Embedding(vocabulary, width, embeddings_initializer=table, name="embeddings")(ids)
    x = kl.LayerNormalization(epsilon=_EPSILON, name="embeddings_norm")(Positions(name="positions")(x))
    for i in range(layers):
        attention = kl.MultiHeadAttention(heads, width // heads, name=f"layer_{i}_attention")
        y = attention(x, x, attention_mask=is_token)
        x = kl.LayerNormalization(epsilon=_EPSILON, name=f"layer_{i}_attention_norm")(x + y)
        y = kl.Dense(4 * width, activation="gelu", name=f"layer_{i}_ffn_in")(x)
        y = kl.Dense(width, name=f"layer_{i}_ffn_out")(y)
        x = kl.LayerNormalization(epsilon=_EPSILON, name=f"layer_{i}_ffn_norm")(x + y)
    x = kl.Dense(width, activation="relu", name="pre_classifier")(x[:, 0])
    return keras.Model(ids, kl.Dense(classes, name="classifier")(x), name="distilbert")


def sample_batch(
    batch: int, seed: int = 0, length: int = 128, vocabulary: int = 30522, classes: int = 2, **options: Any
) -> tuple[np.ndarray, ...]:
    """Ids int32 [batch, length], y int32 [batch]."""
    return sentences(length, vocabulary, classes, batch, seed)
