"""A decoder like LLaMA in plain JAX: RMSNorm, rotated positions, grouped queries, SwiGLU; tokens -> the next ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pocketune

_EPSILON = 1e-5
#: Of the slowest rotation.
_BASE = 10_000


def build(
    layers: int = 8,
    width: int = 512,
    heads: int = 8,
    key_heads: int = 2,
    length: int = 128,
    vocabulary: int = 4096,
    hidden: int | None = None,
    seed: int | None = 0,
) -> pocketune.Model:
    """int32 ids [B, length] -> logits [B, length, vocabulary] of the token that follows each.

    Args:
        layers: number of decoder layers.
        width: of the states between layers.
        heads: of the queries; they share the width.
        key_heads: of the keys and values; so many groups of queries share them.
        length: tokens of a sequence.
        vocabulary: number of token ids.
        hidden: width of the feed-forward part; None: 8/3 of the others.
        seed: of the random weights; None: their shapes alone, for plans.
    """
    rng = np.random.default_rng(seed)
    each = width // heads
    inside = -(-8 * width // 3 // 16) * 16 if hidden is None else hidden

    def table(rows: int, columns: int, spread: float = 1.0) -> Any:
        if seed is None:
            return jax.ShapeDtypeStruct((rows, columns), np.float32)
        return rng.standard_normal((rows, columns), np.float32) * np.float32(spread)

    def dense(inputs: int, outputs: int) -> Any:
        return table(inputs, outputs, 1 / np.sqrt(inputs))

    def layer() -> dict[str, Any]:
        return {
            "attention_norm": np.ones(width, np.float32),
            "attention": {
                "q": dense(width, width),
                "k": dense(width, key_heads * each),
                "v": dense(width, key_heads * each),
                "o": dense(width, width),
            },
            "ffn_norm": np.ones(width, np.float32),
            "ffn": {"gate": dense(width, inside), "up": dense(width, inside), "down": dense(inside, width)},
        }

    params = {
        "tokens": table(vocabulary, width),
        "layers": [layer() for _ in range(layers)],
        "norm": np.ones(width, np.float32),
        "head": dense(width, vocabulary),
    }
    turns = _turns(length, each)

    def llama(params: Any, ids: jax.Array) -> jax.Array:
        x = params["tokens"][ids]
        for layer in params["layers"]:
            x = x + _attention(layer["attention"], _rms_norm(x, layer["attention_norm"]), heads, key_heads, turns)
            x = x + _swiglu(layer["ffn"], _rms_norm(x, layer["ffn_norm"]))
        return _rms_norm(x, params["norm"]) @ params["head"]

    blocks = ["tokens", *(f"layers/{i}" for i in range(layers)), "head"]
    return pocketune.Model(llama, params, [jax.ShapeDtypeStruct((1, length), np.int32)], blocks)


def _turns(length: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine by place and pair of numbers, [length, width / 2]."""
    speeds = _BASE ** -(np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * speeds
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotated(x: jax.Array, turns: tuple[np.ndarray, np.ndarray]) -> jax.Array:
    """[B, length, heads, width]: each pair of numbers, one from each half, rotated by an angle that its place gives."""
    cosine, sine = (part[:, None, :] for part in turns)
    left, right = jnp.split(x, 2, -1)
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], -1)


def _attention(layer: Any, x: jax.Array, heads: int, key_heads: int, turns: tuple[np.ndarray, np.ndarray]) -> jax.Array:
    batch, length, width = x.shape
    each = width // heads
    query = _rotated((x @ layer["q"]).reshape(batch, length, heads, each), turns)
    key = _rotated((x @ layer["k"]).reshape(batch, length, key_heads, each), turns)
    value = (x @ layer["v"]).reshape(batch, length, key_heads, each)
    grouped = query.reshape(batch, length, key_heads, heads // key_heads, each)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", grouped, key) / np.sqrt(each).astype(np.float32)
    seen = np.tril(np.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
    mixed = jnp.einsum("bkgqs,bskd->bqkgd", weights, value)
    return mixed.reshape(batch, length, width) @ layer["o"]


def _swiglu(layer: Any, x: jax.Array) -> jax.Array:
    return (jax.nn.silu(x @ layer["gate"]) * (x @ layer["up"])) @ layer["down"]


def _rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + _EPSILON) * scale


def sample_batch(
    batch: int, seed: int = 0, length: int = 128, vocabulary: int = 4096, **options: int
) -> tuple[np.ndarray, ...]:
    """Ids int32 [batch, length] that count on by a step that is the row's own, and what follows each."""
    rng = np.random.default_rng((1, seed))
    first, step = rng.integers(0, vocabulary, (batch, 1)), rng.integers(1, 4, (batch, 1))
    ids = ((first + step * np.arange(length + 1)) % vocabulary).astype(np.int32)
    return ids[:, :-1], ids[:, 1:]
