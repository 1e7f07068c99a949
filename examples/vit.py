"""A vision transformer in Flax (linen), of the size of ViT-Ti/16 (Touvron et al., 2021), with random weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import pocketune
from examples.data.synthetic import clusters


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a layer norm."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float32 [B, tokens, width] -> the same."""
        width = x.shape[-1]
        attention = nn.MultiHeadDotProductAttention(self.heads, name="attention")
        x = x + attention(nn.LayerNorm(name="attention_norm")(x))
        y = nn.Dense(4 * width, name="mlp_in")(nn.LayerNorm(name="mlp_norm")(x))
        return x + nn.Dense(width, name="mlp_out")(nn.gelu(y, approximate=False))


class Network(nn.Module):
    """Patches become tokens; the first token, which is no patch, is classified at the end."""

    layers: int
    width: int
    heads: int
    patch: int
    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """float32 [B, size, size, 3] -> logits [B, classes]."""
        patches = nn.Conv(self.width, (self.patch, self.patch), (self.patch, self.patch), "VALID", name="patches")(x)
        tokens = patches.reshape(len(x), -1, self.width)
        first = self.param("first", nn.initializers.zeros, (1, 1, self.width))
        tokens = jnp.concatenate([jnp.broadcast_to(first, (len(x), 1, self.width)), tokens], 1)
        tokens = tokens + self.param("positions", nn.initializers.normal(0.02), (1, tokens.shape[1], self.width))
        for i in range(self.layers):
            tokens = Layer(self.heads, name=f"layer_{i}")(tokens)
        return nn.Dense(self.classes, name="classifier")(nn.LayerNorm(name="norm")(tokens)[:, 0])


def build(
    size: int = 224,
    patch: int = 16,
    classes: int = 10,
    layers: int = 12,
    width: int = 192,
    heads: int = 3,
    seed: int = 0,
) -> pocketune.Model:
    """float32 [B, size, size, 3] -> logits [B, classes].

    Args:
        size: height and width of the image, a multiple of `patch`.
        patch: height and width of a patch.
        classes: number of classes.
        layers: number of encoder layers; of this and the next two the defaults are those of ViT-Ti.
        width: of the tokens.
        heads: of the attention; they share the width.
        seed: of the weights.
    """
    net = Network(layers, width, heads, patch, classes)
    image = jax.ShapeDtypeStruct((1, size, size, 3), np.float32)
    params = _initial(jax.eval_shape(net.init, jax.random.key(0), image)["params"], seed)

    def vit(params: Any, x: jax.Array) -> jax.Array:
        return net.apply({"params": params}, x)

    blocks = ["patches", *(f"layer_{i}" for i in range(layers)), "classifier"]
    return pocketune.Model(vit, params, [image], blocks, frozen=_without_effect(layers))


def _without_effect(layers: int) -> list[str]:
    """The bias of the keys adds the same to all scores of a query, which the softmax takes away again."""
    return [f"layer_{i}/attention/key/bias" for i in range(layers)]


def _initial(shapes: Any, seed: int) -> Any:
    """Weights as `net.init` would make them, without the seconds that compiling Flax's initializers takes."""
    rng = np.random.default_rng(seed)

    def leaf(path: Any, spec: jax.ShapeDtypeStruct) -> np.ndarray:
        match path[-1].key:
            case "kernel":
                inputs = spec.shape[:-1] if path[-2].key in ("out", "patches") else spec.shape[:1]
                return rng.standard_normal(spec.shape, np.float32) / np.float32(np.sqrt(np.prod(inputs)))
            case "positions" | "first":
                return rng.standard_normal(spec.shape, np.float32) * np.float32(0.2)
            case name:
                return np.full(spec.shape, name == "scale", np.float32)

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def sample_batch(
    batch: int, seed: int = 0, size: int = 224, classes: int = 10, **options: Any
) -> tuple[np.ndarray, ...]:
    """x float32 [batch, size, size, 3], y int32 [batch]."""
    return clusters((size, size, 3), classes, batch, seed)
