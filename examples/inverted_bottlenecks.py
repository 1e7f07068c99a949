"""Nets of inverted bottlenecks as a search finds them: each block has a kernel size and an expansion of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from keras import Input, Model, layers

from examples.weights.keras_weights import randomize


class Block(NamedTuple):
    """An inverted bottleneck: a 1x1 convolution that widens, a depthwise one, a 1x1 convolution that narrows."""

    kernel: int
    expansion: int
    channels: int
    stride: int = 1


def network(
    name: str,
    blocks: Sequence[Block],
    stem: int,
    head: int,
    *,
    size: int,
    classes: int,
    width: float = 1.0,
    depth: int | None = None,
    seed: int = 0,
) -> Any:
    """A `keras.Model`: float32 [B, size, size, 3] -> logits [B, classes], with random weights.

    Args:
        name: of the model.
        blocks: in order.
        stem: channels of the first convolution.
        head: channels of the last 1x1 convolution; 0 for none.
        size: height and width of the image.
        classes: number of classes.
        width: the channels over those of the blocks, rounded to multiples of 8.
        depth: how many blocks there are, from the first on; all where it is None.
        seed: of the weights.
    """

    def scaled(channels: int) -> int:
        return max(round(channels * width / 8) * 8, 8)

    image = Input((size, size, 3), name="image")
    x = _unit(image, scaled(stem), 3, 2, "stem")
    for index, block in enumerate(blocks[:depth]):
        x = _bottleneck(x, block, scaled(block.channels), f"block_{index}")
    if head:
        x = _unit(x, scaled(head), 1, 1, "head")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    model = Model(image, layers.Dense(classes, name="classifier")(x), name=name)
    randomize(model, seed)
    return model


def _unit(x: Any, channels: int, kernel: int, stride: int, name: str) -> Any:
    x = layers.Conv2D(channels, kernel, stride, padding="same", use_bias=False, name=name)(x)
    return layers.ReLU(6, name=f"{name}_relu")(layers.BatchNormalization(epsilon=1e-3, name=f"{name}_BN")(x))


def _bottleneck(x: Any, block: Block, channels: int, name: str) -> Any:
    wide, y = x.shape[-1] * block.expansion, x
    if block.expansion > 1:
        y = _unit(x, wide, 1, 1, f"{name}_expand")
    y = layers.DepthwiseConv2D(block.kernel, block.stride, padding="same", use_bias=False, name=f"{name}_depthwise")(y)
    y = layers.BatchNormalization(epsilon=1e-3, name=f"{name}_depthwise_BN")(y)
    y = layers.ReLU(6, name=f"{name}_depthwise_relu")(y)
    y = layers.Conv2D(channels, 1, use_bias=False, name=f"{name}_project")(y)
    y = layers.BatchNormalization(epsilon=1e-3, name=f"{name}_project_BN")(y)
    return layers.Add(name=f"{name}_add")([x, y]) if x.shape == y.shape else y
