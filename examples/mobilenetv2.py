"""MobileNetV2 of keras.applications with random weights: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from examples.synthetic import clusters


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
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(_weight(variable.path, tuple(variable.shape), rng))
    return model


def _weight(path: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A weight as a trained net could have it: with Keras' own initial ones the signal dies within a few blocks."""
    noise = rng.standard_normal(shape, np.float32)
    match path.rpartition("/")[2]:
        case "kernel" if len(shape) == 4:
            fan_in = shape[0] * shape[1] * (1 if "depthwise" in path else shape[2])
            # A relu6 cuts half of the signal. Projections are added up along the residuals: they start small.
            gain = 0.5 if "project" in path else 2
            return noise * np.float32(np.sqrt(gain / fan_in))
        case "kernel":
            return noise * np.float32(np.sqrt(1 / shape[0]))
        case "gamma" | "moving_variance":
            return np.exp(0.2 * noise)
        case _:
            return 0.1 * noise


def sample_batch(
    batch: int, seed: int = 0, size: int = 96, classes: int = 10, alpha: float = 0.35
) -> tuple[np.ndarray, ...]:
    """x float32 [batch, size, size, 3], y int32 [batch]."""
    return clusters((size, size, 3), classes, batch, seed)
