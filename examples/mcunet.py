"""MCUNet for microcontrollers (the net of 5 frames a second of Lin et al., 2020), with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.data.synthetic import clusters
from examples.inverted_bottlenecks import Block, network

BLOCKS = (
    Block(3, 1, 8),
    Block(3, 4, 16, stride=2),
    Block(3, 3, 16),
    Block(7, 3, 24, stride=2),
    Block(3, 5, 24),
    Block(3, 5, 40, stride=2),
    Block(7, 4, 40),
    Block(5, 4, 48),
    Block(3, 3, 48),
    Block(3, 4, 48),
    Block(7, 5, 96, stride=2),
    Block(5, 4, 96),
    Block(5, 4, 96),
    Block(3, 6, 160),
)


def build(size: int = 128, classes: int = 10, width: float = 1.0, depth: int | None = None, seed: int = 0) -> Any:
    """A `keras.Model`: float32 [B, size, size, 3] -> logits [B, classes]; the other arguments as for `network`."""
    return network("mcunet", BLOCKS, 16, 0, size=size, classes=classes, width=width, depth=depth, seed=seed)


def sample_batch(
    batch: int, seed: int = 0, size: int = 128, classes: int = 10, **options: Any
) -> tuple[np.ndarray, ...]:
    """x float32 [batch, size, size, 3], y int32 [batch]."""
    return clusters((size, size, 3), classes, batch, seed)
