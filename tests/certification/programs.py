"""Small training programs of many kinds, as people write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from flax import linen as nn
from keras import layers as kl

import jax_frontend
from converter import Channels, LoRA, UpdateScheme

Made = tuple[Any, dict[str, Any]]
#: By name: a model, and what else `build` is told.
PROGRAMS: dict[str, Callable[[], Made]] = {}


def program(make: Callable[[], Made]) -> Callable[[], Made]:
    PROGRAMS[make.__name__] = make
    return make


def drawn(shape: Any, seed: int = 0) -> Any:
    """Weights: a shape, or a dict of such."""
    if isinstance(shape, dict):
        return {name: drawn(part, seed + number) for number, (name, part) in enumerate(shape.items())}
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0] if len(shape) > 1 else 9))


def plain(apply: Any, shapes: Any, row: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """A model in plain JAX."""
    return jax_frontend.Model(apply, drawn(shapes), [jax.ShapeDtypeStruct((1, *row), dtype)])


def linen(module: nn.Module, row: tuple[int, ...]) -> Any:
    """One in Flax."""
    x = jax.ShapeDtypeStruct((1, *row), np.float32)
    params = jax.tree.map(np.asarray, module.init(jax.random.key(0), np.zeros((1, *row), np.float32))["params"])
    return jax_frontend.Model(lambda p, x: module.apply({"params": p}, x), params, [x])


def stacked(*layers: Any, row: tuple[int, ...], dtype: str = "float32") -> Any:
    """One in Keras."""
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input(row, dtype=dtype), *layers])


# Convolutional nets


@program
def strided_convolutions() -> Made:
    return stacked(
        kl.Conv2D(6, 3, 2, "same", activation="relu"), kl.Conv2D(8, 5, 2, "valid", activation="relu6"),
        kl.Flatten(), kl.Dense(5), row=(17, 15, 3),
    ), {"optimizer": "sgd", "update": "full"}  # fmt: skip


@program
def dilated_convolutions() -> Made:
    return stacked(
        kl.Conv2D(6, 3, dilation_rate=2, padding="same", activation="gelu"),
        kl.Conv2D(6, 3, dilation_rate=(1, 3), activation="silu"), kl.GlobalAveragePooling2D(), kl.Dense(4),
        row=(12, 14, 2),
    ), {"optimizer": "momentum", "update": "full"}  # fmt: skip


@program
def grouped_convolutions() -> Made:
    return stacked(
        kl.Conv2D(8, 3, 2, "same", groups=4, activation="relu"), kl.Conv2D(12, 1, groups=2, activation="elu"),
        kl.GlobalMaxPooling2D(), kl.Dense(3), row=(10, 10, 4),
    ), {"optimizer": "adam", "update": "full"}  # fmt: skip


@program
def depthwise_with_multiplier() -> Made:
    return stacked(
        kl.Conv2D(3, 3, activation="relu"), kl.DepthwiseConv2D(3, 2, "same", depth_multiplier=2, activation="relu"),
        kl.SeparableConv2D(5, 3, activation="leaky_relu"), kl.Flatten(), kl.Dense(3), row=(13, 13, 2),
    ), {"optimizer": "rmsprop", "update": "full"}  # fmt: skip


@program
def pools_of_every_kind() -> Made:
    return stacked(
        kl.Conv2D(5, 3, padding="same", activation="tanh"), kl.AveragePooling2D(3, 2, "same"),
        kl.Conv2D(6, 3, padding="same"), kl.MaxPooling2D(3, 2, "same"), kl.Conv2D(6, 2), kl.AveragePooling2D(2, 1),
        kl.Flatten(), kl.Dense(4), row=(14, 15, 1),
    ), {"optimizer": "adagrad", "update": "full"}  # fmt: skip


@program
def convolutions_of_sequences() -> Made:
    return stacked(
        kl.Conv1D(6, 5, 2, "same", activation="relu"), kl.MaxPooling1D(2),
        kl.Conv1D(8, 3, padding="causal", dilation_rate=2), kl.BatchNormalization(),
        kl.AveragePooling1D(2), kl.GlobalAveragePooling1D(), kl.Dense(3), row=(40, 3),
    ), {"optimizer": "lion", "update": "full"}  # fmt: skip


@program
def padded_and_cropped() -> Made:
    return stacked(
        kl.ZeroPadding2D(((1, 2), (0, 1))), kl.Conv2D(4, 3, activation="relu"), kl.Cropping2D(1),
        kl.UpSampling2D(2), kl.MaxPooling2D(2), kl.Permute((3, 1, 2)), kl.Flatten(), kl.Dense(3), row=(9, 8, 2),
    ), {"optimizer": "adamw", "update": "full"}  # fmt: skip


def residual(norm: Any) -> Any:
    """A block with a norm, and its input beside it."""
    inputs = keras.Input((8, 8, 4))
    x = kl.Conv2D(8, 3, 2, "same", use_bias=False)(inputs)
    x = kl.Activation("relu")(norm()(x))
    x = norm()(kl.Conv2D(8, 3, padding="same", use_bias=False)(x))
    x = kl.Activation("relu")(kl.Add()([x, kl.Conv2D(8, 1, 2)(inputs)]))
    return keras.Model(inputs, kl.Dense(4)(kl.GlobalAveragePooling2D()(x)))


@program
def residual_batch_norm_train() -> Made:
    return residual(kl.BatchNormalization), {"optimizer": "sgd", "update": "full", "batch_norm": "train"}


@program
def residual_batch_norm_fixed() -> Made:
    return residual(kl.BatchNormalization), {"optimizer": "adam", "update": "sparse"}


@program
def residual_group_norm() -> Made:
    return residual(lambda: kl.GroupNormalization(2)), {"optimizer": "adamw", "update": "full"}


@program
def residual_instance_norm() -> Made:
    return residual(lambda: kl.GroupNormalization(-1)), {"optimizer": "sgd", "update": "full"}


@program
def squeezed_and_excited() -> Made:
    inputs = keras.Input((10, 10, 3))
    x = kl.Conv2D(8, 3, 2, "same", activation="swish")(inputs)
    gate = kl.Dense(8, "sigmoid")(kl.Dense(2, "relu")(kl.GlobalAveragePooling2D(keepdims=True)(x)))
    x = kl.Conv2D(6, 1, activation="hard_swish")(kl.Multiply()([x, gate]))
    return keras.Model(inputs, kl.Dense(3)(kl.Flatten()(x))), {"optimizer": "rmsprop", "update": "full"}


@program
def channels_of_a_convolution() -> Made:
    scheme = UpdateScheme("channels", {"*kernel": Channels(0.5), "*bias": 1.0})
    return stacked(
        kl.Conv2D(8, 3, activation="relu"), kl.Conv2D(8, 3, activation="relu"), kl.GlobalAveragePooling2D(),
        kl.Dense(4), row=(9, 9, 4),
    ), {"optimizer": "adam", "update": scheme}  # fmt: skip


@program
def flax_convolutions() -> Made:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for width, stride in ((8, 1), (12, 2)):
                x = nn.Conv(width, (3, 3), (stride, stride))(x)
                x = nn.relu(nn.LayerNorm()(x))
            x = nn.avg_pool(x, (2, 2), (2, 2))
            return nn.Dense(5)(x.mean((1, 2)))

    return linen(Net(), (12, 12, 3)), {"optimizer": "adam", "update": "full"}


# U-Nets


def unet(up: Callable[[Any, int], Any]) -> Any:
    inputs = keras.Input((12, 12, 2))
    one = kl.Conv2D(6, 3, padding="same", activation="relu")(inputs)
    two = kl.Conv2D(8, 3, padding="same", activation="relu")(kl.MaxPooling2D()(one))
    three = kl.Conv2D(12, 3, padding="same", activation="relu")(kl.MaxPooling2D()(two))
    x = kl.Conv2D(8, 3, padding="same", activation="relu")(kl.Concatenate()([up(three, 8), two]))
    x = kl.Conv2D(6, 3, padding="same", activation="relu")(kl.Concatenate()([up(x, 6), one]))
    return keras.Model(inputs, kl.Conv2D(3, 1)(x))


@program
def unet_transposed() -> Made:
    made = unet(lambda x, n: kl.Conv2DTranspose(n, 3, 2, "same", activation="relu")(x))
    return made, {"optimizer": "sgd", "update": "full", "loss": "sparse_categorical_crossentropy"}


@program
def unet_bilinear() -> Made:
    made = unet(lambda x, n: kl.UpSampling2D(2, interpolation="bilinear")(x))
    return made, {"optimizer": "adam", "update": "full", "loss": "mse"}


@program
def unet_nearest_instance_norm() -> Made:
    made = unet(lambda x, n: kl.GroupNormalization(-1)(kl.UpSampling2D(2)(x)))
    return made, {"optimizer": "sgd", "update": "full", "loss": "binary_crossentropy"}


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


# Decoders


def turned(x: Any, interleaved: bool) -> Any:
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
        q, k = turned(q, interleaved), turned(k, interleaved)
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


# Other heads, losses and parts


@program
def several_outputs() -> Made:
    inputs = keras.Input((6,), name="x")
    x = kl.Dense(8, "relu")(inputs)
    outputs = {"kind": kl.Dense(4, name="kind")(x), "size": kl.Dense(2, name="size")(x)}
    losses = {"kind": "sparse_categorical_crossentropy", "size": "huber"}
    return keras.Model(inputs, outputs), {"optimizer": "adam", "update": "full", "loss": losses}


def perceptron(optimizer: str, loss: str, **options: Any) -> Made:
    model = stacked(kl.Dense(12, "softplus"), kl.LayerNormalization(), kl.Dense(5), row=(7,))
    return model, {"optimizer": optimizer, "update": "full", "loss": loss, **options}


for _optimizer, _loss in (
    ("sgd", "mse"), ("momentum", "mae"), ("adam", "log_cosh"), ("adamw", "cosine_similarity"), ("rmsprop", "hinge"),
    ("adagrad", "kl_divergence"), ("lion", "binary_focal_crossentropy"), ("adam", "categorical_focal_crossentropy"),
    ("sgd", "categorical_crossentropy"),
):  # fmt: skip
    PROGRAMS[f"perceptron_{_loss}"] = partial(perceptron, _optimizer, _loss)


@program
def micro_batches() -> Made:
    return perceptron("adam", "mse", micro_batch=2)


@program
def functions_of_every_kind() -> Made:
    def apply(p: Any, x: Any) -> Any:
        y = x @ p["w"]
        y = jnp.sin(y) + jnp.cos(2 * y) + jnp.sqrt(jnp.abs(y) + 0.1) + jnp.log1p(y * y) + jax.nn.softplus(y)
        y = y + jnp.cumsum(y, 1) + jnp.flip(y, 1) + jnp.where(y > 0, y, p["a"] * y) + jnp.clip(y, -1, 1)
        y = y / (1 + jnp.exp(-jnp.max(y, 1, keepdims=True))) + jnp.power(jnp.abs(y) + 1, 1.5) + jnp.arctan2(y, y + 3)
        return y @ p["head"]

    return plain(apply, {"w": (6, 8), "a": (8,), "head": (8, 3)}, (6,)), {"optimizer": "sgd", "update": "full"}
