"""Batches for the examples that have no data of their own: made of seeded noise, yet with something to learn."""

from __future__ import annotations

import numpy as np


def clusters(shape: tuple[int, ...], classes: int, batch: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise around one fixed pattern a class.

    Args:
        shape: of one example.
        classes: number of classes.
        batch: number of examples.
        seed: of the labels and the noise; the patterns are always the same.

    Returns:
        x float32 [batch, *shape], y int32 [batch].
    """
    patterns = np.random.default_rng(0).standard_normal((classes, *shape), np.float32)
    rng = np.random.default_rng((1, seed))
    y = rng.integers(0, classes, batch, np.int32)
    return 0.7 * patterns[y] + 0.7 * rng.standard_normal((batch, *shape), np.float32), y


def sentences(length: int, vocabulary: int, classes: int, batch: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Token sequences of different lengths in which each class prefers words of its own; 0 pads.

    Returns:
        ids int32 [batch, length] in 0..vocabulary-1, y int32 [batch].
    """
    rng = np.random.default_rng((1, seed))
    y = rng.integers(0, classes, batch, np.int32)
    any_word = rng.integers(1, vocabulary, (batch, length), np.int32)
    # Words that leave the class as remainder.
    own_word = np.clip(any_word - any_word % classes + y[:, None], 1, vocabulary - 1)
    ids = np.where(rng.random((batch, length)) < 0.5, own_word, any_word)
    lengths = rng.integers(length // 2, length + 1, batch)
    return np.where(np.arange(length) < lengths[:, None], ids, 0).astype(np.int32), y
