"""Nets of the size of microcontrollers, with the losses that they are trained by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_frontend

#: Losses of outputs [rows, 4], and of whole rows.
OF_CLASSES = ("sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy", "mse")
OF_NUMBERS = ("mse", "mae", "huber")


@dataclass(frozen=True)
class Net:
    """A function of JAX, its parameters, and the shape of a row."""

    apply: Callable[..., Any]
    params: Any
    shape: tuple[int, ...]
    losses: tuple[str, ...] = OF_CLASSES
    tokens: int = 0

    def model(self) -> jax_frontend.Model:
        dtype = jnp.int32 if self.tokens else jnp.float32
        return jax_frontend.Model(self.apply, self.params, inputs=[jax.ShapeDtypeStruct((1, *self.shape), dtype)])

    def rows(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Inputs of some rows."""
        if self.tokens:
            return rng.integers(0, self.tokens, (count, *self.shape)).astype(np.int32)
        return rng.standard_normal((count, *self.shape)).astype(np.float32)


def _weight(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)


def _dense(rng: np.random.Generator, *widths: int) -> dict[str, Any]:
    names = [f"layer{k}" for k in range(len(widths) - 2)] + ["head"]
    pairs = pairwise(widths)
    biases = [(rng.standard_normal(n) / 10).astype(np.float32) for n in widths[1:]]
    return {name: {"w": _weight(rng, *pair), "b": b} for name, pair, b in zip(names, pairs, biases, strict=True)}


def _stack(params: Any, x: Any, activation: Callable[[Any], Any]) -> Any:
    for name in sorted(set(params) - {"head"}):
        x = activation(x @ params[name]["w"] + params[name]["b"])
    return x @ params["head"]["w"] + params["head"]["b"]


def mlp(activation: Callable[[Any], Any], seed: int) -> Net:
    """Three dense layers."""
    params = _dense(np.random.default_rng(seed), 12, 16, 10, 4)
    return Net(lambda p, x: _stack(p, x, activation), params, (12,))


def autoencoder() -> Net:
    """As those that learn what a machine sounds like."""
    params = _dense(np.random.default_rng(7), 24, 12, 4, 12, 24)
    return Net(lambda p, x: _stack(p, x, jax.nn.relu), params, (24,), OF_NUMBERS)


def _conv(x: Any, layer: Any, strides: tuple[int, int] = (1, 1), groups: int = 1, padding: str = "SAME") -> Any:
    y = jax.lax.conv_general_dilated(
        x, layer["w"], strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )
    return y + layer["b"]


def _filter(rng: np.random.Generator, *shape: int) -> dict[str, np.ndarray]:
    return {"w": _weight(rng, *shape), "b": (rng.standard_normal(shape[-1]) / 10).astype(np.float32)}


def cnn() -> Net:
    """Convolutions and a max pool."""
    rng = np.random.default_rng(2)
    params = {"conv1": _filter(rng, 3, 3, 2, 4), "conv2": _filter(rng, 3, 3, 4, 6), **_dense(rng, 54, 4)}

    def apply(p: Any, x: Any) -> Any:
        x = jax.nn.relu(_conv(x, p["conv1"]))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu6(_conv(x, p["conv2"], padding="VALID") if x.shape[1] > 5 else _conv(x, p["conv2"]))
        return _stack({"head": p["head"]}, x.reshape(x.shape[0], -1), jax.nn.relu)

    return Net(apply, params, (6, 6, 2))


def keyword() -> Net:
    """A small DS-CNN: depthwise and pointwise convolutions over frames of features."""
    rng = np.random.default_rng(3)
    params = {
        "conv0": _filter(rng, 4, 3, 1, 8),
        **{f"deep{k}": _filter(rng, 3, 3, 1, 8) for k in range(2)},
        **{f"point{k}": _filter(rng, 1, 1, 8, 8) for k in range(2)},
        **_dense(rng, 8, 4),
    }

    def apply(p: Any, x: Any) -> Any:
        x = jax.nn.relu(_conv(x, p["conv0"], (2, 2)))
        for k in range(2):
            x = jax.nn.relu(_conv(x, p[f"deep{k}"], groups=8))
            x = jax.nn.relu(_conv(x, p[f"point{k}"]))
        return _stack({"head": p["head"]}, x.mean((1, 2)), jax.nn.relu)

    return Net(apply, params, (12, 10, 1))


def keyword_net() -> Net:
    """DS-CNN of MLPerf Tiny: 49 x 10 features, width 64, four blocks."""
    rng, width = np.random.default_rng(3), 64
    params = {
        "conv0": _filter(rng, 10, 4, 1, width),
        **{f"deep{k}": _filter(rng, 3, 3, 1, width) for k in range(4)},
        **{f"point{k}": _filter(rng, 1, 1, width, width) for k in range(4)},
        **_dense(rng, width, 4),
    }

    def apply(p: Any, x: Any) -> Any:
        x = jax.nn.relu(_conv(x, p["conv0"], (2, 2)))
        for k in range(4):
            x = jax.nn.relu(_conv(x, p[f"deep{k}"], groups=width))
            x = jax.nn.relu(_conv(x, p[f"point{k}"]))
        return _stack({"head": p["head"]}, x.mean((1, 2)), jax.nn.relu)

    return Net(apply, params, (49, 10, 1))


def image() -> Net:
    """Three channels, and a depthwise filter of 7 x 7."""
    rng = np.random.default_rng(8)
    params = {"conv0": _filter(rng, 3, 3, 3, 8), "deep0": _filter(rng, 7, 7, 1, 8), **_dense(rng, 8, 4)}

    def apply(p: Any, x: Any) -> Any:
        x = jax.nn.relu(_conv(x, p["conv0"], (2, 2)))
        x = jax.nn.relu(_conv(x, p["deep0"], groups=8))
        return _stack({"head": p["head"]}, x.mean((1, 2)), jax.nn.relu)

    return Net(apply, params, (16, 16, 3))


def recurrent() -> Net:
    """A GRU of a few frames, then a dense layer."""
    rng = np.random.default_rng(4)
    params = {"cell": {"w": _weight(rng, 5, 18), "u": _weight(rng, 6, 18)}, **_dense(rng, 6, 4)}

    def apply(p: Any, x: Any) -> Any:
        state = jnp.zeros((x.shape[0], 6))
        for k in range(x.shape[1]):
            a, b = x[:, k] @ p["cell"]["w"], state @ p["cell"]["u"]
            z, r = jax.nn.sigmoid(a[:, :6] + b[:, :6]), jax.nn.sigmoid(a[:, 6:12] + b[:, 6:12])
            state = z * state + (1 - z) * jnp.tanh(a[:, 12:] + r * b[:, 12:])
        return _stack({"head": p["head"]}, state, jax.nn.relu)

    return Net(apply, params, (4, 5))


def attention() -> Net:
    """An embedding, a layer of attention with a normalization, and a mean."""
    rng = np.random.default_rng(5)
    params = {
        "embed": {"w": _weight(rng, 9, 8)},
        "mix": {name: _weight(rng, 8, 8) for name in "qkvo"},
        "norm": {"scale": np.ones(8, np.float32), "shift": (rng.standard_normal(8) / 10).astype(np.float32)},
        **_dense(rng, 8, 4),
    }

    def apply(p: Any, ids: Any) -> Any:
        x = p["embed"]["w"][ids]
        q, k, v = (x @ p["mix"][name] for name in "qkv")
        x = x + jax.nn.softmax(q @ k.swapaxes(1, 2) / np.sqrt(8), -1) @ v @ p["mix"]["o"]
        away = x - x.mean(-1, keepdims=True)
        x = away * jax.lax.rsqrt((away**2).mean(-1, keepdims=True) + 1e-5) * p["norm"]["scale"] + p["norm"]["shift"]
        return _stack({"head": p["head"]}, x.mean(1), jax.nn.relu)

    return Net(apply, params, (5,), tokens=9)


NETS: dict[str, Callable[[], Net]] = {
    "mlp-relu": lambda: mlp(jax.nn.relu, 0),
    "mlp-gelu": lambda: mlp(lambda x: jax.nn.gelu(x, approximate=False), 1),
    "mlp-tanh": lambda: mlp(jnp.tanh, 6),
    "mlp-silu": lambda: mlp(jax.nn.silu, 8),
    "mlp-elu": lambda: mlp(jax.nn.elu, 9),
    "autoencoder": autoencoder,
    "cnn": cnn,
    "keyword": keyword,
    "recurrent": recurrent,
    "attention": attention,
}
