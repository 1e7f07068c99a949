"""What is learned: Keras models, which every side takes, with real weights, and real data that they have not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from examples import digits_cnn, efficientnet_lite, imu
from examples.data import digits, mnist, motions
from examples.weights import torch_file
from examples.weights.packages import resource

import keras  # isort: skip  after examples, which choose its backend


class Rows(NamedTuple):
    """Inputs and labels."""

    x: np.ndarray
    y: np.ndarray


class Split(NamedTuple):
    """Rows of a task: to learn from by choice, to choose rates with, and to judge on."""

    samples: list[Rows]
    validation: Rows
    held_out: Rows


@dataclass(frozen=True)
class Task:
    """A model and what it is to learn.

    Attributes:
        name: for the command line.
        about: model and data, in words.
        build: the Keras model, whose batch norms keep their statistics.
        load: all rows in random order.
        of_each: samples of each class.
        held_out, validation: how many rows, the first ones of the data.
        rates: what learning rates are chosen among, by what trains: `full`, `sparse`, `head`.
        batch, epochs: of every training.
    """

    name: str
    about: str
    build: Callable[[], keras.Model]
    load: Callable[[], Rows]
    of_each: int
    held_out: int
    validation: int
    rates: Mapping[str, tuple[float, ...]]
    batch: int = 8
    epochs: int = 8

    def split(self, choices: int) -> Split:
        """Return the rows, with so many choices of samples."""
        x, y = self.load()
        first = self.held_out + self.validation
        order, samples = np.arange(first, len(y)), []
        for seed in range(choices):
            order = np.random.default_rng(seed).permutation(order)
            chosen = np.concatenate([order[y[order] == label][: self.of_each] for label in np.unique(y)])
            samples.append(Rows(x[chosen], y[chosen]))
        held_out, validation = slice(self.held_out), slice(self.held_out, first)
        return Split(samples, Rows(x[validation], y[validation]), Rows(x[held_out], y[held_out]))


SIZE = 96
_RATES = {"full": (3e-4, 1e-3, 3e-3), "sparse": (3e-4, 1e-3, 3e-3), "head": (1e-3, 3e-3, 1e-2)}


def efficientnet() -> keras.Model:
    """EfficientNet-Lite0 with its weights of ImageNet as layers of Keras, and a new classifier.

    Batch norms keep their statistics, as tutorials of fine-tuning call a net (`training=False`).
    """
    tensors = torch_file.read(resource(*efficientnet_lite.WEIGHTS))
    layers = keras.layers

    def unit(x: Any, conv: str, norm: str, stride: int = 1, active: bool = True) -> Any:
        kernel = tensors[f"{conv}.weight"].transpose(2, 3, 1, 0)  # PyTorch has [out, in, H, W]
        is_deep, size = kernel.shape[2] == 1, kernel.shape[:2]
        if is_deep:
            layer = layers.DepthwiseConv2D(size, stride, padding="same", use_bias=False, name=conv.replace(".", "_"))
        else:
            layer = layers.Conv2D(
                kernel.shape[3], size, stride, padding="same", use_bias=False, name=conv.replace(".", "_")
            )
        normed = layers.BatchNormalization(epsilon=1e-3, name=f"{layer.name}_bn")
        y = normed(layer(x), training=False)
        layer.set_weights([kernel.transpose(0, 1, 3, 2) if is_deep else kernel])
        normed.set_weights([tensors[f"{norm}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")])
        return layers.ReLU(6.0)(y) if active else y

    image = keras.Input((SIZE, SIZE, 3), name="image")
    x, number = unit(image, "_conv_stem", "_bn0", stride=2), 0
    for stage in efficientnet_lite.STAGES:
        for place in range(stage.blocks):
            name, y = f"_blocks.{number}", x
            if stage.expansion > 1:
                y = unit(y, f"{name}._expand_conv", f"{name}._bn0")
            y = unit(y, f"{name}._depthwise_conv", f"{name}._bn1", 1 if place else stage.stride)
            y = unit(y, f"{name}._project_conv", f"{name}._bn2", active=False)
            x, number = layers.Add()([x, y]) if x.shape == y.shape else y, number + 1
    x = layers.GlobalAveragePooling2D()(unit(x, "_conv_head", "_bn1"))
    return keras.Model(image, layers.Dense(10, name="classifier")(x), name="efficientnet_lite0")


def _photographs() -> Rows:
    images = mnist.load()
    return Rows(efficientnet_lite.from_pixels(mnist.photographs(images.pixels[:2500], SIZE)), images.y[:2500])


def _worn_on_the_other_arm() -> Rows:
    x, y = motions.windows(motions.load()[1], imu.LENGTH, 5)
    turn = np.array([[0, 1, 0], [1, 0, 0], [0, 0, -1]])
    return Rows(motions.worn(x, turn), y)


def _leaning_hand() -> Rows:
    images = digits.load()[1]
    return Rows(digits.PEOPLE[0].write(images.x), images.y)


TASKS = {
    task.name: task
    for task in (
        Task(
            "photographs",
            f"EfficientNet-Lite0 at {SIZE} x {SIZE} with its weights of ImageNet; handwritten digits of MNIST",
            efficientnet,
            _photographs,
            of_each=20,
            held_out=500,
            validation=250,
            rates=_RATES,
        ),
        Task(
            "activities",
            "a convolutional net of a watch trained on 40 recordings; 4 activities, the watch worn the other way round",
            imu.build,
            _worn_on_the_other_arm,
            of_each=20,
            held_out=220,
            validation=88,
            rates=_RATES,
        ),
        Task(
            "handwriting",
            "a convolutional net trained on scikit-learn's digits; the digits of one person, who writes otherwise",
            digits_cnn.build,
            _leaning_hand,
            of_each=8,
            held_out=300,
            validation=150,
            rates=_RATES,
        ),
    )
}
