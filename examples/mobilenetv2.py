"""MobileNetV2 of keras.applications with random weights: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from examples.data.synthetic import clusters
from examples.weights.keras_weights import randomize


def build(alpha: float = 0.35, size: int = 96, classes: int = 10, seed: int = 0) -> Any:
    """A `keras.Model`: float32 [B, size, size, 3] -> logits [B, classes].

    Args:
        alpha: width, 0.35 to 1.4.
        size: height and width of the image, a multiple of 32.
        classes: number of classes.
        seed: of the weights.
    """
    model = keras.applications.MobileNetV2(
        (size, size, 3), alpha=alpha, weights=None, classes=classes, classifier_activation=None
    )
    model.name = "mobilenetv2"
    randomize(model, seed)
    return model


def sample_batch(
    batch: int, seed: int = 0, size: int = 96, classes: int = 10, alpha: float = 0.35
) -> tuple[np.ndarray, ...]:
    """x float32 [batch, size, size, 3], y int32 [batch]."""
    return clusters((size, size, 3), classes, batch, seed)
