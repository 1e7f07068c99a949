"""A BERT-like text encoder in plain JAX: token ids -> classes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pocketune
from examples.data.synthetic import sentences

PAD = 0
_EPSILON = 1e-6


def build(
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    length: int = 32,
    vocabulary: int = 1000,
    classes: int = 4,
    seed: int = 0,
) -> pocketune.Model:
    """int32 ids [B, length], padded with 0 -> logits [B, classes].

    Args:
        layers: number of encoder layers.
        width: of the hidden states; the feed-forward part is four times as wide.
        heads: of the attention; they share the width.
        length: tokens of a sequence.
        vocabulary: number of token ids.
        classes: number of classes.
        seed: of the weights.
    """
    rng = np.random.default_rng(seed)

    def table(rows: int) -> np.ndarray:
        return rng.standard_normal((rows, width), np.float32) * np.float32(0.5)

    def dense(inside: int, outside: int) -> dict[str, np.ndarray]:
        w = rng.standard_normal((inside, outside), np.float32) / np.float32(np.sqrt(inside))
        return {"w": w, "b": np.zeros(outside, np.float32)}

    def norm() -> dict[str, np.ndarray]:
        return {"scale": np.ones(width, np.float32), "b": np.zeros(width, np.float32)}

    def layer() -> dict[str, Any]:
        return {
            # No bias on the keys: it adds the same to all scores of a query, which the softmax takes away again.
            "attention": {part: dense(width, width) for part in ("query", "value", "out")}
            | {"key": {"w": dense(width, width)["w"]}},
            "attention_norm": norm(),
            "ffn": {"in": dense(width, 4 * width), "out": dense(4 * width, width)},
            "ffn_norm": norm(),
        }

    params = {
        "embeddings": {"tokens": table(vocabulary), "positions": table(length), "norm": norm()},
        "layers": [layer() for _ in range(layers)],
        "pooler": dense(width, width),
        "classifier": dense(width, classes),
    }

    def encoder(params: Any, ids: jax.Array) -> jax.Array:
        return _encode(params, ids, heads)

    blocks = ["embeddings", *(f"layers/{i}" for i in range(layers)), "pooler", "classifier"]
    return pocketune.Model(encoder, params, [jax.ShapeDtypeStruct((1, length), np.int32)], blocks)


def _encode(params: Any, ids: jax.Array, heads: int) -> jax.Array:
    embeddings = params["embeddings"]
    x = norm(embeddings["norm"], embeddings["tokens"][ids] + embeddings["positions"])
    x = stack(params["layers"], x, ids != PAD, heads)
    first = jnp.tanh(_dense(params["pooler"], x[:, 0]))
    return _dense(params["classifier"], first)


def stack(layers: Any, x: jax.Array, is_token: jax.Array, heads: int, epsilon: float = _EPSILON) -> jax.Array:
    """The encoder layers, one after the other.

    Args:
        layers: their parameters.
        x: states [B, length, width].
        is_token: bool [B, length]; what is none is padding.
        heads: of the attention.
        epsilon: of the norms.
    """
    # Added to the scores: what is padding gets no attention.
    mask = jnp.where(is_token, 0.0, -1e9)[:, None, None, :]
    for layer in layers:
        x = norm(layer["attention_norm"], x + _attention(layer["attention"], x, mask, heads), epsilon)
        hidden = jax.nn.gelu(_dense(layer["ffn"]["in"], x), approximate=False)
        x = norm(layer["ffn_norm"], x + _dense(layer["ffn"]["out"], hidden), epsilon)
    return x


def _attention(layer: Any, x: jax.Array, mask: jax.Array, heads: int) -> jax.Array:
    batch, length, width = x.shape

    def split(states: jax.Array) -> jax.Array:
        return states.reshape(batch, length, heads, width // heads)

    query, key, value = split(_dense(layer["query"], x)), split(x @ layer["key"]["w"]), split(_dense(layer["value"], x))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(width // heads)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores + mask), value)
    return _dense(layer["out"], mixed.reshape(batch, length, width))


def _dense(layer: Any, x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"]


def norm(layer: Any, x: jax.Array, epsilon: float = _EPSILON) -> jax.Array:
    """Layer normalization."""
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + epsilon) * layer["scale"] + layer["b"]


def sample_batch(
    batch: int, seed: int = 0, length: int = 32, vocabulary: int = 1000, classes: int = 4, **options: int
) -> tuple[np.ndarray, ...]:
    """Ids int32 [batch, length], y int32 [batch]."""
    return sentences(length, vocabulary, classes, batch, seed)
