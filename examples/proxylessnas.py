"""ProxylessNAS-Mobile (Cai et al., 2019) with random weights; at width 0.3 it is a net for microcontrollers."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.data.synthetic import clusters
from examples.inverted_bottlenecks import Block, network

BLOCKS = (
    Block(3, 1, 16),
    Block(5, 3, 32, stride=2),
    Block(3, 3, 32),
    Block(7, 3, 40, stride=2),
    Block(3, 3, 40),
    *(Block(5, 3, 40),) * 2,
    Block(7, 6, 80, stride=2),
    *(Block(5, 3, 80),) * 3,
    Block(5, 6, 96),
    *(Block(5, 3, 96),) * 3,
    Block(7, 6, 192, stride=2),
    Block(7, 6, 192),
    *(Block(7, 3, 192),) * 2,
    Block(7, 6, 320),
)


def build(size: int = 128, classes: int = 10, width: float = 0.3, depth: int | None = None, seed: int = 0) -> Any:
    """A `keras.Model`: float32 [B, size, size, 3] -> logits [B, classes]; the other arguments as for `network`."""
    return network("proxylessnas", BLOCKS, 32, 1280, size=size, classes=classes, width=width, depth=depth, seed=seed)


def sample_batch(
    batch: int, seed: int = 0, size: int = 128, classes: int = 10, **options: Any
) -> tuple[np.ndarray, ...]:
    """x float32 [batch, size, size, 3], y int32 [batch]."""
    return clusters((size, size, 3), classes, batch, seed)
