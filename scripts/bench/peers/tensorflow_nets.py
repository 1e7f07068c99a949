"""The nets in TensorFlow, for the graph and for the official TFLite path: forward, and the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

EPSILON = 1e-5
Weights = Mapping[str, Any]


def arranged(name: str, array: np.ndarray) -> np.ndarray:
    """Return a weight as TensorFlow lays it out: JAX has the channels of a depthwise filter in the last axis."""
    return array.transpose(0, 1, 3, 2) if name.endswith("depthwise/w") else array


def loss(kind: str, sizes: Mapping[str, Any], w: Weights, x: Any, y: Any) -> Any:
    """Return the mean cross entropy of a net."""
    logits = _NETS[kind](w, x, **sizes)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def _mobilenetv2(w: Weights, x: Any, strides: Sequence[int]) -> Any:
    x = tf.nn.relu6(_unit(w, "stem", x, 2))
    for i, stride in enumerate(strides):
        block = f"blocks/{i}"
        y = tf.nn.relu6(_unit(w, f"{block}/expand", x)) if f"{block}/expand/w" in w else x
        y = tf.nn.relu6(_unit(w, f"{block}/depthwise", y, stride))
        y = _unit(w, f"{block}/project", y)
        x = x + y if x.shape == y.shape else y
    x = tf.nn.relu6(_unit(w, "last", x))
    return _dense(w, "head", tf.reduce_mean(x, (1, 2)))


def _resnet50(w: Weights, x: Any, strides: Sequence[int]) -> Any:
    x = tf.nn.relu(_unit(w, "stem", x, 2))
    x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    for i, stride in enumerate(strides):
        block = f"blocks/{i}"
        y = tf.nn.relu(_unit(w, f"{block}/reduce", x))
        y = tf.nn.relu(_unit(w, f"{block}/conv", y, stride))
        y = _unit(w, f"{block}/expand", y)
        x = tf.nn.relu(y + (_unit(w, f"{block}/shortcut", x, stride) if f"{block}/shortcut/w" in w else x))
    return _dense(w, "head", tf.reduce_mean(x, (1, 2)))


def _unit(w: Weights, name: str, x: Any, stride: int = 1) -> Any:
    """Return a convolution and its batch norm in inference mode: the fused op, whose gradient is one, too."""
    if name.endswith("depthwise"):
        x = tf.nn.depthwise_conv2d(x, w[f"{name}/w"], (1, stride, stride, 1), "SAME")
    else:
        x = tf.nn.conv2d(x, w[f"{name}/w"], stride, "SAME")
    parts = {"scale": "gamma", "offset": "beta", "mean": "mean", "variance": "var"}
    norm = {argument: w[f"{name}/{part}"] for argument, part in parts.items()}
    return tf.raw_ops.FusedBatchNormV3(x=x, **norm, epsilon=EPSILON, is_training=False).y


def _encoder(w: Weights, ids: Any, heads: int) -> Any:
    x = tf.gather(w["embeddings/tokens"], ids) + w["embeddings/positions"]
    x = _layer_norm(w, "embeddings/norm", x)
    for i in range(_layers(w)):
        layer = f"layers/{i}"
        q, k, v = (
            _split(part, heads)
            for part in (
                _dense(w, f"{layer}/q", x),
                _matmul(x, w[f"{layer}/k/w"]),
                _dense(w, f"{layer}/v", x),
            )
        )
        x = _layer_norm(w, f"{layer}/attention_norm", x + _dense(w, f"{layer}/o", _attention(q, k, v)))
        hidden = tf.nn.gelu(_dense(w, f"{layer}/up", x))
        x = _layer_norm(w, f"{layer}/ffn_norm", x + _dense(w, f"{layer}/down", hidden))
    return _dense(w, "head", x[:, 0])


def _decoder(w: Weights, ids: Any, heads: int) -> Any:
    x = tf.gather(w["tokens"], ids)
    length, width = x.shape[1:]
    rotation = _rotation(length, width // heads)
    mask = np.where(np.tri(length, dtype=bool), 0.0, -1e9).astype(np.float32)
    for i in range(_layers(w)):
        layer = f"layers/{i}"
        y = _rms_norm(w[f"{layer}/attention_norm"], x)
        q, k, v = (_split(_matmul(y, w[f"{layer}/{part}"]), heads) for part in ("q", "k", "v"))
        mixed = _attention(_rotate(q, *rotation), _rotate(k, *rotation), v, mask)
        x = x + _matmul(mixed, w[f"{layer}/o"])
        y = _rms_norm(w[f"{layer}/ffn_norm"], x)
        gated = tf.nn.silu(_matmul(y, w[f"{layer}/gate"])) * _matmul(y, w[f"{layer}/up"])
        x = x + _matmul(gated, w[f"{layer}/down"])
    return _matmul(_rms_norm(w["norm"], x), w["head"])


def _layers(w: Weights) -> int:
    return 1 + max(int(name.split("/")[1]) for name in w if name.startswith("layers/"))


def _rotation(length: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine, [length, width], for heads that stand before the length."""
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.concatenate([angles, angles], axis=-1).astype(np.float32)
    return np.cos(angles), np.sin(angles)


def _rotate(x: Any, cos: np.ndarray, sin: np.ndarray) -> Any:
    first, second = tf.split(x, 2, axis=-1)
    return x * cos + tf.concat([-second, first], axis=-1) * sin


def _split(x: Any, heads: int) -> Any:
    batch, length, width = x.shape
    return tf.transpose(tf.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    batch, heads, length, width = q.shape
    scores = tf.matmul(q, k, transpose_b=True) * np.float32(width**-0.5)
    mixed = tf.matmul(tf.nn.softmax(scores if mask is None else scores + mask), v)
    return tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), (batch, length, heads * width))


def _dense(w: Weights, name: str, x: Any) -> Any:
    return _matmul(x, w[f"{name}/w"], w[f"{name}/b"])


def _matmul(x: Any, matrix: Any, bias: Any = None) -> Any:
    """Return a product over the last axis, as one matrix: TensorFlow's batched product is slower."""
    flat = tf.reshape(x, (-1, x.shape[-1]))
    y = tf.matmul(flat, matrix)
    if bias is not None:
        y = tf.nn.bias_add(y, bias)
    return tf.reshape(y, (*x.shape[:-1], y.shape[-1]))


def _layer_norm(w: Weights, name: str, x: Any) -> Any:
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, w[f"{name}/beta"], w[f"{name}/gamma"], EPSILON)


def _rms_norm(scale: Any, x: Any) -> Any:
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + EPSILON) * scale


_NETS = {"mobilenetv2": _mobilenetv2, "resnet50": _resnet50, "encoder": _encoder, "decoder": _decoder}
