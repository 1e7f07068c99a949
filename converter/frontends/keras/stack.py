"""Keras layers, one or a list, as a model of features of some shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras


def as_model(layers: Any, shape: Sequence[int]) -> Any:
    """Return a model of such features, the first axis left out; a model that is built already is returned as it is."""
    if isinstance(layers, keras.Model) and layers.built:
        return layers
    listed = layers if isinstance(layers, list | tuple) else [layers]
    return keras.Sequential([keras.Input(tuple(shape)), *listed], name="head")
