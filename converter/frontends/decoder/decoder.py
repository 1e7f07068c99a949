"""The decoder in JAX: RMSNorm, rotary positions, grouped queries, a gated feed-forward part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from converter.frontends.decoder.configuration import Configuration
from converter.frontends.decoder.rope import Rope
from jax_frontend import rows_of

#: What is added to the scores of pairs that do not see each other: e to it is 0 in any precision.
_UNSEEN = -1e9
_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "gelu": partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
}

#: What gives the mixed values of a layer, [B, length, kv_heads, queries of each, head_width], from its number, the
#: grouped queries, the keys and the values.
_Attend = Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]
#: Cosine and sine by position and pair of numbers, [length, pairs]; None: the layer does not rotate.
_Turns = tuple[Any, Any] | None


def decoder(configuration: Configuration, length: int) -> Callable[..., jax.Array]:
    """Return the function of a decoder: ids int32 [B, length], segments -> logits [B, length, vocabulary].

    It takes the parameters by the names of `transformers`, the ids, and where sequences are packed the number of the
    text of each token, int32 [B, length], of which none sees another's. Rotations tell how far tokens are from each
    other alone, so texts need not begin at position 0.

    Args:
        configuration: of the net.
        length: tokens of a row.
    """
    c = configuration
    turns = _tables(c, length)
    seen = [_seen(length, window) for window in c.windows]

    def apply(params: Mapping[str, jax.Array], ids: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        alike = None if segments is None else segments[:, :, None] == segments[:, None, :]

        def attend(layer: int, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            pairs: Any = seen[layer]
            if alike is not None:
                pairs = jnp.logical_and(pairs, alike)[:, None, None]
            scores = _scores(c, jnp.einsum("bqkgd,bskd->bkgqs", query, key))
            weights = jax.nn.softmax(jnp.where(pairs, scores, _UNSEEN))
            return jnp.einsum("bkgqs,bskd->bqkgd", weights, value)

        return _logits(c, params, _states(c, params, ids, turns, attend))

    return apply


def continuation(configuration: Configuration, length: int, tokens: int) -> Callable[..., dict[str, jax.Array]]:
    """Return the function that reads a text on: new tokens and what is kept of those before -> what comes next.

    It takes the parameters, and of one text ids int32 [1, tokens], the position int32 [1] of the first of them, how
    many of them count int32 [1], and the keys and values of all positions before, [1, layers, kv_heads, length,
    head_width] each. It gives the `logits` [1, vocabulary] after the last that counts, and the `keys` and `values` of
    the new tokens, [1, layers, kv_heads, tokens, head_width]: whoever calls puts them after the others.

    Args:
        configuration: of the net.
        length: the most tokens of a text.
        tokens: that are read at once.
    """
    c = configuration
    tables = _tables(c, length)

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
        looked_up: dict[int, _Turns] = {
            id(table): None if table is None else tuple(jnp.take(part, places, 0, mode="clip") for part in table)
            for table in tables
        }
        made_keys, made_values = [], []

        def attend(layer: int, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            window = c.windows[layer]
            kept = before if window is None else jnp.logical_and(before, distance < window)
            made_keys.append(jnp.transpose(key, (0, 2, 1, 3)))
            made_values.append(jnp.transpose(value, (0, 2, 1, 3)))
            all_keys = jnp.concatenate([keys[:, layer], made_keys[-1]], 2)
            all_values = jnp.concatenate([values[:, layer], made_values[-1]], 2)
            scores = _scores(c, jnp.einsum("bqkgd,bksd->bkgqs", query, all_keys))
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
    """Return the states after the last layer, over the multiplier of residuals, [B, length, width].

    What reads the states normalizes them, so they may be kept divided by it: no product is then after a matrix, where
    it would become part of a weight that has an adapter.
    """
    norms = c.architecture.norms
    x = rows_of(params["model.embed_tokens.weight"], ids)
    if c.architecture.root_of_width:
        x = x * np.float32(np.sqrt(c.width))
    if c.scales.embedding != c.scales.residual:
        x = x * np.float32(c.scales.embedding / c.scales.residual)
    for layer in range(c.layers):
        own = _Layer(params, f"model.layers.{layer}.", c)
        given = _attention(
            c, own, own.norm(x, norms.before_attention, c.scales.residual), turns[layer], partial(attend, layer)
        )
        x = x + own.norm(given, norms.after_attention)
        given = _feed_forward(c, own, own.norm(x, norms.before_feed_forward, c.scales.residual))
        x = x + own.norm(given, norms.after_feed_forward)
    return x


def _logits(c: Configuration, params: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    x = _rms_norm(x, params["model.norm.weight"], c.epsilon, c.scales.residual)
    if c.scales.logits != 1:
        x = x / np.float32(c.scales.logits)
    logits = x @ params["model.embed_tokens.weight" if c.tied else "lm_head.weight"].T
    return _capped(logits, c.scales.most_logit)


class _Layer:
    """The parameters of a layer."""

    def __init__(self, params: Mapping[str, jax.Array], prefix: str, c: Configuration) -> None:
        self._params, self._prefix, self._epsilon = params, prefix, c.epsilon

    def norm(self, x: jax.Array, names: tuple[str, str] | None, over: float = 1.0) -> jax.Array:
        """Return x, times `over`, normalized over its last axis by the norm of that name; x where there is none."""
        return x if names is None else self.normed(x, names[0], over)

    def normed(self, x: jax.Array, name: str, over: float = 1.0) -> jax.Array:
        """Return x, times `over`, normalized over its last axis."""
        return _rms_norm(x, self._params[f"{self._prefix}{name}.weight"], self._epsilon, over)

    def dense(self, x: jax.Array, name: str) -> jax.Array:
        """Return the product with a matrix [outputs, inputs], and its bias where there is one."""
        product = x @ self._params[f"{self._prefix}{name}.weight"].T
        bias = self._params.get(f"{self._prefix}{name}.bias")
        return product if bias is None else product + bias


def _attention(
    c: Configuration, own: _Layer, x: jax.Array, turns: _Turns, attend: Callable[..., jax.Array]
) -> jax.Array:
    batch, length, _ = x.shape
    counts = {"q": c.heads, "k": c.kv_heads, "v": c.kv_heads}
    if "self_attn.qkv_proj" in c.architecture.products:
        ends = np.cumsum([count * c.head_width for count in counts.values()])[:-1].tolist()
        parts = dict(zip(counts, jnp.split(own.dense(x, "self_attn.qkv_proj"), ends, -1), strict=True))
    else:
        parts = {name: own.dense(x, f"self_attn.{name}_proj") for name in counts}

    def heads(name: str) -> jax.Array:
        """Return the heads of q, k or v, [B, length, heads, head_width], of which the first two are normalized."""
        part, norm = parts[name], "" if name == "v" else c.architecture.head_norm
        if norm == "all":
            part = own.normed(part, f"self_attn.{name}_norm")
        part = part.reshape(batch, length, counts[name], c.head_width)
        return own.normed(part, f"self_attn.{name}_norm") if norm == "head" else part

    query, key = _rotated(heads("q"), turns), _rotated(heads("k"), turns)
    grouped = query.reshape(batch, length, c.kv_heads, c.heads // c.kv_heads, c.head_width)
    mixed = attend(grouped, key, heads("v"))
    return own.dense(mixed.reshape(batch, length, c.heads * c.head_width), "self_attn.o_proj")


def _scores(c: Configuration, products: jax.Array) -> jax.Array:
    """Return the scores of queries and keys, of their products."""
    return _capped(products / np.float32(c.scales.scores), c.scales.most_score)


def _feed_forward(c: Configuration, own: _Layer, x: jax.Array) -> jax.Array:
    if "mlp.gate_up_proj" in c.architecture.products:
        gate, up = jnp.split(own.dense(x, "mlp.gate_up_proj"), 2, -1)
    else:
        gate, up = own.dense(x, "mlp.gate_proj"), own.dense(x, "mlp.up_proj")
    return own.dense(_ACTIVATIONS[c.activation](gate) * up, "mlp.down_proj")


def _capped(x: jax.Array, most: float | None) -> jax.Array:
    return x if most is None else jnp.tanh(x / np.float32(most)) * np.float32(most)


def _rms_norm(x: jax.Array, scale: jax.Array, epsilon: float, over: float = 1.0) -> jax.Array:
    """Return `over` times x, normalized."""
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + np.float32(epsilon / over**2)) * scale


def _tables(c: Configuration, length: int) -> list[_Turns]:
    """Return the cosines and sines of each layer, one table for layers that rotate alike."""
    made: dict[Rope, _Turns] = {rope: rope.tables(length) for rope in set(c.ropes) if rope is not None}
    return [None if rope is None else made[rope] for rope in c.ropes]


def _rotated(x: jax.Array, turns: _Turns) -> jax.Array:
    """[B, length, heads, width]: each pair of numbers, one from each half, rotated by an angle that its place gives.

    Numbers after the last pair stay as they are.
    """
    if turns is None:
        return x
    cosine, sine = (part[:, None, :] for part in turns)
    pairs = cosine.shape[-1]
    left, right, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    if not rest.shape[-1]:
        left, right = jnp.split(x, 2, -1)
    rotated = [left * cosine - right * sine, right * cosine + left * sine]
    return jnp.concatenate([*rotated, rest] if rest.shape[-1] else rotated, -1)


def _seen(length: int, window: int | None) -> np.ndarray:
    """Which tokens each sees, bool [length, length]: itself and those before, within a window."""
    distance = np.arange(length)[:, None] - np.arange(length)[None]
    return (distance >= 0) & (distance < (length if window is None else window))
