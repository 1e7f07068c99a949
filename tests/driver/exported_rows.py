"""Models of many kinds of layers and functions, for exports that are resized: what each takes, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax
from keras import layers

_RNG = np.random.default_rng(0)
_KERNEL = _RNG.standard_normal((3, 3, 4, 2)).astype(np.float32)
_LINE = _RNG.standard_normal((3, 4, 2)).astype(np.float32)
Shape = tuple[int, ...]


def _each(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.vmap(function)


def _running(x: Any) -> Any:
    """A state that begins with zeros, over steps."""
    steps = x.transpose(1, 0, 2)
    return lax.scan(lambda c, v: (0.5 * c + v, c * v), jnp.zeros_like(steps[0]), steps)[1].transpose(1, 0, 2)


#: What a row is, and a function of rows [B, ...].
FUNCTIONS: dict[str, tuple[Shape, Callable[[Any], Any]]] = {
    "arctan": ((3,), jnp.arctan),
    "arctan2 of a constant": ((3,), lambda x: jnp.arctan2(x, jnp.array([1.0, -2.0, 0.5]))),
    "sort": ((5,), lambda x: jnp.sort(x, -1)),
    "sort along another axis": ((4, 5), lambda x: jnp.sort(x, 1)),
    "argsort": ((5,), lambda x: jnp.argsort(x, -1)),
    "top_k": ((5,), lambda x: lax.top_k(x, 2)),
    "median": ((5,), lambda x: jnp.median(x, -1)),
    "transposed convolution": ((4, 4, 4), lambda x: lax.conv_transpose(x, _KERNEL, (2, 2), "SAME")),
    "its output cut off": ((4, 4, 4), lambda x: jax.nn.relu(lax.conv_transpose(x, _KERNEL, (2, 2), "VALID") + 1)),
    "transposed along one axis": ((4, 4), lambda x: lax.conv_transpose(x, _LINE, (2,), "SAME")),
    "take_along_axis": ((5,), lambda x: jnp.take_along_axis(x, jnp.argmax(-x, -1)[:, None], -1)),
    "one_hot": ((5,), lambda x: jax.nn.one_hot(jnp.argmax(x, -1), 5)),
    "piecewise": ((5,), lambda x: jnp.piecewise(x, [x < 0, x > 1], [0.0, lambda v: 2 * v, lambda v: v**2])),
    "searchsorted": ((5,), lambda x: jnp.searchsorted(jnp.array([-1.0, 0.0, 1.0]), x)),
    "interp": ((5,), lambda x: jnp.interp(x, jnp.array([-1.0, 0.0, 1.0]), jnp.array([1.0, 2.0, 0.0]))),
    "scan": ((6, 3), _running),
    "associative_scan": ((6, 3), lambda x: lax.associative_scan(jnp.add, x, axis=1)),
    "cumprod": ((6,), lambda x: jnp.cumprod(x, 1)),
    "cummax": ((6,), lambda x: lax.cummax(x, 1)),
    "any": ((6,), lambda x: jnp.any(x > 0, 1)),
    "roll": ((6,), lambda x: jnp.roll(x, 2, 1)),
    "a slice of computed begin": ((6,), _each(lambda v: lax.dynamic_slice(v, (jnp.argmax(v[:3]),), (2,)))),
    "outer product": ((6,), lambda x: jnp.einsum("bi,bj->bij", x, x)),
    "tile": ((6,), lambda x: jnp.tile(x, (1, 3))),
    "repeat": ((6, 2), lambda x: jnp.repeat(x, 3, 1)),
    "attention": ((6, 2, 4), lambda x: jax.nn.dot_product_attention(x, x, x)),
    "causal attention": ((6, 2, 4), lambda x: jax.nn.dot_product_attention(x, x, x, is_causal=True)),
    "fori_loop": ((6,), lambda x: lax.fori_loop(0, 3, lambda i, v: jnp.sin(v) + x, x)),
    "resize": ((5, 5, 2), lambda x: jax.image.resize(x, (x.shape[0], 9, 9, 2), "bilinear")),
    "numbers that no row decides": ((5,), lambda x: jnp.broadcast_to(jnp.arange(3.0), (x.shape[0], 3))),
    "rows along the second axis": ((8, 2), lambda x: jnp.swapaxes(jnp.swapaxes(x, 0, 1) @ np.ones((2, 3), "f"), 0, 1)),
    "rows inside of an axis": ((3, 2), lambda x: jnp.swapaxes(x, 0, 1).reshape(3, -1).T.reshape(-1, 6)),
    "unstack": ((4, 3), lambda x: jnp.stack([i * v for i, v in enumerate(jnp.unstack(x, axis=1))], 1)),
    "distances": ((4, 3), lambda x: jnp.sum((x[:, :, None] - x[:, None]) ** 2, -1)),
    "blocks of pixels": ((4, 4, 3), lambda x: jnp.swapaxes(x.reshape(-1, 2, 2, 2, 2, 3), 2, 3).reshape(-1, 4, 12)),
    "logsumexp": ((4, 3), lambda x: jax.nn.logsumexp(x, -1)),
    "norm": ((4, 3), lambda x: jnp.linalg.norm(x, axis=-1)),
    "where": ((4, 3), lambda x: jnp.where(x > 0, x, jnp.arange(12.0).reshape(4, 3))),
}  # fmt: skip
#: Functions that the number of rows stays fixed of, which the build says.
FIXED: dict[str, tuple[Shape, Callable[[Any], Any]]] = {
    "scatter": ((5,), _each(lambda v: jnp.zeros(7).at[jnp.array([1, 3, 3, 5, 6])].add(v))),
    "segment_max": ((5,), _each(lambda v: jax.ops.segment_max(v, jnp.array([0, 0, 1, 1, 2]), 4))),
    "the number of the row": ((5,), lambda x: x + jnp.sin(jnp.arange(x.shape[0], dtype=jnp.float32))[:, None]),
    "its whole number, squared": ((5,), lambda x: x + (jnp.arange(x.shape[0]) ** 2)[:, None]),
}


def function(name: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any], Any], Shape]:
    """Return a model of a function of rows that were scaled first, JAX's own, and the shape of a row.

    The results of several lie one behind the other, as floats, behind what they are computed from.
    """
    shape, computed = (FUNCTIONS | FIXED)[name]

    def results(x: Any) -> Any:
        found = [x, *jax.tree_util.tree_leaves(computed(x))]
        return jnp.concatenate([v.reshape(x.shape[0], -1).astype(jnp.float32) for v in found], 1)

    return (lambda params, x: results(x * params["w"])), results, shape


def _stack(*parts: Any) -> Callable[[Any], Any]:
    return lambda x: keras.Sequential(parts)(x)


def _attending(layer: Any, inputs: int = 2) -> Callable[[Any], Any]:
    return lambda x: layer([x] * inputs)


def _merged(layer: Any) -> Callable[[Any], Any]:
    return lambda x: layer([x, layers.Dense(x.shape[-1], name="other")(x)])


PICTURE, LINE, ROW = (6, 5, 4), (6, 4), (4,)
#: What a row is, and what is behind a dense layer.
LAYERS: dict[str, tuple[Shape, Callable[[], Callable[[Any], Any]]]] = {
    "Dense": (ROW, lambda: layers.Dense(3, activation="gelu")),
    "Dense of a sequence": (LINE, lambda: layers.Dense(3)),
    "EinsumDense": (LINE, lambda: layers.EinsumDense("bti,io->bto", (None, 3), bias_axes="o")),
    "Conv1D": (LINE, lambda: layers.Conv1D(3, 3, strides=2)),
    "Conv1D, causal": (LINE, lambda: layers.Conv1D(3, 2, padding="causal", dilation_rate=2)),
    "Conv2D": (PICTURE, lambda: layers.Conv2D(3, 3, strides=2, padding="same")),
    "Conv2D, dilated": (PICTURE, lambda: layers.Conv2D(3, 2, dilation_rate=2)),
    "Conv2D, groups": (PICTURE, lambda: layers.Conv2D(4, 3, groups=2)),
    "DepthwiseConv1D": (LINE, lambda: layers.DepthwiseConv1D(3)),
    "DepthwiseConv2D": (PICTURE, lambda: layers.DepthwiseConv2D(3, depth_multiplier=2)),
    "SeparableConv1D": (LINE, lambda: layers.SeparableConv1D(3, 3)),
    "SeparableConv2D": (PICTURE, lambda: layers.SeparableConv2D(3, 3, padding="same")),
    "Conv1DTranspose": (LINE, lambda: layers.Conv1DTranspose(3, 3, strides=2)),
    "Conv2DTranspose": (PICTURE, lambda: layers.Conv2DTranspose(3, 3, strides=2)),
    "Conv2DTranspose, same": (PICTURE, lambda: layers.Conv2DTranspose(3, 3, strides=2, padding="same")),
    "Conv2DTranspose, dense": (PICTURE, lambda: layers.Conv2DTranspose(3, 3)),
    "Conv2DTranspose, dilated": (PICTURE, lambda: layers.Conv2DTranspose(3, 2, dilation_rate=2)),
    "Conv2DTranspose, padded": (PICTURE, lambda: layers.Conv2DTranspose(3, 3, strides=3, output_padding=1)),
    "a U-Net": (PICTURE[:1] * 2 + (4,), lambda: lambda x: layers.Concatenate()([x, _stack(
        layers.MaxPooling2D(), layers.Conv2D(6, 3, padding="same", activation="relu"),
        layers.Conv2DTranspose(4, 2, strides=2))(x)])),
    "MaxPooling1D": (LINE, lambda: layers.MaxPooling1D(2)),
    "MaxPooling2D": (PICTURE, lambda: layers.MaxPooling2D(3, 2, padding="same")),
    "AveragePooling1D": (LINE, lambda: layers.AveragePooling1D(2)),
    "AveragePooling2D": (PICTURE, lambda: layers.AveragePooling2D(2, padding="same")),
    "GlobalMaxPooling1D": (LINE, lambda: layers.GlobalMaxPooling1D()),
    "GlobalMaxPooling2D": (PICTURE, lambda: layers.GlobalMaxPooling2D()),
    "GlobalAveragePooling1D": (LINE, lambda: layers.GlobalAveragePooling1D()),
    "GlobalAveragePooling2D": (PICTURE, lambda: layers.GlobalAveragePooling2D(keepdims=True)),
    "UpSampling1D": (LINE, lambda: layers.UpSampling1D(2)),
    "UpSampling2D": (PICTURE, lambda: layers.UpSampling2D(2)),
    "UpSampling2D, bilinear": (PICTURE, lambda: layers.UpSampling2D(2, interpolation="bilinear")),
    "ZeroPadding1D": (LINE, lambda: layers.ZeroPadding1D(2)),
    "ZeroPadding2D": (PICTURE, lambda: layers.ZeroPadding2D(1)),
    "Cropping1D": (LINE, lambda: layers.Cropping1D((1, 2))),
    "Cropping2D": (PICTURE, lambda: layers.Cropping2D(1)),
    "Flatten": (PICTURE, lambda: _stack(layers.Flatten(), layers.Dense(3))),
    "Reshape": (LINE, lambda: layers.Reshape((3, 8))),
    "Permute": (PICTURE, lambda: layers.Permute((3, 1, 2))),
    "RepeatVector": (ROW, lambda: layers.RepeatVector(3)),
    "BatchNormalization": (PICTURE, lambda: layers.BatchNormalization()),
    "LayerNormalization": (LINE, lambda: layers.LayerNormalization()),
    "GroupNormalization": (PICTURE, lambda: layers.GroupNormalization(2)),
    "UnitNormalization": (LINE, lambda: layers.UnitNormalization()),
    "RMSNormalization": (LINE, lambda: layers.RMSNormalization()),
    "SpectralNormalization": (ROW, lambda: layers.SpectralNormalization(layers.Dense(3))),
    "LSTM": (LINE, lambda: layers.LSTM(3)),
    "LSTM, all steps": (LINE, lambda: layers.LSTM(3, return_sequences=True)),
    "LSTM, unrolled": (LINE, lambda: layers.LSTM(3, unroll=True)),
    # What begins as zeros for each row meets kernels that are as long as the batch by chance.
    "LSTM, as wide as rows": (LINE, lambda: layers.LSTM(4, recurrent_dropout=0.1)),
    "GRU": (LINE, lambda: layers.GRU(3)),
    "GRU, before": (LINE, lambda: layers.GRU(3, reset_after=False, return_sequences=True)),
    "SimpleRNN": (LINE, lambda: layers.SimpleRNN(3, go_backwards=True)),
    "Bidirectional": (LINE, lambda: layers.Bidirectional(layers.LSTM(3, return_sequences=True))),
    "ConvLSTM1D": ((3, 5, 4), lambda: layers.ConvLSTM1D(2, 3)),
    "ConvLSTM2D": ((3, 4, 4, 2), lambda: layers.ConvLSTM2D(2, 3)),
    "TimeDistributed": ((3, 5, 4), lambda: layers.TimeDistributed(layers.Conv1D(2, 3))),
    "MultiHeadAttention": (LINE, lambda: lambda x: layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)),
    "GroupQueryAttention": (LINE, lambda: lambda x: layers.GroupQueryAttention(3, 4, 2)(x, x)),
    "Attention": (LINE, lambda: _attending(layers.Attention())),
    "AdditiveAttention": (LINE, lambda: _attending(layers.AdditiveAttention())),
    "Add": (LINE, lambda: _merged(layers.Add())),
    "Subtract": (LINE, lambda: _merged(layers.Subtract())),
    "Maximum": (LINE, lambda: _merged(layers.Maximum())),
    "Average": (LINE, lambda: _merged(layers.Average())),
    "Concatenate": (LINE, lambda: _merged(layers.Concatenate())),
    "Dot": (LINE, lambda: _merged(layers.Dot(axes=2, normalize=True))),
    "PReLU": (PICTURE, lambda: layers.PReLU(shared_axes=(1, 2))),
    "LeakyReLU": (ROW, lambda: layers.LeakyReLU()),
    "ELU": (ROW, lambda: layers.ELU()),
    "Softmax": (PICTURE, lambda: layers.Softmax(axis=1)),
    "Rescaling": (PICTURE, lambda: layers.Rescaling(2.0, 0.5)),
    "Normalization": (ROW, lambda: layers.Normalization(mean=[0.0, 1, 2, 3], variance=[1.0, 2, 3, 4])),
    "Resizing": (PICTURE, lambda: layers.Resizing(4, 7)),
    "CenterCrop": (PICTURE, lambda: layers.CenterCrop(3, 3)),
}  # fmt: skip


def layer(name: str) -> tuple[Any, Shape]:
    """Return a Keras model of a dense layer and what is behind it, with weights of no special values."""
    shape, made = LAYERS[name]
    inputs = keras.Input(shape)
    model = keras.Model(inputs, made()(layers.Dense(shape[-1], activation="tanh", name="first")(inputs)))
    rng = np.random.default_rng(0)
    for variable in model.weights:
        if np.issubdtype(np.dtype(variable.dtype), np.floating):
            variable.assign(np.abs(0.5 * rng.standard_normal(variable.shape)) + 0.1)
    return model, shape


def rows_of(shape: Sequence[int], count: int) -> np.ndarray:
    """Return random rows."""
    return np.random.default_rng(count).standard_normal((count, *shape)).astype(np.float32)
