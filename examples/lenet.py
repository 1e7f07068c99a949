"""A LeNet-like convolutional net in plain JAX, with max-pooling."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pocketune
from examples.data.synthetic import clusters


def build(size: int = 28, channels: int = 1, classes: int = 10, seed: int = 0) -> pocketune.Model:
    """float32 [B, size, size, channels] -> logits [B, classes]; `size` is a multiple of 4, at least 16."""
    rng = np.random.default_rng(seed)

    def layer(*shape: int) -> dict[str, np.ndarray]:
        scale = np.float32(np.sqrt(2 / np.prod(shape[:-1])))
        return {"w": rng.standard_normal(shape, np.float32) * scale, "b": np.zeros(shape[-1], np.float32)}

    left = (size // 2 - 4) // 2
    params = {
        "conv1": layer(5, 5, channels, 6),
        "conv2": layer(5, 5, 6, 16),
        "fc1": layer(left * left * 16, 120),
        "fc2": layer(120, 84),
        "fc3": layer(84, classes),
    }
    return pocketune.Model(lenet, params, [jax.ShapeDtypeStruct((1, size, size, channels), np.float32)], list(params))


def lenet(params: Any, x: jax.Array) -> jax.Array:
    """The forward function."""
    x = _max_pool(jax.nn.relu(_conv(params["conv1"], x, "SAME")))
    x = _max_pool(jax.nn.relu(_conv(params["conv2"], x, "VALID")))
    x = x.reshape(x.shape[0], -1)
    x = jax.nn.relu(_dense(params["fc1"], x))
    x = jax.nn.relu(_dense(params["fc2"], x))
    return _dense(params["fc3"], x)


def _conv(layer: Any, x: jax.Array, padding: str) -> jax.Array:
    return (
        lax.conv_general_dilated(x, layer["w"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        + layer["b"]
    )


def _max_pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _dense(layer: Any, x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"]


def sample_batch(
    batch: int, seed: int = 0, size: int = 28, channels: int = 1, classes: int = 10
) -> tuple[np.ndarray, ...]:
    """x float32 [batch, size, size, channels], y int32 [batch]."""
    return clusters((size, size, channels), classes, batch, seed)
