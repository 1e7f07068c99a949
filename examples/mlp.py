"""A multi-layer perceptron in plain JAX: the smallest whole example of a `pocketune.Model`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import numpy as np

import pocketune
from examples.data.synthetic import clusters

SIZES = (64, 128, 64, 10)


def build(sizes: Sequence[int] = SIZES, seed: int = 0) -> pocketune.Model:
    """float32 [B, sizes[0]] -> logits [B, sizes[-1]]; dense layers of these widths with relu between them."""
    rng = np.random.default_rng(seed)
    layers = [
        {
            "w": rng.standard_normal((inside, outside), np.float32) * np.float32(np.sqrt(2 / inside)),
            "b": np.zeros(outside, np.float32),
        }
        for inside, outside in pairwise(sizes)
    ]
    inputs = [jax.ShapeDtypeStruct((1, sizes[0]), np.float32)]
    blocks = [f"layers/{i}" for i in range(len(layers))]
    return pocketune.Model(mlp, {"layers": layers}, inputs, blocks)


def mlp(params: Any, x: jax.Array) -> jax.Array:
    """The forward function."""
    *hidden, last = params["layers"]
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def sample_batch(batch: int, seed: int = 0, sizes: Sequence[int] = SIZES) -> tuple[np.ndarray, ...]:
    """x float32 [batch, sizes[0]], y int32 [batch]."""
    return clusters((sizes[0],), sizes[-1], batch, seed)
