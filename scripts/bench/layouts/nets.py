"""Nets of pictures in NCHW, each beside the same one in NHWC: PyTorch's and Keras', and JAX's in both layouts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import torch
import torchvision
from keras import layers

from converter.frontends import torch as torch_frontend
from tests.pictures import FULL_SIZE, written

CLASSES = 1000
#: Of MobileNetV2: expansion, channels, blocks, stride of the first.
_INVERTED = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


def _torch(name: str, size: int) -> torch_frontend.Model:
    module = getattr(torchvision.models, name)(weights=None, num_classes=CLASSES).eval()
    return torch_frontend.Model(module, (torch.zeros(1, 3, size, size),))


def _padded(x: Any, by: int) -> Any:
    return layers.ZeroPadding2D(by)(x) if by else x


def _convolved(x: Any, channels: int, size: int, stride: int = 1) -> Any:
    """A convolution as PyTorch pads it, and its batch norm."""
    x = layers.Conv2D(channels, size, stride, use_bias=False)(_padded(x, size // 2))
    return layers.BatchNormalization(epsilon=1e-5)(x)


def _mobilenet_v2(size: int) -> keras.Model:
    """Return MobileNetV2 as torchvision has it."""
    inputs = keras.Input((size, size, 3))
    x = layers.ReLU(6.0)(_convolved(inputs, 32, 3, 2))
    for expansion, channels, blocks, stride in _INVERTED:
        for i in range(blocks):
            y = x if expansion == 1 else layers.ReLU(6.0)(_convolved(x, expansion * x.shape[-1], 1))
            y = layers.DepthwiseConv2D(3, 1 if i else stride, use_bias=False)(_padded(y, 1))
            y = layers.ReLU(6.0)(layers.BatchNormalization(epsilon=1e-5)(y))
            y = _convolved(y, channels, 1)
            x = layers.Add()([x, y]) if y.shape == x.shape else y
    x = layers.GlobalAveragePooling2D()(layers.ReLU(6.0)(_convolved(x, 1280, 1)))
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


def _resnet50(size: int) -> keras.Model:
    """Return ResNet-50 as torchvision has it: the stride is that of the 3x3 convolution."""
    inputs = keras.Input((size, size, 3))
    x = layers.ReLU()(_convolved(inputs, 64, 7, 2))
    x = layers.MaxPooling2D(3, 2)(_padded(x, 1))
    for stage, blocks in enumerate((3, 4, 6, 3)):
        channels = 64 << stage
        for i in range(blocks):
            stride = 2 if stage and not i else 1
            y = layers.ReLU()(_convolved(x, channels, 1))
            y = _convolved(layers.ReLU()(_convolved(y, channels, 3, stride)), 4 * channels, 1)
            kept = x if x.shape == y.shape else _convolved(x, 4 * channels, 1, stride)
            x = layers.ReLU()(layers.Add()([y, kept]))
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def _convnext_tiny(size: int) -> keras.Model:
    return keras.applications.ConvNeXtTiny(
        include_preprocessing=False,
        weights=None,
        input_shape=(size, size, 3),
        classes=CLASSES,
        classifier_activation=None,
    )


Make = Callable[[int], Any]
#: By name: what makes a net for a size of pictures in NCHW, and the same one in NHWC.
PAIRS: dict[str, tuple[Make, Make]] = {
    "MobileNetV2, PyTorch/Keras": (partial(_torch, "mobilenet_v2"), _mobilenet_v2),
    "ResNet-50, PyTorch/Keras": (partial(_torch, "resnet50"), _resnet50),
    "ConvNeXt-T, PyTorch/Keras": (partial(_torch, "convnext_tiny"), _convnext_tiny),
    **{f"{name}, JAX": (partial(written, net, False), partial(written, net, True)) for name, net in FULL_SIZE.items()},
}
