"""The nets that are measured: plain JAX as a user would write it, with seeded weights and data.

    from workloads import workload
    net = workload("W1", batch=8)
    converter.build(net.model, net.loss, update=net.updates["sparse"], batch=net.batch)

W1 MobileNetV2, W2 ResNet-50 (stride on the 3x3), W3 a BERT-like encoder with a classifier over the first token, W4 a
LLaMA-like decoder. Each takes its sizes as options, so that a test can have a small one. `weights` and `trained` tell
another framework all it needs to train the same tensors: it writes the net anew, from the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_frontend
from jax_frontend.model import named_leaves

#: Keeps a normalization from dividing by zero; the same in all nets and frameworks.
EPSILON = 1e-5
SCHEMES = ("full", "sparse", "head")
#: Statistics of a batch norm: they do not train.
STATISTICS = ("*/mean", "*/var")
#: output channels, blocks, stride of the first, expansion.
_MOBILENET_STAGES = (
    (16, 1, 1, 1),
    (24, 2, 2, 6),
    (32, 3, 2, 6),
    (64, 4, 2, 6),
    (96, 3, 1, 6),
    (160, 3, 2, 6),
    (320, 1, 1, 6),
)
_RESNET_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


@dataclass(frozen=True)
class Workload:
    """A net, its data, and what of it trains.

    Attributes:
        name: W1 to W4.
        kind: which net another framework has to write: mobilenetv2, resnet50, encoder, decoder.
        sizes: what the net's code needs to know beside the shapes of its weights.
        batch: rows of a step.
        model: the net for `converter.build`.
        loss: for `converter.build`; the mean over rows (and positions).
        updates: scheme -> glob rules for `converter.build`.
        x: the inputs of one step.
        y: the classes, [batch], or the next token at each position.
    """

    name: str
    kind: str
    sizes: Mapping[str, Any]
    batch: int
    model: jax_frontend.Model
    updates: Mapping[str, Mapping[str, float]]
    x: np.ndarray
    y: np.ndarray
    loss: str = "sparse_categorical_crossentropy"

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """All weights by name, as JAX lays them out: filters HWIO, matrices [in, out]."""
        return named_leaves(self.model.params)

    @property
    def trained(self) -> dict[str, list[str]]:
        """Scheme -> the names of the weights that train, in order."""
        able = [n for n in self.weights if not any(fnmatchcase(n, pattern) for pattern in self.model.frozen)]
        return {
            scheme: [n for n in able if any(fnmatchcase(n, pattern) for pattern in rules)]
            for scheme, rules in self.updates.items()
        }


def workload(name: str, batch: int | None = None, **sizes: Any) -> Workload:
    """W1, W2, W3 or W4; without `batch` the one it is usually measured with."""
    factory, usual = _FACTORIES[name]
    return factory(name, usual if batch is None else batch, **sizes)


# -- convolutional nets ------------------------------------------------------------------------------------------------


def mobilenetv2(
    name: str, batch: int, size: int = 224, classes: int = 1000, width: float = 1.0, seed: int = 0
) -> Workload:
    """MobileNetV2; sparse: the first 1x1 convolution and its beta in each of the last 7 blocks, and the head."""
    draw = _Weights(seed)

    def wide(channels: int) -> int:
        rounded = max(8, int(channels * width + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * channels * width else rounded

    blocks, strides, inside = [], [], wide(32)
    for channels, count, first, expansion in _MOBILENET_STAGES:
        for i in range(count):
            hidden, outside = inside * expansion, wide(channels)
            block = {"expand": draw.unit(1, inside, hidden)} if expansion > 1 else {}
            block["depthwise"] = draw.unit(3, 1, hidden)
            block["project"] = draw.unit(1, hidden, outside, gain=0.5)
            blocks.append(block)
            strides.append(first if i == 0 else 1)
            inside = outside
    last = 1280 if width <= 1 else wide(1280)
    params = {
        "stem": draw.unit(3, 3, wide(32)),
        "blocks": blocks,
        "last": draw.unit(1, inside, last),
        "head": draw.dense(last, classes),
    }
    sparse = {f"blocks/{i}/expand/{part}": 1.0 for i in range(len(blocks) - 7, len(blocks)) for part in ("w", "beta")}
    return _images(name, "mobilenetv2", _mobilenetv2, strides, params, sparse, batch, size, classes, seed)


def _mobilenetv2(strides: list[int], params: Any, x: jax.Array) -> jax.Array:
    x = jax.nn.relu6(_unit(params["stem"], x, 2))
    for block, stride in zip(params["blocks"], strides, strict=True):
        y = jax.nn.relu6(_unit(block["expand"], x)) if "expand" in block else x
        y = jax.nn.relu6(_unit(block["depthwise"], y, stride, groups=y.shape[-1]))
        y = _unit(block["project"], y)
        x = x + y if x.shape == y.shape else y
    x = jax.nn.relu6(_unit(params["last"], x))
    return _dense(params["head"], x.mean((1, 2)))


def resnet50(name: str, batch: int, size: int = 224, classes: int = 1000, width: int = 64, seed: int = 0) -> Workload:
    """ResNet-50; sparse: the first 1x1 convolution and its beta in each of the last 8 blocks, and the head."""
    draw = _Weights(seed)
    blocks, strides, inside = [], [], width
    for channels, count, first in _RESNET_STAGES:
        hidden, outside = channels * width // 64, 4 * channels * width // 64
        for i in range(count):
            block = {
                "reduce": draw.unit(1, inside, hidden),
                "conv": draw.unit(3, hidden, hidden),
                "expand": draw.unit(1, hidden, outside, gain=0.2),
            }
            if i == 0:
                block["shortcut"] = draw.unit(1, inside, outside, gain=1.0)
            blocks.append(block)
            strides.append(first if i == 0 else 1)
            inside = outside
    params = {"stem": draw.unit(7, 3, width), "blocks": blocks, "head": draw.dense(inside, classes)}
    sparse = {f"blocks/{i}/reduce/{part}": 1.0 for i in range(len(blocks) - 8, len(blocks)) for part in ("w", "beta")}
    return _images(name, "resnet50", _resnet50, strides, params, sparse, batch, size, classes, seed)


def _resnet50(strides: list[int], params: Any, x: jax.Array) -> jax.Array:
    x = jax.nn.relu(_unit(params["stem"], x, 2))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for block, stride in zip(params["blocks"], strides, strict=True):
        y = jax.nn.relu(_unit(block["reduce"], x))
        y = jax.nn.relu(_unit(block["conv"], y, stride))
        y = _unit(block["expand"], y)
        x = jax.nn.relu(y + (_unit(block["shortcut"], x, stride) if "shortcut" in block else x))
    return _dense(params["head"], x.mean((1, 2)))


def _unit(layer: Any, x: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """Return a convolution and its batch norm with the statistics that it once learned."""
    x = jax.lax.conv_general_dilated(
        x,
        layer["w"],
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )
    return (x - layer["mean"]) * (layer["gamma"] / jnp.sqrt(layer["var"] + EPSILON)) + layer["beta"]


def _images(
    name: str,
    kind: str,
    apply: Callable[..., Any],
    strides: list[int],
    params: Any,
    sparse: dict[str, float],
    batch: int,
    size: int,
    classes: int,
    seed: int,
) -> Workload:
    rng = np.random.default_rng(seed + 1)
    x = rng.standard_normal((batch, size, size, 3), np.float32)
    y = rng.integers(0, classes, batch).astype(np.int32)
    inputs = [jax.ShapeDtypeStruct((1, size, size, 3), np.float32)]
    model = jax_frontend.Model(partial(apply, strides), params, inputs, frozen=STATISTICS)
    return Workload(name, kind, {"strides": strides}, batch, model, _schemes(sparse), x, y)


# -- transformers ------------------------------------------------------------------------------------------------------


def encoder(
    name: str,
    batch: int,
    layers: int = 6,
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    length: int = 128,
    vocabulary: int = 30522,
    classes: int = 4,
    seed: int = 0,
) -> Workload:
    """Return an encoder; sparse: q, k, v, o and the first FFN matrix of the later half of the layers, and the head."""
    draw = _Weights(seed)
    params = {
        "embeddings": {
            "tokens": draw.normal(0.5, vocabulary, width),
            "positions": draw.normal(0.5, length, width),
            "norm": draw.norm(width),
        },
        "layers": [
            # No bias on the keys: it adds the same to all scores of a query, which the softmax takes away again.
            {"q": draw.dense(width, width), "k": {"w": draw.dense(width, width)["w"]}}
            | {part: draw.dense(width, width) for part in ("v", "o")}
            | {"attention_norm": draw.norm(width)}
            | {"up": draw.dense(width, hidden), "down": draw.dense(hidden, width), "ffn_norm": draw.norm(width)}
            for _ in range(layers)
        ],
        "head": draw.dense(width, classes),
    }
    sparse = {f"layers/{i}/{part}/w": 1.0 for i in range(layers // 2, layers) for part in ("q", "k", "v", "o", "up")}
    rng = np.random.default_rng(seed + 1)
    x = rng.integers(0, vocabulary, (batch, length)).astype(np.int32)
    y = rng.integers(0, classes, batch).astype(np.int32)
    model = jax_frontend.Model(partial(_encoder, heads), params, [jax.ShapeDtypeStruct((1, length), np.int32)])
    return Workload(name, "encoder", {"heads": heads}, batch, model, _schemes(sparse), x, y)


def _encoder(heads: int, params: Any, ids: jax.Array) -> jax.Array:
    embeddings = params["embeddings"]
    x = _layer_norm(embeddings["norm"], embeddings["tokens"][ids] + embeddings["positions"])
    for layer in params["layers"]:
        q, k, v = (_split(a, heads) for a in (_dense(layer["q"], x), x @ layer["k"]["w"], _dense(layer["v"], x)))
        x = _layer_norm(layer["attention_norm"], x + _dense(layer["o"], _attention(q, k, v)))
        hidden = jax.nn.gelu(_dense(layer["up"], x), approximate=False)
        x = _layer_norm(layer["ffn_norm"], x + _dense(layer["down"], hidden))
    return _dense(params["head"], x[:, 0])


def decoder(
    name: str,
    batch: int,
    layers: int = 8,
    width: int = 512,
    heads: int = 8,
    hidden: int = 1376,
    length: int = 256,
    vocabulary: int = 8000,
    seed: int = 0,
) -> Workload:
    """Return a causal decoder; sparse: q, k, v, o and the gate matrix of the later half of the layers, and the head."""
    draw = _Weights(seed)
    shapes = dict.fromkeys(("q", "k", "v", "o"), (width, width))
    shapes |= {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    params = {
        "tokens": draw.normal(0.5, vocabulary, width),
        "layers": [
            {part: draw.normal(shape[0] ** -0.5, *shape) for part, shape in shapes.items()}
            | {"attention_norm": draw.scale(width), "ffn_norm": draw.scale(width)}
            for _ in range(layers)
        ],
        "norm": draw.scale(width),
        "head": draw.normal(width**-0.5, width, vocabulary),
    }
    sparse = {f"layers/{i}/{part}": 1.0 for i in range(layers // 2, layers) for part in ("q", "k", "v", "o", "gate")}
    rng = np.random.default_rng(seed + 1)
    text = rng.integers(0, vocabulary, (batch, length + 1)).astype(np.int32)
    pair = np.ascontiguousarray(text[:, :-1]), np.ascontiguousarray(text[:, 1:])
    model = jax_frontend.Model(partial(_decoder, heads), params, [jax.ShapeDtypeStruct((1, length), np.int32)])
    return Workload(name, "decoder", {"heads": heads}, batch, model, _schemes(sparse), *pair)


def _decoder(heads: int, params: Any, ids: jax.Array) -> jax.Array:
    x = params["tokens"][ids]
    length, width = x.shape[1:]
    cos, sin = rotation(length, width // heads)
    mask = jnp.where(np.tri(length, dtype=bool), 0.0, -1e9)
    for layer in params["layers"]:
        y = _rms_norm(layer["attention_norm"], x)
        q, k, v = (_split(y @ layer[part], heads) for part in ("q", "k", "v"))
        x = x + _attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, mask) @ layer["o"]
        y = _rms_norm(layer["ffn_norm"], x)
        x = x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
    return _rms_norm(params["norm"], x) @ params["head"]


def rotation(length: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of the rotary embedding, [length, 1, width], each half of the width the same angles."""
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.concatenate([angles, angles], axis=-1)[:, None].astype(np.float32)
    return np.cos(angles), np.sin(angles)


def _rotate(x: jax.Array, cos: np.ndarray, sin: np.ndarray) -> jax.Array:
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-second, first], axis=-1) * sin


def _split(x: jax.Array, heads: int) -> jax.Array:
    return x.reshape(*x.shape[:2], heads, -1)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: Any = 0.0) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]) + mask
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return mixed.reshape(*mixed.shape[:2], -1)


def _dense(layer: Any, x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"]


def _layer_norm(layer: Any, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + EPSILON) * layer["gamma"] + layer["beta"]


def _rms_norm(scale: jax.Array, x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + EPSILON) * scale


# -- weights -----------------------------------------------------------------------------------------------------------


def _schemes(sparse: dict[str, float]) -> dict[str, Mapping[str, float]]:
    return {"full": {"*": 1.0}, "sparse": sparse | {"head*": 1.0}, "head": {"head*": 1.0}}


class _Weights:
    """Weights as a trained net could have them: nothing that is neutral, so that a mistake shows in the loss."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def normal(self, deviation: float, *shape: int) -> np.ndarray:
        return self._rng.standard_normal(shape, np.float32) * np.float32(deviation)

    def uniform(self, low: float, high: float, *shape: int) -> np.ndarray:
        return self._rng.uniform(low, high, shape).astype(np.float32)

    def unit(self, k: int, inside: int, outside: int, gain: float = 2.0) -> dict[str, np.ndarray]:
        """Return a k x k convolution with its batch norm."""
        return {
            "w": self.normal((gain / (k * k * inside)) ** 0.5, k, k, inside, outside),
            "gamma": self.uniform(0.7, 1.3, outside),
            "beta": self.uniform(-0.2, 0.2, outside),
            "mean": self.uniform(-0.2, 0.2, outside),
            "var": self.uniform(0.5, 1.5, outside),
        }

    def dense(self, inside: int, outside: int) -> dict[str, np.ndarray]:
        return {"w": self.normal(inside**-0.5, inside, outside), "b": self.uniform(-0.1, 0.1, outside)}

    def norm(self, width: int) -> dict[str, np.ndarray]:
        return {"gamma": self.uniform(0.7, 1.3, width), "beta": self.uniform(-0.1, 0.1, width)}

    def scale(self, width: int) -> np.ndarray:
        return self.uniform(0.7, 1.3, width)


#: Sizes for trying things out: a step takes milliseconds.
SMALL: dict[str, dict[str, Any]] = {
    "W1": {"size": 32, "width": 0.35, "classes": 10},
    "W2": {"size": 32, "width": 8, "classes": 10},
    "W3": {"layers": 2, "width": 32, "heads": 4, "hidden": 64, "length": 16, "vocabulary": 100},
    "W4": {"layers": 2, "width": 32, "heads": 4, "hidden": 48, "length": 16, "vocabulary": 100},
}
_FACTORIES: dict[str, tuple[Callable[..., Workload], int]] = {
    "W1": (mobilenetv2, 8),
    "W2": (resnet50, 8),
    "W3": (encoder, 8),
    "W4": (decoder, 2),
}
WORKLOADS = tuple(_FACTORIES)
