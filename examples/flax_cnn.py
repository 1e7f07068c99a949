"""A small residual net in Flax (linen). Its batch statistics are constants: `apply` closes over them.

What is in `params` can train; what `apply` closes over is frozen. That is all a Flax model needs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import pocketune
from examples.data.synthetic import clusters


class Block(nn.Module):
    """Two convolutions and a shortcut; half the size."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float32 [B, H, W, C] -> [B, H/2, W/2, width]."""
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.0)
        y = nn.Conv(self.width, (3, 3), strides=(2, 2), use_bias=False)(x)
        y = nn.relu(norm()(y))
        y = norm()(nn.Conv(self.width, (3, 3), use_bias=False)(y))
        shortcut = nn.Conv(self.width, (1, 1), use_bias=False)(nn.avg_pool(x, (2, 2), strides=(2, 2)))
        return nn.relu(y + shortcut)


class Network(nn.Module):
    """Three blocks, each twice as wide as the one before, and a classifier."""

    width: int
    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float32 [B, H, W, C] -> logits [B, classes]."""
        for doublings in range(3):
            x = Block(self.width << doublings)(x, train)
        return nn.Dense(self.classes)(x.mean(axis=(1, 2)))


def build(size: int = 16, channels: int = 3, width: int = 16, classes: int = 10, seed: int = 0) -> pocketune.Model:
    """float32 [B, size, size, channels] -> logits [B, classes]; `size` is a multiple of 8, `width` that of block 0."""
    net = Network(width, classes)
    x = jnp.asarray(sample_batch(16, seed, size, channels, classes)[0])
    variables = _initial(jax.eval_shape(partial(net.init, train=False), jax.random.key(0), x), seed)
    # The statistics of one batch, as if the net had been trained.
    in_training = jax.jit(partial(net.apply, train=True, mutable=["batch_stats"]))
    statistics = in_training(variables, x)[1]["batch_stats"]

    def flax_cnn(params: Any, x: jax.Array) -> jax.Array:
        return net.apply({"params": params, "batch_stats": statistics}, x, train=False)

    inputs = [jax.ShapeDtypeStruct((1, size, size, channels), np.float32)]
    return pocketune.Model(flax_cnn, variables["params"], inputs, ["Block_0", "Block_1", "Block_2", "Dense_0"])


def _initial(shapes: Any, seed: int) -> Any:
    """What `net.init` gives, without the seconds that compiling Flax's initializers takes."""
    rng = np.random.default_rng(seed)

    def leaf(path: Any, spec: jax.ShapeDtypeStruct) -> np.ndarray:
        if path[-1].key == "kernel":
            return rng.standard_normal(spec.shape, np.float32) * np.float32(np.sqrt(2 / np.prod(spec.shape[:-1])))
        return np.full(spec.shape, path[-1].key in ("scale", "var"), np.float32)

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def sample_batch(
    batch: int, seed: int = 0, size: int = 16, channels: int = 3, classes: int = 10, width: int = 16
) -> tuple[np.ndarray, ...]:
    """x float32 [batch, size, size, channels], y int32 [batch]."""
    return clusters((size, size, channels), classes, batch, seed)
