"""Where the Dropout layers of a Keras model stand: marked in the trace, which is that of inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import jax_frontend


def dropout_layers() -> tuple[type, ...]:
    """The classes that are marked."""
    import keras

    spatial = (keras.layers.SpatialDropout1D, keras.layers.SpatialDropout2D, keras.layers.SpatialDropout3D)
    return (keras.layers.Dropout, *spatial)


@contextmanager
def marked() -> Iterator[None]:
    """While it lasts, Dropout layers that are called for inference mark their inputs."""
    with ExitStack() as stack:
        for kind in dropout_layers():
            stack.enter_context(patch.object(kind, "call", _marking(kind.call)))  # type: ignore[attr-defined]
        yield


def _marking(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(layer: Any, inputs: Any, training: bool = False) -> Any:
        if training or not layer.rate:
            return original(layer, inputs, training=training)
        spatial = hasattr(layer, "_get_noise_shape")
        noise = layer._get_noise_shape(inputs) if spatial else layer.noise_shape
        sizes = zip(noise or inputs.shape, inputs.shape, strict=True)
        shared = [axis for axis, (size, full) in enumerate(sizes) if size == 1 != full]
        return jax_frontend.dropout(inputs, layer.rate, shared, type(layer).__name__)

    return call
