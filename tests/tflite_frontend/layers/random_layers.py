"""Random layers of Keras as TensorFlow's converter writes them.

Run in a process of its own, for whose Keras TensorFlow computes: `python random_layers.py FOLDER SEED...`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras import layers

Draw = np.random.Generator
#: Layers of a model, and rows of a step.
LAYERS, ROWS = 6, 2
ACTIVATIONS = (
    *("relu", "relu6", "elu", "selu", "gelu", "silu", "softplus", "softsign", "tanh", "sigmoid", "hard_sigmoid"),
    *("leaky_relu", "softmax", "linear", "linear", "linear", "exponential", "mish", "hard_silu", "log_softmax"),
)


def _one(rng: Draw, *of: Any) -> Any:
    return of[rng.integers(len(of))]


def _yes(rng: Draw, part: float = 0.5) -> bool:
    return bool(rng.random() < part)


def _sizes(rng: Draw, count: int, low: int = 4, high: int = 8) -> list[int]:
    return [int(n) for n in rng.integers(low, high, count)]


def _dense(rng: Draw) -> tuple[Any, tuple[int, ...]]:
    shape = (*_sizes(rng, int(rng.integers(0, 3)), 2, 4), 4)
    return layers.Dense(3, activation=_one(rng, *ACTIVATIONS), use_bias=_yes(rng)), shape


def _convolution(rng: Draw) -> tuple[Any, tuple[int, ...]]:
    spatial, kind = _one(rng, 1, 2, 2, 3), _one(rng, "plain", "plain", "depthwise", "separable", "transposed")
    if spatial == 3:
        kind = "plain"
    spread = kind != "transposed" and _yes(rng, 0.3)
    options: dict[str, Any] = {
        "strides": 1 if spread else _one(rng, 1, 2),
        "padding": _one(rng, "valid", "same"),
        "activation": _one(rng, *ACTIVATIONS),
        "use_bias": _yes(rng),
    }
    if spread:
        options["dilation_rate"] = 2
    window = (
        _one(rng, 1, 2, 3)
        if spatial == 1 or kind in ("depthwise", "separable") or _yes(rng)
        else tuple(_one(rng, 1, 2, 3) for _ in range(spatial))
    )
    shape = (*_sizes(rng, spatial, 5, 8), 4)
    if kind == "plain":
        groups = _one(rng, 1, 1, 2) if spatial == 2 else 1
        return getattr(layers, f"Conv{spatial}D")(_one(rng, 2, 4), window, groups=groups, **options), shape
    if kind == "depthwise":
        return getattr(layers, f"DepthwiseConv{spatial}D")(window, depth_multiplier=_one(rng, 1, 2), **options), shape
    if kind == "separable":
        return getattr(layers, f"SeparableConv{spatial}D")(3, window, **options), shape
    return getattr(layers, f"Conv{spatial}DTranspose")(3, window, **options), shape


def _pooling(rng: Draw) -> tuple[Any, tuple[int, ...]]:
    spatial, kind = _one(rng, 1, 2, 2), _one(rng, "Max", "Average")
    shape = (*_sizes(rng, spatial), 3)
    if _yes(rng, 0.3):
        return getattr(layers, f"Global{kind}Pooling{spatial}D")(keepdims=_yes(rng)), shape
    options = {"strides": _one(rng, None, 1, 2, 3), "padding": _one(rng, "valid", "same")}
    return getattr(layers, f"{kind}Pooling{spatial}D")(_one(rng, 2, 3), **options), shape


def _resampling(rng: Draw) -> tuple[Any, tuple[int, ...]]:
    shape = (*_sizes(rng, 2, 3, 6), 2)
    made = (
        lambda: layers.UpSampling2D(_one(rng, 2, 3, (1, 2)), interpolation=_one(rng, "nearest", "bilinear")),
        lambda: layers.ZeroPadding2D(_one(rng, 1, ((1, 0), (2, 1)))),
        lambda: layers.Cropping2D(_one(rng, 1, ((1, 0), (0, 1)))),
        lambda: layers.Resizing(*_sizes(rng, 2, 2, 8), interpolation=_one(rng, "nearest", "bilinear")),
        lambda: layers.Permute((3, 1, 2)),
        lambda: layers.Flatten(),
    )
    return _one(rng, *made)(), shape


def _normalization(rng: Draw) -> tuple[Any, tuple[int, ...]]:
    shape = (*_sizes(rng, _one(rng, 1, 2), 2, 5), 4)
    made = (
        lambda: layers.LayerNormalization(epsilon=_one(rng, 1e-3, 1e-5), center=_yes(rng), scale=_yes(rng)),
        lambda: layers.GroupNormalization(_one(rng, 1, 2, 4), center=_yes(rng), scale=_yes(rng)),
        lambda: layers.UnitNormalization(),
        lambda: layers.RMSNormalization(),
    )
    return _one(rng, *made)(), shape


def _recurrent(rng: Draw) -> tuple[Any, tuple[int, ...]]:
    kind = _one(rng, layers.LSTM, layers.GRU, layers.SimpleRNN)
    options: dict[str, Any] = {
        "return_sequences": _yes(rng),
        "go_backwards": _yes(rng, 0.3),
        "use_bias": _yes(rng, 0.7),
        "unroll": _yes(rng, 0.3),
    }
    if kind is layers.GRU:
        options["reset_after"] = _yes(rng)
    if kind is not layers.SimpleRNN and _yes(rng, 0.2):
        options["recurrent_activation"] = "hard_sigmoid"
    shape = (*_sizes(rng, 1, 2, 5), 3)
    if _yes(rng, 0.3):
        del options["go_backwards"]
        return layers.Bidirectional(kind(3, **options), merge_mode=_one(rng, "concat", "sum", "mul", "ave")), shape
    return kind(3, **options), shape


class OfItself(layers.Layer):
    """Attention of a tensor to itself."""

    def __init__(self, attention: Any, **given: Any) -> None:
        super().__init__()
        self.attention, self.given = attention, given

    def call(self, x: Any) -> Any:
        listed = isinstance(self.attention, layers.Attention | layers.AdditiveAttention)
        return self.attention([x, x], **self.given) if listed else self.attention(x, x, **self.given)

    def get_config(self) -> dict[str, Any]:
        """Return what it is made of."""
        return {"of": type(self.attention).__name__, **self.attention.get_config(), **self.given}


def _attention(rng: Draw) -> tuple[Any, tuple[int, ...]]:
    causal = {"use_causal_mask": True} if _yes(rng, 0.4) else {}
    made = (
        lambda: layers.MultiHeadAttention(_one(rng, 1, 2), 3, use_bias=_yes(rng, 0.7), value_dim=_one(rng, None, 2)),
        lambda: layers.GroupQueryAttention(3, 2, _one(rng, 1, 2)),
        lambda: layers.Attention(use_scale=_yes(rng), score_mode=_one(rng, "dot", "concat")),
        lambda: layers.AdditiveAttention(use_scale=_yes(rng)),
    )
    return OfItself(_one(rng, *made)(), **causal), (*_sizes(rng, 1, 2, 5), 4)


def _other(rng: Draw) -> tuple[Any, tuple[int, ...]]:
    shape = (*_sizes(rng, 1, 2, 4), 4)
    made = (
        lambda: layers.PReLU(shared_axes=_one(rng, None, [1])),
        lambda: layers.LeakyReLU(_one(rng, 0.1, 0.3)),
        lambda: layers.ReLU(max_value=_one(rng, None, 6.0, 1.5), negative_slope=_one(rng, 0.0, 0.2)),
        lambda: layers.ELU(_one(rng, 1.0, 0.5)),
        lambda: layers.Softmax(_one(rng, -1, 1)),
        lambda: layers.EinsumDense("abc,cd->abd", (None, 3), bias_axes=_one(rng, None, "d")),
        lambda: layers.TimeDistributed(layers.Dense(2, activation=_one(rng, *ACTIVATIONS))),
        lambda: layers.Activation(_one(rng, *ACTIVATIONS)),
    )
    return _one(rng, *made)(), shape


KINDS = (_dense, _convolution, _convolution, _pooling, _resampling, _normalization, _recurrent, _attention, _other)


def made(seed: int) -> Any:
    """Return a model of several layers, each with an input of its own; outputs are flat."""
    rng = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    inputs, outputs = [], []
    while len(outputs) < LAYERS:
        try:
            layer, shape = (_one(rng, *KINDS) if outputs else _dense)(rng)  # one has weights at least
            x = keras.Input(shape, name=f"x{len(inputs)}")
            y = layer(x)
        except (ValueError, TypeError):
            continue
        inputs.append(x)
        outputs.append(layers.Flatten(name=f"y{len(outputs)}")(y))
    model = keras.Model(inputs, outputs)
    for weight in model.weights:
        weight.assign(np.asarray(weight) + 0.3 * rng.standard_normal(weight.shape).astype(np.float32))
    return model


def _converted(model: Any) -> bytes:
    """Return the file of a model: inputs x0, x1, ..., outputs y0, y1, ... of any number of rows."""
    names = [f"y{i}" for i in range(len(model.outputs))]
    signature = [tf.TensorSpec((ROWS, *i.shape[1:]), i.dtype, name=f"x{n}") for n, i in enumerate(model.inputs)]
    called = tf.function(lambda *x: dict(zip(names, model(x, training=False), strict=True)), signature)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([called.get_concrete_function()])
    converter.experimental_enable_resource_variables = False
    data: bytes = converter.convert()
    return data


def written(seed: int, folder: Path) -> None:
    """Write the file of a model, what its layers are, and what they are given. Of what cannot be written, nothing."""
    model, rng = made(seed), np.random.default_rng(seed + 1)
    arrays = {f"x{i}": rng.standard_normal((ROWS, *x.shape[1:]), np.float32) for i, x in enumerate(model.inputs)}
    try:
        data = _converted(model)
        # The converter writes transposed convolutions that no interpreter runs.
        tf.lite.Interpreter(model_content=data).allocate_tensors()
    except (Exception, SystemExit) as error:
        print(f"{seed}: {str(error)[:200]}", file=sys.stderr)
        return
    folder.joinpath(f"{seed}.tflite").write_bytes(data)
    np.savez(folder / f"{seed}.npz", **arrays)
    said = [f"{type(layer).__name__} {layer.get_config()}" for layer in model.layers]
    folder.joinpath(f"{seed}.txt").write_text("\n".join(said))


if __name__ == "__main__":
    for text in sys.argv[2:]:
        written(int(text), Path(sys.argv[1]))
