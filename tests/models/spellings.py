"""Small convolutional nets in plain JAX, Flax and Keras whose batch norms are written in every usual way."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from flax import linen as nn
from jax import lax

import jax_frontend

EPS = 1e-3
SIZE, CLASSES = 12, 5
Params = dict[str, Any]


def scale_then_shift(x: Any, p: Params) -> Any:
    inverse = p["gamma"] * lax.rsqrt(p["variance"] + EPS)
    return x * inverse + (p["beta"] - p["mean"] * inverse)


def shift_then_scale(x: Any, p: Params) -> Any:
    return (x - p["mean"]) * (p["gamma"] * lax.rsqrt(p["variance"] + EPS)) + p["beta"]


def one_by_one(x: Any, p: Params) -> Any:
    return (x - p["mean"]) / jnp.sqrt(p["variance"] + EPS) * p["gamma"] + p["beta"]


def gamma_first(x: Any, p: Params) -> Any:
    return p["beta"] - p["gamma"] * (p["mean"] - x) / jnp.sqrt(p["variance"] + EPS)


def like_haiku(x: Any, p: Params) -> Any:
    """Statistics of shape [1, 1, 1, C]."""
    mean, variance = (p[name].reshape(1, 1, 1, -1) for name in ("mean", "variance"))
    return (x - mean) * (p["gamma"] * lax.rsqrt(variance + EPS)) + p["beta"]


Norm = Callable[[Any, Params], Any]
NORMS: dict[str, Norm] = {
    f.__name__: f for f in (scale_then_shift, shift_then_scale, one_by_one, gamma_first, like_haiku)
}


def norm_params(rng: np.random.Generator, channels: int) -> Params:
    def draw(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, channels).astype(np.float32)

    return {"mean": draw(-0.3, 0.3), "variance": draw(0.5, 1.5), "gamma": draw(0.7, 1.3), "beta": draw(-0.2, 0.2)}


def kernel(rng: np.random.Generator, *shape: int, fan_in: int | None = None) -> np.ndarray:
    fan_in = int(np.prod(shape[:-1])) if fan_in is None else fan_in
    return (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)


conv = partial(lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def plain_net(norm: Norm, bias: bool = True) -> jax_frontend.Model:
    """A convolution, a depthwise one with multiplier 2, a grouped and a transposed one, each with a batch norm."""
    rng = np.random.default_rng(0)
    params: Params = {
        "stem": {"kernel": kernel(rng, 3, 3, 3, 4), "norm": norm_params(rng, 4)},
        "depthwise": {"kernel": kernel(rng, 3, 3, 1, 8), "norm": norm_params(rng, 8)},
        "grouped": {"kernel": kernel(rng, 1, 1, 4, 8), "norm": norm_params(rng, 8)},
        "transposed": {"kernel": kernel(rng, 2, 2, 8, 6), "norm": norm_params(rng, 6)},
        "head": {"kernel": kernel(rng, 6, CLASSES), "bias": np.zeros(CLASSES, np.float32)},
    }
    if bias:
        for layer in ("stem", "depthwise", "grouped", "transposed"):
            channels = params[layer]["kernel"].shape[-1]
            params[layer]["bias"] = rng.uniform(-0.2, 0.2, channels).astype(np.float32)

    def apply(params: Params, x: Any) -> Any:
        def layer(name: str, function: Callable, *args: Any, **options: Any) -> Any:
            p = params[name]
            with jax.named_scope(name):
                y = function(x, p["kernel"], *args, **options)
                return jax.nn.relu6(norm(y + p["bias"] if bias else y, p["norm"]))

        x = layer("stem", conv, (2, 2), "SAME")
        x = layer("depthwise", conv, (1, 1), "SAME", feature_group_count=4)
        x = layer("grouped", conv, (1, 1), "SAME", feature_group_count=2)
        x = layer("transposed", lax.conv_transpose, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return x.mean((1, 2)) @ params["head"]["kernel"] + params["head"]["bias"]

    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, SIZE, SIZE, 3), jnp.float32)])


class FlaxNet(nn.Module):
    bias: bool

    @nn.compact
    def __call__(self, x: Any) -> Any:
        norm = partial(nn.BatchNorm, use_running_average=True)
        x = nn.relu6(norm(name="stem_norm")(nn.Conv(4, (3, 3), 2, use_bias=self.bias, name="stem")(x)))
        depthwise = nn.Conv(8, (3, 3), feature_group_count=4, use_bias=self.bias, name="depthwise")
        x = nn.relu6(norm(name="depthwise_norm")(depthwise(x)))
        x = nn.relu6(norm(name="up_norm")(nn.ConvTranspose(6, (2, 2), (2, 2), use_bias=self.bias, name="up")(x)))
        return nn.Dense(CLASSES, name="head")(x.mean((1, 2)))


def flax_net(bias: bool = True) -> jax_frontend.Model:
    net, image = FlaxNet(bias), jax.ShapeDtypeStruct((1, SIZE, SIZE, 3), jnp.float32)
    params = net.init(jax.random.key(0), jnp.zeros(image.shape))
    return jax_frontend.Model(net.apply, drawn(params), [image])


def drawn(tree: Any) -> Any:
    """Statistics, gammas and betas that are not those of a fresh layer."""
    rng = np.random.default_rng(0)

    def draw(path: Any, leaf: Any) -> np.ndarray:
        low, high = {"mean": (-0.3, 0.3), "var": (0.5, 1.5), "scale": (0.7, 1.3), "bias": (-0.2, 0.2)}.get(
            path[-1].key, (0, 0)
        )
        return np.asarray(leaf) + (rng.uniform(low, high, leaf.shape) - (low + high > 1)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, tree)


def keras_net(bias: bool = True) -> keras.Model:
    layers = keras.layers
    inputs = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(4, 3, 2, "same", use_bias=bias, name="stem")(inputs)
    x = layers.ReLU(6.0)(layers.BatchNormalization(name="stem_norm")(x))
    x = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, use_bias=bias, name="depthwise")(x)
    x = layers.ReLU(6.0)(layers.BatchNormalization(name="depthwise_norm")(x))
    x = layers.Conv2DTranspose(6, 2, 2, "same", use_bias=bias, name="up")(x)
    x = layers.ReLU(6.0)(layers.BatchNormalization(name="up_norm")(x))
    model = keras.Model(inputs, layers.Dense(CLASSES, name="head")(layers.GlobalAveragePooling2D()(x)))
    rng = np.random.default_rng(0)
    ranges = {"moving_mean": (-0.3, 0.3), "moving_variance": (0.5, 1.5), "gamma": (0.7, 1.3), "beta": (-0.2, 0.2)}
    for variable in model.variables:
        if variable.name in ranges:
            variable.assign(rng.uniform(*ranges[variable.name], variable.shape))
        else:
            variable.assign(kernel(rng, *variable.shape) if len(variable.shape) > 1 else 0.1 * np.ones(variable.shape))
    return model


def scaled_before(norm: Norm) -> jax_frontend.Model:
    """A net that normalizes what goes into its layers: pixels, then the input of each convolution."""
    rng = np.random.default_rng(0)
    params: Params = {
        "stem": {"kernel": kernel(rng, 3, 3, 3, 4), "norm": norm_params(rng, 3)},
        "depthwise": {"kernel": kernel(rng, 3, 3, 1, 8), "norm": norm_params(rng, 4)},
        "grouped": {"kernel": kernel(rng, 3, 3, 4, 8), "gain": np.ones(8, np.float32)},
        "up": {"kernel": kernel(rng, 2, 2, 8, 6), "gain": np.full(8, 0.7, np.float32)},
        "head": {"kernel": kernel(rng, 6, CLASSES), "norm": norm_params(rng, 6)},
    }

    def apply(params: Params, x: Any) -> Any:
        x = norm(x / 2, params["stem"]["norm"])
        x = jnp.tanh(conv(x, params["stem"]["kernel"], (1, 1), "VALID"))
        x = norm(x, params["depthwise"]["norm"])
        x = jnp.tanh(conv(x, params["depthwise"]["kernel"], (1, 1), "VALID", feature_group_count=4))
        x = x * params["grouped"]["gain"]
        x = jnp.tanh(conv(x, params["grouped"]["kernel"], (1, 1), "SAME", feature_group_count=2))
        x = 1.7 * x * params["up"]["gain"]
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jnp.tanh(lax.conv_transpose(x, params["up"]["kernel"], (2, 2), "SAME", dimension_numbers=numbers))
        return norm(x.mean((1, 2)), params["head"]["norm"]) @ params["head"]["kernel"]

    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, SIZE, SIZE, 3), jnp.float32)])


#: Repeats, channels, stride and expansion of the stages of MobileNetV2.
STAGES = [(1, 16, 1, 1), (2, 24, 2, 6), (3, 32, 2, 6), (4, 64, 2, 6), (3, 96, 1, 6), (3, 160, 2, 6), (1, 320, 1, 6)]


def mobilenetv2(norm: Norm, width: float = 0.35, size: int = 32, classes: int = CLASSES) -> jax_frontend.Model:
    """MobileNetV2 as a plain function; parameters `block_3/expand/kernel`, `block_3/expand/norm/gamma`, ..."""
    rng = np.random.default_rng(0)
    params: Params = {}
    strides: dict[str, int] = {}

    def layer(k: int, inputs: int, outputs: int, stride: int, name: str) -> Params:
        strides[name] = stride
        return {"kernel": kernel(rng, k, k, inputs, outputs), "norm": norm_params(rng, outputs)}

    def channels(count: float) -> int:
        return max(8, int(count * width + 4) // 8 * 8)

    before, number = channels(32), 0
    params["stem"] = layer(3, 3, before, 2, "stem")
    for repeats, count, stride, expansion in STAGES:
        for i in range(repeats):
            wide, name = before * expansion, f"block_{number}"
            params[name] = {"depthwise": layer(3, 1, wide, stride if i == 0 else 1, f"{name}/depthwise")}
            params[name]["project"] = layer(1, wide, channels(count), 1, f"{name}/project")
            if expansion > 1:
                params[name]["expand"] = layer(1, before, wide, 1, f"{name}/expand")
            before, number = channels(count), number + 1
    last = max(1280, int(1280 * width))
    params["last"] = layer(1, before, last, 1, "last")
    params["head"] = {"kernel": kernel(rng, last, classes), "bias": np.zeros(classes, np.float32)}

    def apply(params: Params, x: Any) -> Any:
        def convolved(x: Any, p: Params, name: str) -> Any:
            groups = x.shape[-1] if name.endswith("depthwise") else 1
            with jax.named_scope(name):
                y = conv(x, p["kernel"], (strides[name],) * 2, "SAME", feature_group_count=groups)
                return norm(y, p["norm"])

        x = jax.nn.relu6(convolved(x, params["stem"], "stem"))
        for i in range(number):
            name, p = f"block_{i}", params[f"block_{i}"]
            y = jax.nn.relu6(convolved(x, p["expand"], f"{name}/expand")) if "expand" in p else x
            y = jax.nn.relu6(convolved(y, p["depthwise"], f"{name}/depthwise"))
            y = convolved(y, p["project"], f"{name}/project")
            x = x + y if x.shape == y.shape else y
        x = jax.nn.relu6(convolved(x, params["last"], "last"))
        return x.mean((1, 2)) @ params["head"]["kernel"] + params["head"]["bias"]

    return jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)])
