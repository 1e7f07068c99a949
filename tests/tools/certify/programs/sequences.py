"""Recurrent nets, encoders and decoders."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import layers as kl

from converter import LoRA, UpdateScheme
from tests.tools.certify.programs.made import Made, plain, program, stacked

# Recurrent nets


@program
def lstm() -> Made:
    return stacked(kl.LSTM(8, unroll=True), kl.Dense(3), row=(6, 4)), {"optimizer": "adam", "update": "full"}


@program
def gru_of_tokens() -> Made:
    return stacked(
        kl.Embedding(30, 8), kl.GRU(6, unroll=True, return_sequences=True), kl.GlobalMaxPooling1D(), kl.Dense(3),
        row=(7,), dtype="int32",
    ), {"optimizer": "rmsprop", "update": "full"}  # fmt: skip


@program
def simple_rnn_both_ways() -> Made:
    return stacked(
        kl.Bidirectional(kl.SimpleRNN(5, unroll=True)), kl.Dense(3), row=(5, 4)
    ), {"optimizer": "sgd", "update": "full"}  # fmt: skip


@program
def looped_gru() -> Made:
    """Keras' own loop; whether it is unrolled is the compiler's business."""
    return stacked(kl.GRU(5), kl.Dense(3), row=(6, 4)), {"optimizer": "sgd", "update": "full"}


@program
def state_space() -> Made:
    """A scan of an odd length, which slices nothing at its end."""

    def joined(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    def apply(p: Any, x: Any) -> Any:
        _, states = jax.lax.associative_scan(joined, (jax.nn.sigmoid(x @ p["forget"]), x @ p["in"]), axis=1)
        return (states * jax.nn.silu(x @ p["gate"])).mean(1) @ p["head"]

    shapes = dict.fromkeys(("forget", "in", "gate"), (5, 8)) | {"head": (8, 3)}
    return plain(apply, shapes, (9, 5)), {"optimizer": "lion", "update": "full"}


# Encoders


def attention(p: Any, x: Any, heads: int, mask: Any = None) -> Any:
    def split(y: Any) -> Any:
        return y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    q, k, v = (split(x @ p[name] + p[f"{name}_bias"]) for name in ("q", "k", "v"))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    shares = jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, -1e9))
    return (shares @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ p["o"]


def layer_norm(p: Any, x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6) * (1 + p["scale"]) + p["bias"]


def block(width: int) -> dict[str, Any]:
    """Shapes of an encoder's block, the keys with a bias whose gradient is zero."""
    square = dict.fromkeys(("q", "k", "v", "o"), (width, width))
    norm = {"scale": (width,), "bias": (width,)}
    biases = {f"{name}_bias": (width,) for name in ("q", "k", "v")}
    return {"attention": square | biases, "one": norm, "two": norm, "in": (width, 2 * width), "out": (2 * width, width)}


def encoded(p: Any, x: Any, heads: int, mask: Any = None) -> Any:
    x = x + attention(p["attention"], layer_norm(p["one"], x), heads, mask)
    return x + jax.nn.gelu(layer_norm(p["two"], x) @ p["in"]) @ p["out"]


def encoder(vocabulary: int, length: int = 8, width: int = 16) -> Any:
    def apply(p: Any, ids: Any) -> Any:
        x = jnp.take(p["tokens"], ids, axis=0) + p["positions"]
        for name in ("block_0", "block_1"):
            with jax.named_scope(name):
                x = encoded(p[name], x, 4, (ids > 0)[:, None, None, :])
        return x.mean(1) @ p["head"]

    shapes = {"tokens": (vocabulary, width), "positions": (length, width), "head": (width, 3)}
    return plain(apply, shapes | {"block_0": block(width), "block_1": block(width)}, (length,), np.int32)


@program
def encoder_full() -> Made:
    return encoder(100), {"optimizer": "adam", "update": "full"}


@program
def encoder_last() -> Made:
    return encoder(60), {"optimizer": "adamw", "update": "last-1"}


@program
def encoder_lora() -> Made:
    scheme = UpdateScheme("lora", {"*attention/q": LoRA(4), "*attention/v": LoRA(4), "head": 1.0})
    return encoder(60), {"optimizer": "adam", "update": scheme}


@program
def encoder_of_30000_words() -> Made:
    return encoder(30_000), {"optimizer": "sgd", "update": "full"}


@program
def keras_attention() -> Made:
    inputs = keras.Input((9, 12))
    x = kl.LayerNormalization()(kl.Add()([inputs, kl.MultiHeadAttention(3, 4)(inputs, inputs)]))
    x = kl.Add()([x, kl.Dense(12)(kl.Dense(20, "gelu")(x))])
    return keras.Model(inputs, kl.Dense(4)(kl.GlobalAveragePooling1D()(x))), {"optimizer": "adam", "update": "full"}


@program
def vision_transformer() -> Made:
    def apply(p: Any, x: Any) -> Any:
        n = x.shape[0]
        x = x.reshape(n, 3, 4, 3, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(n, 9, 48) @ p["patches"]
        x = jnp.concatenate([jnp.broadcast_to(p["first"], (n, 1, 16)), x], 1) + p["positions"]
        return encoded(p["block"], x, 2)[:, 0] @ p["head"]

    shapes = {"patches": (48, 16), "first": (1, 1, 16), "positions": (10, 16), "block": block(16), "head": (16, 4)}
    return plain(apply, shapes, (12, 12, 3)), {"optimizer": "lion", "update": "full"}


@program
def mixer() -> Made:
    def apply(p: Any, x: Any) -> Any:
        y = layer_norm(p["one"], x).swapaxes(1, 2)
        x = x + (jax.nn.gelu(y @ p["a"]) @ p["b"]).swapaxes(1, 2)
        return (x + jax.nn.gelu(layer_norm(p["two"], x) @ p["c"]) @ p["d"]).mean(1) @ p["head"]

    norm = {"scale": (8,), "bias": (8,)}
    shapes = {"one": norm, "two": norm, "a": (6, 10), "b": (10, 6), "c": (8, 12), "d": (12, 8), "head": (8, 3)}
    return plain(apply, shapes, (6, 8)), {"optimizer": "adagrad", "update": "full"}


@program
def relative_positions() -> Made:
    """A table that is gathered at places which the program holds, as in T5."""
    heads, length, width = 4, 7, 16
    separate = np.clip(np.arange(length)[:, None] - np.arange(length) + 4, 0, 8)

    def apply(p: Any, ids: Any) -> Any:
        x = jnp.take(p["tokens"], ids, axis=0)
        q, k, v = ((x @ p[n]).reshape(-1, length, heads, 4).transpose(0, 2, 1, 3) for n in ("q", "k", "v"))
        scores = q @ k.swapaxes(-1, -2) + jnp.take(p["relative"], separate, axis=0).transpose(2, 0, 1)
        mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(-1, length, width)
        return (x + mixed)[:, -1] @ p["head"]

    shapes = {"tokens": (20, width), "relative": (9, heads), "head": (width, 4)}
    shapes |= dict.fromkeys(("q", "k", "v"), (width, width))
    return plain(apply, shapes, (length,), np.int32), {"optimizer": "adam", "update": "full"}


# Decoders


def transposed(x: Any, interleaved: bool) -> Any:
    """Rotary positions of [B, H, T, D]: pairs of neighbours, or of halves."""
    length, half = x.shape[2], x.shape[3] // 2
    angles = np.arange(length)[:, None] / 100.0 ** (np.arange(half) / half)
    cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
    if interleaved:
        pairs = x.reshape(*x.shape[:3], half, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def decoder(vocabulary: int, interleaved: bool, tied: bool = True, length: int = 8, width: int = 16) -> Any:
    """Two blocks of four heads with two heads of keys."""
    heads, groups, size = 4, 2, width // 4

    def norm(scale: Any, x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * (1 + scale)

    def layer(p: Any, x: Any) -> Any:
        def split(y: Any, n: int) -> Any:
            return y.reshape(*y.shape[:2], n, size).transpose(0, 2, 1, 3)

        y = norm(p["one"], x)
        q, k, v = split(y @ p["q"], heads), split(y @ p["k"], groups), split(y @ p["v"], groups)
        q, k = transposed(q, interleaved), transposed(k, interleaved)
        k, v = (jnp.repeat(z, heads // groups, axis=1) for z in (k, v))
        scores = jnp.where(np.tri(length, dtype=bool), q @ k.swapaxes(-1, -2) / np.sqrt(size), -jnp.inf)
        x = x + (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ p["o"]
        y = norm(p["two"], x)
        return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]

    def apply(p: Any, ids: Any) -> Any:
        x = jnp.take(p["tokens"], ids, axis=0)
        for name in ("layer_0", "layer_1"):
            with jax.named_scope(name):
                x = layer(p[name], x)
        x = norm(p["norm"], x)
        return x @ (p["tokens"].T if tied else p["head"])

    narrow, wide = (width, groups * size), (width, 2 * width)
    shapes = {"q": (width, width), "k": narrow, "v": narrow, "o": (width, width), "one": (width,), "two": (width,)}
    shapes |= {"gate": wide, "up": wide, "down": wide[::-1]}
    every: dict[str, Any] = {"tokens": (vocabulary, width), "norm": (width,), "layer_0": shapes, "layer_1": shapes}
    return plain(apply, every | ({} if tied else {"head": (width, vocabulary)}), (length,), np.int32)


TEXT = {"loss": "next_token"}


@program
def decoder_interleaved() -> Made:
    return decoder(50, interleaved=True), {"optimizer": "adam", "update": "full", **TEXT}


@program
def decoder_of_halves() -> Made:
    return decoder(50, interleaved=False, tied=False), {"optimizer": "adamw", "update": "full", **TEXT}


@program
def decoder_lora() -> Made:
    scheme = UpdateScheme("lora", {"*q": LoRA(2), "*v": LoRA(2)})
    return decoder(50, interleaved=True), {"optimizer": "adam", "update": scheme, **TEXT}


@program
def decoder_of_30000_words() -> Made:
    return decoder(30_000, interleaved=True), {"optimizer": "sgd", "update": "last-1", **TEXT}


@program
def decoder_of_50000_words() -> Made:
    return decoder(50_000, interleaved=False), {"optimizer": "sgd", "update": "full", **TEXT}
