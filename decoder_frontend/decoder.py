"""The decoder in JAX: RMSNorm, rotated positions, grouped queries, a gated feed-forward part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoder_frontend.configuration import Configuration
from jax_frontend import rows_of

#: What is added to the scores of pairs that do not see each other: e to it is 0 in any precision.
_UNSEEN = -1e9


#: What gives the mixed values of a layer, [B, length, key_heads, queries of each, head_width], from its number, the
#: grouped queries, the keys and the values.
_Attend = Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]
#: Cosine and sine by place and pair of numbers, [length, head_width / 2].
_Turns = tuple[Any, Any]


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
        alike = None if segments is None else segments[:, :, None] == segments[:, None, :]

        def attend(layer: int, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            pairs: Any = seen[layer]
            if alike is not None:
                pairs = jnp.logical_and(pairs, alike)[:, None, None]
            weights = jax.nn.softmax(jnp.where(pairs, _scores(c, query, key), _UNSEEN))
            return jnp.einsum("bkgqs,bskd->bqkgd", weights, value)

        return _logits(c, params, _states(c, params, ids, turns, attend))

    return apply


def continuation(
    configuration: Configuration, length: int, tokens: int, frequency_factors: np.ndarray | None = None
) -> Callable[..., dict[str, jax.Array]]:
    """Return the function that reads a text on: new tokens and what is kept of those before -> what comes next.

    It takes the parameters, and of one text ids int32 [1, tokens], the position int32 [1] of the first of them, how
    many of them count int32 [1], and the keys and values of all positions before, [1, layers, key_heads, length,
    head_width] each. It gives the `logits` [1, vocabulary] behind the last that counts, and the `keys` and `values` of
    the new tokens, [1, layers, key_heads, tokens, head_width]: whoever calls puts them behind the others.

    Args:
        configuration: of the net.
        length: the most tokens of a text.
        tokens: that are read at once.
        frequency_factors: as of `decoder`.
    """
    c = configuration
    tables = [_turns(c, layer, length, frequency_factors) for layer in range(c.layers)]

    def apply(
        params: Mapping[str, jax.Array],
        ids: jax.Array,
        position: jax.Array,
        count: jax.Array,
        keys: jax.Array,
        values: jax.Array,
    ) -> dict[str, jax.Array]:
        places = position + np.arange(tokens, dtype=np.int32)
        distance = places[:, None] - np.arange(length, dtype=np.int32)[None]
        before = jnp.broadcast_to(np.arange(length, dtype=np.int32)[None] < position, (tokens, length))
        looked_up = {id(table): tuple(jnp.take(part, places, 0, mode="clip") for part in table) for table in tables}
        made_keys, made_values = [], []

        def attend(layer: int, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            window = c.looks_back(layer)
            kept = before if window is None else jnp.logical_and(before, distance < window)
            made_keys.append(jnp.transpose(key, (0, 2, 1, 3)))
            made_values.append(jnp.transpose(value, (0, 2, 1, 3)))
            all_keys = jnp.concatenate([keys[:, layer], made_keys[-1]], 2)
            all_values = jnp.concatenate([values[:, layer], made_values[-1]], 2)
            scores = jnp.einsum("bqkgd,bksd->bkgqs", query, all_keys) / np.sqrt(c.head_width).astype(np.float32)
            pairs = jnp.concatenate([kept, jnp.asarray(_seen(tokens, window))], 1)
            weights = jax.nn.softmax(jnp.where(pairs, scores, _UNSEEN))
            return jnp.einsum("bkgqs,bksd->bqkgd", weights, all_values)

        x = _states(c, params, ids, [looked_up[id(table)] for table in tables], attend)
        last = jnp.take(x, count - 1, 1, mode="clip")[:, 0]
        return {
            "logits": _logits(c, params, last),
            "keys": jnp.stack(made_keys, 1),
            "values": jnp.stack(made_values, 1),
        }

    return apply


def _states(
    c: Configuration, params: Mapping[str, jax.Array], ids: jax.Array, turns: Sequence[_Turns], attend: _Attend
) -> jax.Array:
    """Return the states behind the last layer, [B, length, width]."""
    x = rows_of(params["model.embed_tokens.weight"], ids)
    if c.scales_embedding:
        x = x * np.float32(np.sqrt(c.width))
    for layer in range(c.layers):
        own = _Layer(params, f"model.layers.{layer}.")
        x = x + _normed(c, own, "post_attention", _attention(c, own, x, turns[layer], partial(attend, layer)))
        x = x + _normed(c, own, "post_feedforward", _feed_forward(c, own, x))
    return x


def _logits(c: Configuration, params: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    x = _rms_norm(x, params["model.norm.weight"], c.epsilon)
    return x @ params.get("lm_head.weight", params["model.embed_tokens.weight"]).T


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
    c: Configuration, own: _Layer, x: jax.Array, turns: _Turns, attend: Callable[..., jax.Array]
) -> jax.Array:
    batch, length, _ = x.shape
    x = own.norm(x, "input_layernorm", c.epsilon)

    def heads(name: str, count: int) -> jax.Array:
        return own.dense(x, f"self_attn.{name}_proj").reshape(batch, length, count, c.head_width)

    query = _rotated(own.norm(heads("q", c.heads), "self_attn.q_norm", c.epsilon), turns)
    key = _rotated(own.norm(heads("k", c.key_heads), "self_attn.k_norm", c.epsilon), turns)
    grouped = query.reshape(batch, length, c.key_heads, c.heads // c.key_heads, c.head_width)
    mixed = attend(grouped, key, heads("v", c.key_heads))
    return own.dense(mixed.reshape(batch, length, c.heads * c.head_width), "self_attn.o_proj")


def _scores(c: Configuration, query: jax.Array, key: jax.Array) -> jax.Array:
    """Return how well queries and keys fit each other, [B, key_heads, queries of each, length, length]."""
    return jnp.einsum("bqkgd,bskd->bkgqs", query, key) / np.sqrt(c.head_width).astype(np.float32)


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


def _rotated(x: jax.Array, turns: _Turns) -> jax.Array:
    """[B, length, heads, width]: each pair of numbers, one from each half, turned by an angle that its place gives."""
    cosine, sine = (part[:, None, :] for part in turns)
    left, right = jnp.split(x, 2, -1)
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], -1)


def _seen(length: int, window: int | None) -> np.ndarray:
    """Which tokens each sees, bool [length, length]: itself and those before, within a window."""
    distance = np.arange(length)[:, None] - np.arange(length)[None]
    return (distance >= 0) & (distance < (length if window is None else window))
