"""Masks of batch normalization: marked in the trace, for a training step by the statistics of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from jax_frontend.mask import masked


@contextmanager
def marked_statistics() -> Iterator[None]:
    """While it lasts, batch normalization that is called for inference marks its input with the mask that it gets."""
    import keras

    with patch.object(keras.layers.BatchNormalization, "call", _marking(keras.layers.BatchNormalization.call)):
        yield


def _marking(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(layer: Any, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not training and mask is not None and mask.shape == inputs.shape[:-1]:
            inputs = masked(inputs, mask)
        return original(layer, inputs, training=training, mask=mask)

    return call
