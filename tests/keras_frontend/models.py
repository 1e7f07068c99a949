"""Keras models of every kind of construction, with weights of no special values."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

Model = Any


def randomized(model: Model, seed: int = 0) -> Model:
    """The model with random weights; variances are positive."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        noise = rng.standard_normal(variable.shape).astype(np.float32)
        variable.assign(np.exp(0.3 * noise) if "variance" in variable.path else 0.4 * noise)
    return model


def samples(model_inputs: Any, batch: int = 3) -> list[np.ndarray]:
    """Random inputs for (shape, dtype) pairs."""
    rng = np.random.default_rng(1)
    return [
        rng.integers(0, 7, (batch, *shape)).astype(np.int32)
        if np.issubdtype(np.dtype(dtype), np.integer)
        else rng.standard_normal((batch, *shape)).astype(np.float32)
        for shape, dtype in model_inputs
    ]


def functional() -> Model:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False, name="stem")(inputs)
    x = layers.BatchNormalization(name="stem_bn")(x)
    x = layers.ReLU(6.0)(x)
    x = layers.Dropout(0.5)(x)
    y = layers.DepthwiseConv2D(3, padding="same", name="depth")(x)
    x = layers.add([x, layers.BatchNormalization(name="depth_bn")(y)])
    return keras.Model(inputs, layers.Dense(5, name="head")(layers.GlobalAveragePooling2D()(x)), name="net")


def sequential() -> Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu", name="conv"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.GaussianNoise(1.0),
            layers.Dense(5, name="head"),
        ],
        name="chain",
    )


def sequential_built_by_its_first_call() -> Model:
    model = keras.Sequential([layers.Dense(4, activation="gelu", name="a"), layers.Dense(3, name="b")], name="late")
    model(np.zeros((1, 6), np.float32))
    return model


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner = layers.Dense(7, activation="silu", name="inner")
        self.norm = layers.LayerNormalization(name="norm")
        self.drop = layers.Dropout(0.5)
        self.outer = layers.Dense(3, name="outer")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.outer(self.norm(self.drop(self.inner(x), training=training)) + 1.0)


def subclassed() -> Model:
    model = Subclassed(name="mine")
    model(np.zeros((1, 6), np.float32))
    return model


def two_inputs() -> Model:
    image, tag = keras.Input((4, 4, 2), name="image"), keras.Input((3,), name="tag", dtype="int32")
    x = layers.Flatten()(layers.Conv2D(3, 2, name="conv")(image))
    t = layers.Flatten()(layers.Embedding(7, 5, name="table")(tag))
    return keras.Model([image, tag], layers.Dense(4, name="head")(layers.concatenate([x, t])), name="two")


def dict_of_inputs() -> Model:
    inputs = {"b": keras.Input((4,), name="b"), "a": keras.Input((3,), name="a")}
    return keras.Model(inputs, layers.Dense(2)(inputs["a"]) - layers.Dense(2)(inputs["b"]), name="named")


def two_outputs() -> Model:
    inputs = keras.Input((6,))
    x = layers.Dense(5, activation="tanh")(inputs)
    return keras.Model(inputs, [layers.Dense(3)(x), layers.Dense(2)(x)], name="fork")


def nested() -> Model:
    """A model inside of a model, used twice."""
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(6, name="shared")], name="inner")
    inputs = keras.Input((6,))
    return keras.Model(inputs, inner(layers.ReLU()(inner(inputs))), name="outer")


def attention() -> Model:
    ids = keras.Input((6,), dtype="int32", name="ids")
    x = layers.Embedding(7, 8, mask_zero=True, name="table")(ids)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4, name="attention")(x, x))
    return keras.Model(ids, layers.Dense(3)(x[:, 0]), name="text")


def image_to_image() -> Model:
    inputs = keras.Input((6, 6, 2))
    x = layers.SeparableConv2D(3, 3, padding="same")(inputs)
    x = layers.AveragePooling2D(2)(layers.ZeroPadding2D(1)(x))
    x = layers.Conv2DTranspose(2, 3, strides=2, padding="same")(x)
    return keras.Model(inputs, layers.LeakyReLU()(layers.GroupNormalization(2)(x)), name="image_to_image")


#: Builder, and the (shape, dtype) of each input in the order of the graph's.
KINDS: dict[str, tuple[Callable[[], Model], list[tuple[tuple[int, ...], str]]]] = {
    "functional": (functional, [((8, 8, 3), "float32")]),
    "sequential": (sequential, [((8, 8, 1), "float32")]),
    "sequential built late": (sequential_built_by_its_first_call, [((6,), "float32")]),
    "subclassed": (subclassed, [((6,), "float32")]),
    "two inputs": (two_inputs, [((4, 4, 2), "float32"), ((3,), "int32")]),
    "dict of inputs": (dict_of_inputs, [((3,), "float32"), ((4,), "float32")]),
    "two outputs": (two_outputs, [((6,), "float32")]),
    "nested": (nested, [((6,), "float32")]),
    "attention": (attention, [((6,), "int32")]),
    "image to image": (image_to_image, [((6, 6, 2), "float32")]),
}


def predict(model: Model, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What Keras itself computes, in inference mode."""
    packed = keras.tree.pack_sequence_as(model.input, arrays) if len(arrays) > 1 else arrays[0]
    return [np.asarray(leaf) for leaf in keras.tree.flatten(model(packed, training=False))]
