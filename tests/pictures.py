"""Nets of pictures in JAX, each written with channels first and with channels last, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_frontend

Params = dict[str, Any]
Net = Callable[..., Any]
#: Of inverted bottlenecks: how many, how wide, the stride of the first one, and by how much they expand.
Stages = tuple[tuple[int, int, int, int], ...]
#: How many blocks each stage has.
Depths = tuple[int, ...]


class Written:
    """How a net is written: its layers in one layout. Weights are drawn when it is first called, by name.

    Attributes:
        last: whether channels stand last, and filters are HWIO; else they stand first, and filters are OIHW.
        params: weights by the name of the layer, in the order of use.
    """

    def __init__(self, last: bool, seed: int = 0) -> None:
        self.last = last
        self.params: Params = {}
        self._rng = np.random.default_rng(seed)
        self._drawing = True
        self._count = 0

    def start(self, params: Params | None) -> None:
        """Begin a call: with weights, or drawing them."""
        self._drawing, self._count = params is None, 0
        self.params = {} if params is None else params

    def _weights(self, kind: str, **shapes: tuple[int, ...]) -> Any:
        name = f"{kind}_{self._count:03}"
        self._count += 1
        if self._drawing:
            self.params[name] = {key: self._drawn(key, shape) for key, shape in shapes.items()}
        return self.params[name]

    def _drawn(self, key: str, shape: tuple[int, ...]) -> np.ndarray:
        numbers = self._rng.standard_normal(shape).astype(np.float32)
        if key == "kernel":  # drawn as OIHW
            numbers = numbers * np.float32(np.sqrt(2 / np.prod(shape[1:])))
            return np.ascontiguousarray(numbers.transpose(2, 3, 1, 0)) if self.last else numbers
        known = {"scale": 1 + 0.1 * numbers, "variance": 0.5 + np.abs(numbers), "weight": 0.3 * numbers}
        return known.get(key, 0.1 * numbers)

    @property
    def axes(self) -> tuple[int, int]:
        """Height and width."""
        return (1, 2) if self.last else (2, 3)

    @property
    def channels(self) -> int:
        """The axis of the channels."""
        return 3 if self.last else 1

    def along(self, vector: Any) -> Any:
        """A number for each channel, as it meets a picture."""
        return vector if self.last else vector[:, None, None]

    def conv(self, x: Any, features: int, size: int, stride: int = 1, groups: int = 1, bias: bool = False) -> Any:
        """A convolution with SAME padding."""
        shape = (features, x.shape[self.channels] // groups, size, size)
        extra = {"bias": (features,)} if bias else {}
        w = self._weights("conv", kernel=shape, **extra)
        layout = ("NHWC", "HWIO", "NHWC") if self.last else ("NCHW", "OIHW", "NCHW")
        y = lax.conv_general_dilated(
            x, w["kernel"], (stride, stride), "SAME", dimension_numbers=layout, feature_group_count=groups
        )
        return y + self.along(w["bias"]) if bias else y

    def upconv(self, x: Any, features: int) -> Any:
        """A transposed convolution of stride 2."""
        w = self._weights("upconv", kernel=(features, x.shape[self.channels], 2, 2))
        layout = ("NHWC", "HWIO", "NHWC") if self.last else ("NCHW", "OIHW", "NCHW")
        return lax.conv_transpose(x, w["kernel"], (2, 2), "SAME", dimension_numbers=layout)

    def norm(self, x: Any) -> Any:
        """Batch normalization by moving statistics, as inference spells it."""
        n = x.shape[self.channels]
        w = self._weights("norm", mean=(n,), variance=(n,), scale=(n,), shift=(n,))
        y = (x - self.along(w["mean"])) * lax.rsqrt(self.along(w["variance"]) + 1e-5)
        return y * self.along(w["scale"]) + self.along(w["shift"])

    def layer_norm(self, x: Any) -> Any:
        """Layer normalization over the channels of a picture, in its own layout."""
        n = x.shape[self.channels]
        w = self._weights("layer_norm", scale=(n,), shift=(n,))
        mean = jnp.mean(x, self.channels, keepdims=True)
        variance = jnp.mean((x - mean) ** 2, self.channels, keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 1e-6) * self.along(w["scale"]) + self.along(w["shift"])

    def group_norm(self, x: Any, groups: int) -> Any:
        """Group normalization, as each world writes it."""
        n = x.shape[self.channels]
        w = self._weights("group_norm", scale=(n,), shift=(n,))
        if self.last:
            split, over = (*x.shape[:3], groups, n // groups), (1, 2, 4)
        else:
            split, over = (x.shape[0], groups, n // groups, *x.shape[2:]), (2, 3, 4)
        y = x.reshape(split)
        y = y - jnp.mean(y, over, keepdims=True)
        y = (y * lax.rsqrt(jnp.mean(y * y, over, keepdims=True) + 1e-5)).reshape(x.shape)
        return y * self.along(w["scale"]) + self.along(w["shift"])

    def pool(self, x: Any, size: int, stride: int, largest: bool = True) -> Any:
        """A pool with SAME padding; an average is that of full windows."""
        window, strides = (tuple(n if i in self.axes else 1 for i in range(4)) for n in (size, stride))
        if largest:
            return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME")
        return lax.reduce_window(x, 0.0, lax.add, window, strides, "VALID") / size**2

    def squeezed(self, x: Any, ratio: int) -> Any:
        """Squeeze and excitation by 1x1 convolutions."""
        n = x.shape[self.channels]
        s = jnp.mean(x, self.axes, keepdims=True)
        s = jax.nn.relu(self.conv(s, n // ratio, 1, bias=True))
        return x * jax.nn.sigmoid(self.conv(s, n, 1, bias=True))

    def dense(self, x: Any, features: int) -> Any:
        """A dense layer on the last axis."""
        w = self._weights("dense", weight=(x.shape[-1], features), bias=(features,))
        return x @ w["weight"] + w["bias"]

    def flat(self, x: Any) -> Any:
        """A picture as a row in NCHW order, so that both worlds have the same dense weights behind it."""
        x = x.transpose(0, 3, 1, 2) if self.last else x
        return x.reshape(x.shape[0], -1)

    def upsampled(self, x: Any) -> Any:
        """Twice the size, each pixel four times."""
        for axis in self.axes:
            x = jnp.repeat(x, 2, axis)
        return x

    def resized(self, x: Any, height: int, width: int) -> Any:
        """Bilinear."""
        shape = list(x.shape)
        shape[self.axes[0]], shape[self.axes[1]] = height, width
        return jax.image.resize(x, tuple(shape), "bilinear")

    def shuffled(self, x: Any, r: int) -> Any:
        """Pixel shuffle: channels to pixels, as torch.nn.PixelShuffle orders them."""
        if self.last:
            n, h, w, c = x.shape
            x = x.reshape(n, h, w, c // r**2, r, r).transpose(0, 1, 4, 2, 5, 3)
            return x.reshape(n, h * r, w * r, c // r**2)
        n, c, h, w = x.shape
        return x.reshape(n, c // r**2, r, r, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // r**2, h * r, w * r)

    def tokens(self, x: Any) -> Any:
        """The pixels of a picture as a sequence."""
        if self.last:
            return x.reshape(x.shape[0], -1, x.shape[3])
        return x.reshape(x.shape[0], x.shape[1], -1).transpose(0, 2, 1)

    def picture(self, x: Any, height: int, width: int) -> Any:
        """A sequence as pixels."""
        if self.last:
            return x.reshape(x.shape[0], height, width, x.shape[2])
        return x.transpose(0, 2, 1).reshape(x.shape[0], x.shape[2], height, width)


def mobile(
    w: Written, x: Any, width: int = 8, stages: Stages = ((1, 8, 1, 4), (1, 16, 2, 4)), top: int = 0, classes: int = 5
) -> Any:
    """MobileNetV2-like: inverted bottlenecks."""
    x = jax.nn.relu6(w.norm(w.conv(x, width, 3, 2)))
    for depth, features, stride, expansion in stages:
        for i in range(depth):
            n = x.shape[w.channels]
            y = x if expansion == 1 else jax.nn.relu6(w.norm(w.conv(x, expansion * n, 1)))
            y = jax.nn.relu6(w.norm(w.conv(y, expansion * n, 3, 1 if i else stride, groups=expansion * n)))
            y = w.norm(w.conv(y, features, 1))
            x = x + y if y.shape == x.shape else y
    if top:
        x = jax.nn.relu6(w.norm(w.conv(x, top, 1)))
    return w.dense(jnp.mean(x, w.axes), classes)


def residual(w: Written, x: Any, width: int = 8, depths: Depths = (1, 1), widening: int = 1, classes: int = 5) -> Any:
    """ResNet-like: bottlenecks behind a max pool."""
    x = w.pool(jax.nn.relu(w.norm(w.conv(x, width, 7 if widening > 1 else 3, 2))), 3, 2)
    for stage, depth in enumerate(depths):
        for i in range(depth):
            n, stride = width * 2**stage, 2 if stage and not i else 1
            y = jax.nn.relu(w.norm(w.conv(x, n, 1)))
            y = jax.nn.relu(w.norm(w.conv(y, n, 3, stride)))
            y = w.norm(w.conv(y, widening * n, 1))
            kept = x if x.shape == y.shape else w.norm(w.conv(x, widening * n, 1, stride))
            x = jax.nn.relu(y + kept)
    return w.dense(jnp.mean(x, w.axes), classes)


def convnext(w: Written, x: Any, width: int = 8, depths: Depths = (2, 1), classes: int = 5) -> Any:
    """ConvNeXt-like: layer norm of a picture, blocks that turn themselves to channels last."""
    x = w.layer_norm(w.conv(x, width, 4, 4))
    for stage, depth in enumerate(depths):
        n = width * 2**stage
        if stage:
            x = w.conv(w.layer_norm(x), n, 2, 2, bias=True)
        for _ in range(depth):
            y = w.conv(x, n, 7, groups=n, bias=True)
            y = y if w.last else y.transpose(0, 2, 3, 1)
            y = (y - jnp.mean(y, -1, keepdims=True)) * lax.rsqrt(jnp.var(y, -1, keepdims=True) + 1e-6)
            y = w.dense(jax.nn.gelu(w.dense(y, 4 * n), approximate=False), n)
            x = x + (y if w.last else y.transpose(0, 3, 1, 2))
    return w.dense(jnp.mean(x, w.axes), classes)


def unet(w: Written, x: Any, width: int = 8) -> Any:
    """U-Net-like: a picture out."""
    a = jax.nn.relu(w.norm(w.conv(x, width, 3)))
    b = jax.nn.relu(w.norm(w.conv(w.pool(a, 2, 2), 2 * width, 3)))
    c = jax.nn.relu(w.norm(w.conv(w.pool(b, 2, 2, largest=False), 4 * width, 3)))
    b = jnp.concatenate([b, jax.nn.relu(w.upconv(c, 2 * width))], w.channels)
    b = jax.nn.relu(w.norm(w.conv(b, width, 3)))
    a = jnp.concatenate([a, w.upsampled(b)], w.channels)
    return w.conv(jax.nn.relu(w.norm(w.conv(a, width, 3))), 2, 1, bias=True)


def squeezing(w: Written, x: Any, width: int = 8) -> Any:
    """Squeeze and excitation in inverted bottlenecks with hard swish and silu."""
    x = jax.nn.hard_swish(w.norm(w.conv(x, width, 3, 2)))
    for _ in range(2):
        y = jax.nn.silu(w.norm(w.conv(x, 2 * width, 1)))
        y = w.squeezed(jax.nn.silu(w.norm(w.conv(y, 2 * width, 3, groups=2 * width))), 4)
        x = x + w.norm(w.conv(y, width, 1))
    return w.dense(jnp.mean(x, w.axes), 5)


def vit(w: Written, x: Any, width: int = 8) -> Any:
    """ViT-like: patches by a convolution, as a sequence."""
    x = w.tokens(w.conv(x, width, 4, 4, bias=True))
    for _ in range(2):
        y = (x - jnp.mean(x, -1, keepdims=True)) * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-6)
        q, k, v = (w.dense(y, width).reshape(*y.shape[:2], 2, -1).transpose(0, 2, 1, 3) for _ in range(3))
        p = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / 2, -1)
        x = x + w.dense((p @ v).transpose(0, 2, 1, 3).reshape(x.shape), width)
        x = x + w.dense(jax.nn.gelu(w.dense(x, 2 * width)), width)
    return w.dense(jnp.mean(x, 1), 5)


def flattened(w: Written, x: Any, width: int = 8) -> Any:
    """LeNet-like: a dense layer on all pixels."""
    x = w.pool(jax.nn.relu(w.conv(x, width, 3, bias=True)), 2, 2)
    x = w.pool(jax.nn.relu(w.conv(x, width, 3, bias=True)), 2, 2)
    return w.dense(jax.nn.relu(w.dense(w.flat(x), 16)), 5)


def grouped(w: Written, x: Any, width: int = 8) -> Any:
    """ResNeXt-like: grouped convolutions and group normalization."""
    x = jax.nn.relu(w.group_norm(w.conv(x, width, 3, 2), 2))
    y = jax.nn.relu(w.group_norm(w.conv(x, width, 3, groups=2), 4))
    x = x + w.group_norm(w.conv(y, width, 1), 2)
    return w.dense(jnp.mean(x, w.axes), 5)


def shuffling(w: Written, x: Any, width: int = 8) -> Any:
    """Super resolution: channels become pixels."""
    y = jax.nn.relu(w.conv(x, width, 3, bias=True))
    return w.shuffled(w.conv(y, 12, 3, bias=True), 2) + w.upsampled(x)


def resizing(w: Written, x: Any, width: int = 8) -> Any:
    """Features resized, cut and padded."""
    y = jax.nn.relu(w.conv(x, width, 3, 2, bias=True))
    y = w.resized(y, 12, 12)
    y = w.conv(y, width, 3)
    box = [slice(None)] * 4
    box[w.axes[0]], box[w.axes[1]] = slice(1, 9), slice(0, 8, 2)
    y = y[tuple(box)]
    y = jnp.pad(y, [(1, 1) if i in w.axes else (0, 0) for i in range(4)])
    first, second = jnp.split(w.conv(y, width, 3), 2, w.channels)
    y = first * jax.nn.sigmoid(second)
    return w.dense(jnp.max(y, w.axes), 5)


NETS: dict[str, Net] = {
    "mobile": mobile,
    "residual": residual,
    "convnext": convnext,
    "unet": unet,
    "squeezing": squeezing,
    "vit": vit,
    "flattened": flattened,
    "grouped": grouped,
    "shuffling": shuffling,
    "resizing": resizing,
}
_INVERTED: Stages = (
    *((1, 16, 1, 1), (2, 24, 2, 6), (3, 32, 2, 6), (4, 64, 2, 6)),
    *((3, 96, 1, 6), (3, 160, 2, 6), (1, 320, 1, 6)),
)
#: As they are published, of pictures of 224 x 224.
FULL_SIZE: dict[str, Net] = {
    "MobileNetV2": partial(mobile, width=32, stages=_INVERTED, top=1280, classes=1000),
    "ResNet-50": partial(residual, width=64, depths=(3, 4, 6, 3), widening=4, classes=1000),
    "ConvNeXt-T": partial(convnext, width=96, depths=(3, 3, 9, 3), classes=1000),
}


@dataclass(frozen=True)
class Twins:
    """A net with channels first, and the same one with channels last."""

    first: jax_frontend.Model
    last: jax_frontend.Model


def written(net: Net, last: bool, size: int = 16, channels: int = 3) -> jax_frontend.Model:
    """A net in one layout, on pictures of `size` x `size`."""
    shape = (1, size, size, channels) if last else (1, channels, size, size)
    draw, call = Written(last), Written(last)
    draw.start(None)
    jax.eval_shape(lambda x: net(draw, x), jax.ShapeDtypeStruct(shape, np.float32))

    def apply(params: Params, x: Any) -> Any:
        call.start(params)
        return net(call, x)

    return jax_frontend.Model(apply, draw.params, inputs=[jax.ShapeDtypeStruct(shape, np.float32)])


def twins(net: Net, size: int = 16) -> Twins:
    """Write a net twice."""
    return Twins(written(net, False, size), written(net, True, size))
