"""The decoder in JAX: RMSNorm, rotated positions, grouped queries, a gated feed-forward part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoder_frontend.configuration import Configuration

#: What is added to the scores of pairs that do not see each other: e to it is 0 in any precision.
_UNSEEN = -1e9


def decoder(
    configuration: Configuration, length: int, frequency_factors: np.ndarray | None = None
) -> Callable[..., jax.Array]:
    """Return the function of a decoder: ids int32 [B, length], segments -> logits [B, length, vocabulary].

    It takes the parameters by the names of `transformers`, the ids, and where sequences are packed the number of the
    text of each token, int32 [B, length], of which none sees another's. Rotations tell how far tokens are from each
    other alone, so texts need not begin at position 0.

    Args:
        configuration: of the net.
        length: tokens of a row.
        frequency_factors: by which the speed of each rotation is divided, [head_width / 2]; None: none is.
    """
    c = configuration
    turns = [_turns(c, layer, length, frequency_factors) for layer in range(c.layers)]
    seen = [_seen(length, c.looks_back(layer)) for layer in range(c.layers)]

    def apply(params: Mapping[str, jax.Array], ids: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        table = params["model.embed_tokens.weight"]
        x = table[ids]
        if c.scales_embedding:
            x = x * np.float32(np.sqrt(c.width))
        for layer in range(c.layers):
            own = _Layer(params, f"model.layers.{layer}.")
            pairs = seen[layer]
            if segments is not None:
                pairs = jnp.logical_and(pairs, segments[:, :, None] == segments[:, None, :])[:, None, None]
            x = x + _normed(c, own, "post_attention", _attention(c, own, x, turns[layer], pairs))
            x = x + _normed(c, own, "post_feedforward", _feed_forward(c, own, x))
        x = _rms_norm(x, params["model.norm.weight"], c.epsilon)
        return x @ params.get("lm_head.weight", table).T

    return apply


class _Layer:
    """The parameters of a layer."""

    def __init__(self, params: Mapping[str, jax.Array], prefix: str) -> None:
        self._params, self._prefix = params, prefix

    def get(self, name: str) -> jax.Array | None:
        return self._params.get(self._prefix + name)

    def norm(self, x: jax.Array, name: str, epsilon: float) -> jax.Array:
        """Return x normalized over its last axis, where there is a norm of that name."""
        scale = self.get(f"{name}.weight")
        return x if scale is None else _rms_norm(x, scale, epsilon)

    def dense(self, x: jax.Array, name: str) -> jax.Array:
        """Return the product with a matrix [outputs, inputs], and its bias where there is one."""
        product = x @ self._params[f"{self._prefix}{name}.weight"].T
        bias = self.get(f"{name}.bias")
        return product if bias is None else product + bias


def _normed(c: Configuration, own: _Layer, part: str, x: jax.Array) -> jax.Array:
    return own.norm(x, f"{part}_layernorm", c.epsilon) if c.norms_outputs else x


def _attention(
    c: Configuration, own: _Layer, x: jax.Array, turns: tuple[np.ndarray, np.ndarray], pairs: Any
) -> jax.Array:
    batch, length, _ = x.shape
    x = own.norm(x, "input_layernorm", c.epsilon)

    def heads(name: str, count: int) -> jax.Array:
        return own.dense(x, f"self_attn.{name}_proj").reshape(batch, length, count, c.head_width)

    query = _rotated(own.norm(heads("q", c.heads), "self_attn.q_norm", c.epsilon), turns)
    key = _rotated(own.norm(heads("k", c.key_heads), "self_attn.k_norm", c.epsilon), turns)
    grouped = query.reshape(batch, length, c.key_heads, c.heads // c.key_heads, c.head_width)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", grouped, key) / np.sqrt(c.head_width).astype(np.float32)
    weights = jax.nn.softmax(jnp.where(pairs, scores, _UNSEEN))
    mixed = jnp.einsum("bkgqs,bskd->bqkgd", weights, heads("v", c.key_heads))
    return own.dense(mixed.reshape(batch, length, c.heads * c.head_width), "self_attn.o_proj")


def _feed_forward(c: Configuration, own: _Layer, x: jax.Array) -> jax.Array:
    norm = "pre_feedforward_layernorm" if c.norms_outputs else "post_attention_layernorm"
    x = own.norm(x, norm, c.epsilon)
    gate = own.dense(x, "mlp.gate_proj")
    gate = jax.nn.silu(gate) if c.activation == "silu" else jax.nn.gelu(gate, approximate=True)
    return own.dense(gate * own.dense(x, "mlp.up_proj"), "mlp.down_proj")


def _rms_norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + np.float32(epsilon)) * scale


def _turns(c: Configuration, layer: int, length: int, factors: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine by place and pair of numbers, [length, head_width / 2]."""
    base, scale = c.rotation(layer)
    speeds = base ** -(np.arange(0, c.head_width, 2) / c.head_width) / scale
    angles = np.arange(length)[:, None] * (speeds if factors is None else speeds / factors)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotated(x: jax.Array, turns: tuple[np.ndarray, np.ndarray]) -> jax.Array:
    """[B, length, heads, width]: each pair of numbers, one from each half, turned by an angle that its place gives."""
    cosine, sine = (part[:, None, :] for part in turns)
    left, right = jnp.split(x, 2, -1)
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], -1)


def _seen(length: int, window: int | None) -> np.ndarray:
    """Which tokens each sees, bool [length, length]: itself and those before, within a window."""
    distance = np.arange(length)[:, None] - np.arange(length)[None]
    return (distance >= 0) & (distance < (length if window is None else window))
