"""Random Keras models: layers of pictures, sequences and rows of features, with masks and nested models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, ops

#: Rows of a step, places of a sequence, features of a place.
BATCH, PLACES, WIDTH = 4, 5, 4
#: Rows of the data: two batches and a short one.
ROWS = 2 * BATCH + 3
TOKENS = 7

ACTIVATIONS = [
    *("relu", "relu6", "elu", "selu", "gelu", "silu", "softplus", "softsign", "tanh", "sigmoid", "hard_sigmoid"),
    *("hard_silu", "mish", "exponential", "leaky_relu", "log_softmax", "softmax", "celu", "hard_tanh", "tanh_shrink"),
    *("squareplus", "soft_shrink", "hard_shrink", "sparse_plus", "log_sigmoid", "sparse_sigmoid", "linear"),
]


@keras.saving.register_keras_serializable("random_nets")
class KeptPlaces(layers.Layer):
    """Sets to 0 what the mask leaves out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.supports_masking = True

    def call(self, x: Any, mask: Any = None) -> Any:
        return x if mask is None else x * ops.cast(mask[..., None], x.dtype)


@keras.saving.register_keras_serializable("random_nets")
class MeanOfPlaces(layers.Layer):
    """The mean of the places that a mask leaves, which ends there."""

    def call(self, x: Any, mask: Any = None) -> Any:
        if mask is None:
            return ops.mean(x, 1)
        there = ops.cast(mask[..., None], x.dtype)
        return ops.sum(x * there, 1) / (ops.sum(there, 1) + 1e-3)

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return None


@keras.saving.register_keras_serializable("random_nets")
class WithoutFirst(layers.Layer):
    """Leaves the first place out, of the mask too."""

    def call(self, x: Any) -> Any:
        return x[:, 1:]

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return None if mask is None else mask[:, 1:]


@dataclass
class Drawing:
    """Draws a model layer by layer.

    Attributes:
        rng: what it draws with.
        said: the layers that it drew, in words.
    """

    rng: np.random.Generator
    said: list[str] = field(default_factory=list)

    def pick(self, *options: Any) -> Any:
        """One of the options."""
        return options[self.rng.integers(len(options))]

    def chance(self, share: float) -> bool:
        """Whether a thing of this probability happens."""
        return bool(self.rng.random() < share)

    def one_of(self, kinds: dict[str, Callable[[Drawing, Any], Any]], x: Any) -> Any:
        """What one kind of layer, drawn by name, makes of x."""
        name = self.pick(*kinds)
        self.said.append(name)
        return kinds[name](self, x)

    def options(self) -> dict[str, Any]:
        """Options of the weights of a layer with a kernel: what they begin with, regularizers and constraints."""
        found: dict[str, Any] = {"use_bias": self.chance(0.8)}
        if self.chance(0.3):
            found["bias_initializer"] = keras.initializers.RandomNormal(stddev=0.3, seed=int(self.rng.integers(99)))
        if self.chance(0.15):
            found["kernel_regularizer"] = self.pick("l2", "l1", keras.regularizers.L1L2(0.01, 0.02))
        if self.chance(0.1):
            found["bias_regularizer"] = "l2"
        if self.chance(0.1):
            found["activity_regularizer"] = self.pick("l2", "l1")
        if self.chance(0.15):
            limits = keras.constraints
            kinds = (limits.MaxNorm(0.9), limits.NonNeg(), limits.UnitNorm(), limits.MinMaxNorm(0.3, 0.8, 0.7))
            found["kernel_constraint"] = self.pick(*kinds)
        return found

    def activation(self) -> str:
        """The name of one."""
        return str(self.pick(*ACTIVATIONS))


def _branches(d: Drawing, x: Any) -> Any:
    """Two ways that meet."""
    other = layers.Dense(x.shape[-1], activation=d.pick("tanh", None))(x)
    merge = d.pick(layers.Add, layers.Multiply, layers.Subtract, layers.Average, layers.Maximum, layers.Minimum)
    return merge()([x, other])


def _nested(d: Drawing, x: Any) -> Any:
    """A model in the model, sometimes used twice, sometimes of a custom order of layers."""
    inputs = keras.Input(x.shape[1:])
    inner = layers.Dense(x.shape[-1], **d.options())(layers.LayerNormalization()(inputs))
    model = keras.Model(inputs, inner) if d.chance(0.5) else keras.Sequential([inputs, layers.Dense(x.shape[-1])])
    return model(model(x)) if d.chance(0.3) else model(x)


def _batch_norm(d: Drawing, x: Any) -> Any:
    norm = layers.BatchNormalization(
        momentum=d.pick(0.5, 0.9), scale=d.chance(0.8), center=d.chance(0.8), epsilon=d.pick(1e-3, 1e-2)
    )
    norm.trainable = d.chance(0.7)
    return norm(x)


def _activated(d: Drawing, x: Any) -> Any:
    kinds = (
        layers.ReLU(d.pick(None, 2.0), d.pick(0.0, 0.1), d.pick(0.0, 0.2)),
        layers.LeakyReLU(0.2),
        layers.ELU(0.7),
        layers.PReLU(alpha_initializer=keras.initializers.Constant(0.2)),
        layers.Activation("softmax"),  # Softmax itself reads a mask in another shape than sequences have
    )
    return d.pick(*kinds)(x)


def _einsum(d: Drawing, x: Any) -> Any:
    axes = "abcde"[: len(x.shape)]
    equation = f"{axes},{axes[-1]}z->{axes[:-1]}z"
    return layers.EinsumDense(equation, output_shape=(*x.shape[1:-1], WIDTH), bias_axes=d.pick(None, "z"))(x)


#: Layers of anything whose last axis is features.
ANY: dict[str, Callable[[Drawing, Any], Any]] = {
    "dense": lambda d, x: layers.Dense(WIDTH, activation=d.activation(), **d.options())(x),
    "einsum": _einsum,
    "batch norm": _batch_norm,
    "layer norm": lambda d, x: layers.LayerNormalization(scale=d.chance(0.8), center=d.chance(0.8))(x),
    "rms norm": lambda d, x: layers.RMSNormalization()(x),
    "unit norm": lambda d, x: layers.UnitNormalization()(x),
    "activation": lambda d, x: layers.Activation(d.activation())(x),
    "activated": _activated,
    "branches": _branches,
    "concatenated": lambda d, x: layers.Concatenate()([x, layers.Dense(2)(x)]),
    "nested": _nested,
    "regularized activity": lambda d, x: layers.ActivityRegularization(d.pick(0.0, 0.02), 0.03)(layers.Dense(WIDTH)(x)),
    "rescaled": lambda d, x: layers.Rescaling(d.pick(0.5, -1.5), offset=d.pick(0.0, 0.1))(x),
}


def _cell(d: Drawing) -> Any:
    """A layer of a sequence that keeps a state."""
    kind = d.pick(layers.LSTM, layers.GRU, layers.SimpleRNN)
    options: dict[str, Any] = {"use_bias": d.chance(0.8), "activation": d.pick("tanh", "relu", "sigmoid")}
    if kind is layers.GRU:
        options["reset_after"] = d.chance(0.5)
    if d.chance(0.15):
        options["recurrent_constraint"] = "max_norm"
    if d.chance(0.15):
        options["kernel_regularizer"] = "l2"
    return kind(d.pick(3, WIDTH), return_sequences=True, go_backwards=d.chance(0.3), unroll=d.chance(0.3), **options)


def _bidirectional(d: Drawing, x: Any) -> Any:
    kind = d.pick(layers.LSTM, layers.GRU, layers.SimpleRNN)
    return layers.Bidirectional(kind(3, return_sequences=True), merge_mode=d.pick("concat", "sum", "ave", "mul"))(x)


def _cells(d: Drawing, x: Any) -> Any:
    cells = [d.pick(layers.GRUCell, layers.LSTMCell, layers.SimpleRNNCell)(n) for n in (3, WIDTH)]
    return layers.RNN(layers.StackedRNNCells(cells), return_sequences=True)(x)


def _attention(d: Drawing, x: Any) -> Any:
    causal = d.chance(0.5)
    kind = d.pick("multi", "grouped", "plain", "additive", "crossed")
    if kind == "multi":
        return layers.MultiHeadAttention(2, 3, use_bias=d.chance(0.7))(x, x, use_causal_mask=causal)
    if kind == "grouped":
        return layers.GroupQueryAttention(2, 4, 2)(x, x, use_causal_mask=causal)
    if kind == "plain":
        made = layers.Attention(use_scale=d.chance(0.5), score_mode=d.pick("dot", "concat"))
        return made([x, x], use_causal_mask=causal)
    if kind == "additive":
        return layers.AdditiveAttention(use_scale=d.chance(0.5))([x, x], use_causal_mask=causal)
    return layers.MultiHeadAttention(2, 2, output_shape=WIDTH)(layers.Dense(3)(x), x)


def _convolved(d: Drawing, x: Any) -> Any:
    kind = d.pick(layers.Conv1D, layers.SeparableConv1D, layers.Conv1DTranspose, layers.DepthwiseConv1D)
    if kind is layers.DepthwiseConv1D:
        return kind(2, padding="same", depth_multiplier=d.pick(1, 2))(x)
    if kind is layers.Conv1D:
        return kind(WIDTH, 2, padding=d.pick("same", "causal"), dilation_rate=d.pick(1, 2), **d.options())(x)
    return kind(WIDTH, 2, padding="same", activation=d.activation())(x)


def _pooled(d: Drawing, x: Any) -> Any:
    kind = d.pick(layers.MaxPooling1D, layers.AveragePooling1D)
    return kind(2, strides=d.pick(1, 2), padding="same")(x)


SEQUENCES: dict[str, Callable[[Drawing, Any], Any]] = {
    **ANY,
    "recurrent": lambda d, x: _cell(d)(x),
    "bidirectional": _bidirectional,
    "cells": _cells,
    "each place": lambda d, x: layers.TimeDistributed(layers.Dense(WIDTH, activation="tanh"))(x),
    "attention": _attention,
    "convolution": _convolved,
    "pooled": _pooled,
    "enlarged": lambda d, x: layers.UpSampling1D(2)(x) if x.shape[1] < 9 else x,
    "padded": lambda d, x: layers.ZeroPadding1D((1, 0))(x),
    "cropped": lambda d, x: layers.Cropping1D((0, 1))(x) if x.shape[1] > 3 else x,
    "own mask": lambda d, x: KeptPlaces()(x),
    "without first": lambda d, x: WithoutFirst()(x) if x.shape[1] > 2 else x,
    "masking": lambda d, x: layers.Masking(mask_value=d.pick(0.0, -1.0))(x),
    "norm of places": lambda d, x: layers.BatchNormalization(axis=1)(x),
    "group norm": lambda d, x: layers.GroupNormalization(1)(x),
    "joined in time": lambda d, x: layers.Concatenate(axis=1)([x, layers.Dense(x.shape[-1])(x)]),
    "permuted": lambda d, x: layers.Permute((2, 1))(x),
}
ENDS_OF_SEQUENCES: dict[str, Callable[[Drawing, Any], Any]] = {
    "all places": lambda d, x: x,
    "all of them": lambda d, x: x,
    "last": lambda d, x: d.pick(layers.LSTM, layers.GRU, layers.SimpleRNN)(3, go_backwards=d.chance(0.5))(x),
    "mean": lambda d, x: layers.GlobalAveragePooling1D(keepdims=d.chance(0.3))(x),
    "maximum": lambda d, x: layers.GlobalMaxPooling1D()(x),
    "flat": lambda d, x: layers.Flatten()(x),
    "mean of places": lambda d, x: MeanOfPlaces()(x),
}


def _convolution(d: Drawing, x: Any) -> Any:
    size, stride, padding = d.pick(1, 2, 3), d.pick(1, 1, 2), d.pick("same", "valid")
    if min(x.shape[1:3]) < 4:
        stride, padding = 1, "same"
    kind = d.pick(*[layers.Conv2D] * 2, layers.SeparableConv2D, layers.Conv2DTranspose, layers.DepthwiseConv2D)
    if kind is layers.DepthwiseConv2D:
        return kind(size, stride, padding, depth_multiplier=d.pick(1, 2), activation=d.activation())(x)
    if kind is layers.Conv2D:
        groups = 2 if x.shape[-1] % 2 == 0 and d.chance(0.2) else 1
        return kind(WIDTH, size, stride, padding, groups=groups, activation=d.activation(), **d.options())(x)
    if kind is layers.Conv2DTranspose:
        stride = stride if max(x.shape[1:3]) < 9 else 1
    return kind(d.pick(3, WIDTH), size, stride, padding, activation=d.activation())(x)


def _pool(d: Drawing, x: Any) -> Any:
    if min(x.shape[1:3]) < 3:
        return x
    kind = d.pick(layers.MaxPooling2D, layers.AveragePooling2D)
    return kind(d.pick(2, 3), d.pick(1, 2), d.pick("same", "valid"))(x)


def _resized(d: Drawing, x: Any) -> Any:
    if max(x.shape[1:3]) > 8:
        return layers.Cropping2D(((1, 0), (0, 2)))(x)
    return d.pick(
        layers.UpSampling2D(2, interpolation=d.pick("nearest", "bilinear")),
        layers.ZeroPadding2D(((1, 0), (0, 2))),
        layers.Resizing(6, 5),
    )(x)


PICTURES: dict[str, Callable[[Drawing, Any], Any]] = {
    **ANY,
    "convolution": _convolution,
    "another convolution": _convolution,
    "pool": _pool,
    "resized": _resized,
    "group norm": lambda d, x: layers.GroupNormalization(d.pick(1, -1))(x),
    "norm of rows": lambda d, x: layers.LayerNormalization(axis=[1, 2, 3])(x),
    "permuted": lambda d, x: layers.Permute((2, 1, 3))(x),
    "attention": lambda d, x: layers.MultiHeadAttention(2, 2, attention_axes=d.pick((1, 2), 2))(x, x),
    "gated": lambda d, x: layers.Multiply()([x, layers.Dense(x.shape[-1], "sigmoid")(_mean_of_picture(x))]),
}
ENDS_OF_PICTURES: dict[str, Callable[[Drawing, Any], Any]] = {
    "mean": lambda d, x: layers.GlobalAveragePooling2D()(x),
    "maximum": lambda d, x: layers.GlobalMaxPooling2D()(x),
    "flat": lambda d, x: layers.Flatten()(x),
    "rows in turn": lambda d, x: layers.GRU(3)(layers.Reshape((x.shape[1], x.shape[2] * x.shape[3]))(x)),
    "picture": lambda d, x: x,
}


def _mean_of_picture(x: Any) -> Any:
    return layers.GlobalAveragePooling2D(keepdims=True)(x)


FEATURES: dict[str, Callable[[Drawing, Any], Any]] = {
    **ANY,
    "more dense": lambda d, x: layers.Dense(2 * WIDTH, activation=d.activation(), **d.options())(x),
    "repeated": lambda d, x: layers.GRU(WIDTH)(layers.RepeatVector(3)(x)),
    "reshaped": lambda d, x: layers.Flatten()(layers.Reshape((x.shape[-1], 1))(x)),
    "product": lambda d, x: layers.Concatenate()([x, layers.Dot(1, normalize=d.chance(0.5))([x, _like(x)])]),
}


def _like(x: Any) -> Any:
    return layers.Dense(x.shape[-1])(x)


def mask_of(rng: np.random.Generator, rows: int = ROWS) -> np.ndarray:
    """Which places of a sequence are there, bool [rows, PLACES]: the first, the last, or any; at least one."""
    there = np.arange(PLACES) < rng.integers(1, PLACES + 1, rows)[:, None]
    style = rng.integers(3)
    if style == 1:
        there = there[:, ::-1]
    if style == 2:
        there = rng.random((rows, PLACES)) < 0.6
        there[:, rng.integers(PLACES)] = True
    return there


def _sequence(d: Drawing) -> tuple[Any, np.ndarray, Any]:
    rng, there = d.rng, mask_of(d.rng)
    if d.chance(0.5):
        inputs = keras.Input((PLACES,), dtype="int32")
        x = layers.Embedding(TOKENS, WIDTH, mask_zero=d.chance(0.8))(inputs)
        return inputs, (rng.integers(1, TOKENS, (ROWS, PLACES)) * there).astype(np.int32), x
    inputs = keras.Input((PLACES, 3))
    x = layers.Masking()(inputs) if d.chance(0.7) else inputs
    return inputs, (rng.standard_normal((ROWS, PLACES, 3)) * there[..., None]).astype(np.float32), x


def _start(d: Drawing, *shape: int) -> tuple[Any, np.ndarray, Any]:
    inputs = keras.Input(shape)
    return inputs, d.rng.standard_normal((ROWS, *shape)).astype(np.float32), inputs


def draw(d: Drawing) -> tuple[Any, np.ndarray, Any]:
    """A model without its head: its input, data for that, and what the head reads."""
    kind = d.pick("sequence", "sequence", "picture", "features")
    d.said.append(f"{kind}:")
    if kind == "features":
        inputs, data, x = _start(d, 6)
        kinds, ends = FEATURES, {"as it is": lambda d, x: x}
    elif kind == "picture":
        inputs, data, x = _start(d, 6, 5, 3)
        kinds, ends = PICTURES, ENDS_OF_PICTURES
    else:
        inputs, data, x = _sequence(d)
        kinds, ends = SEQUENCES, ENDS_OF_SEQUENCES
    for _ in range(int(d.rng.integers(1, 5))):
        x = d.one_of(kinds, x)
    return inputs, data, d.one_of(ends, x)
