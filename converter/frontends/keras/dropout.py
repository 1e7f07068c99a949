"""Random layers of Keras, in training alone: marked in the trace, which is that of inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import jax_frontend


def drops(layer: Any) -> bool:
    """Return whether what a layer does at random is marked."""
    import keras

    return isinstance(layer, (*_dropout_layers(), *_noise_layers())) or (
        isinstance(layer, keras.layers.Layer) and isinstance(getattr(layer, "cell", layer), _recurrent())
    )


def _dropout_layers() -> tuple[type, ...]:
    import keras

    spatial = (keras.layers.SpatialDropout1D, keras.layers.SpatialDropout2D, keras.layers.SpatialDropout3D)
    return (keras.layers.Dropout, *spatial)


def _noise_layers() -> tuple[type, ...]:
    import keras

    return (keras.layers.GaussianNoise, keras.layers.GaussianDropout, keras.layers.AlphaDropout)


def _recurrent() -> type:
    """Return what the cells of Keras' recurrent layers inherit."""
    from keras.src.layers.rnn.dropout_rnn_cell import DropoutRNNCell

    return DropoutRNNCell


def _recurrent_methods() -> Iterator[tuple[type, str]]:
    """Yield what drops in training, or calls what does: cells, and the loops that some layers have of their own."""
    import keras
    from keras.src.layers.rnn.conv_lstm import ConvLSTMCell

    for cell in (keras.layers.LSTMCell, keras.layers.GRUCell, keras.layers.SimpleRNNCell, ConvLSTMCell):
        yield cell, "call"
    for layer in (keras.layers.LSTM, keras.layers.GRU):
        yield layer, "inner_loop"


@contextmanager
def marked() -> Iterator[None]:
    """While it lasts, layers that are called for inference mark what they do at random in training."""
    markings = {**dict.fromkeys(_dropout_layers(), _dropping), **dict.fromkeys(_noise_layers(), _noisy)}
    with ExitStack() as stack:
        for kind, marking in markings.items():
            stack.enter_context(patch.object(kind, "call", marking(kind.call)))  # type: ignore[attr-defined]
        for kind, method in _recurrent_methods():
            stack.enter_context(patch.object(kind, method, _trained(getattr(kind, method))))
        stack.enter_context(patch.object(_recurrent(), "get_dropout_mask", _masks("dropout")))
        stack.enter_context(patch.object(_recurrent(), "get_recurrent_dropout_mask", _masks("recurrent_dropout")))
        yield


def _dropping(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(layer: Any, inputs: Any, training: bool = False) -> Any:
        if training or not layer.rate:
            return original(layer, inputs, training=training)
        spatial = hasattr(layer, "_get_noise_shape")
        noise = layer._get_noise_shape(inputs) if spatial else layer.noise_shape
        sizes = zip(noise or inputs.shape, inputs.shape, strict=True)
        shared = [axis for axis, (size, full) in enumerate(sizes) if size == 1 != full]
        return jax_frontend.dropout(inputs, layer.rate, shared, type(layer).__name__)

    return call


def _noisy(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the layer as it trains, with keys of the program for those of its seed, beside the layer as it infers."""
    import keras

    def call(layer: Any, inputs: Any, training: bool = False) -> Any:
        strength = {name: value for name in ("rate", "stddev") if (value := getattr(layer, name, 0))}
        if training or not strength:
            return original(layer, inputs, training=training)
        with patch.object(keras.random.SeedGenerator, "next", lambda *_, **__: jax_frontend.random_key()):
            trained = original(layer, inputs, training=True)
        said = ", ".join(f"{name}={value:g}" for name, value in strength.items())
        return jax_frontend.in_training(inputs, trained, f"{type(layer).__name__}({said})")

    return call


def _trained(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a cell or a loop of one as it trains: all that it does then is to multiply by masks, which are marked."""

    def call(layer: Any, *arguments: Any, training: bool = False, **options: Any) -> Any:
        return original(layer, *arguments, training=True, **options)

    return call


def _masks(which: str) -> Callable[..., Any]:
    """Return one mask for all steps of a sequence, made by the layer before its loop.

    Of some cells one for each gate.
    """
    kept = f"_{which}_mask"

    def masks(cell: Any, step_input: Any) -> Any:
        import keras

        rate = getattr(cell, which)
        if getattr(cell, kept, None) is None and rate > 0:
            ones, count = keras.ops.ones_like(step_input), getattr(cell, "dropout_mask_count", None)
            made = [jax_frontend.dropout(ones, rate, label=which) for _ in range(count or 1)]
            setattr(cell, kept, made if count else made[0])
        return getattr(cell, kept, None)

    return masks
