"""The random layers that a Keras model begins with, as a function that a training step applies to its inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax

from converter.support.errors import UsageError
from keras_frontend.process import runs_jax
from keras_frontend.training_only import is_random_picture, layers_of


def own_augmentation(model_or_path: Any) -> Callable[[Any, Any], Any]:
    """The random layers between the input of a model and its first other layer: `(x, key) -> x`.

    Its `layers` are their paths in the model.

    Raises:
        UsageError: no Keras model on the JAX backend, or one that does not begin with such layers, has several inputs,
            or has some behind other layers, too.
    """
    if not runs_jax():
        raise UsageError(
            "augment='keras' needs Keras on JAX in this process: set KERAS_BACKEND=jax before it is imported",
            page="augmentation",
        )
    import keras

    from keras_frontend.importer import load

    is_file = isinstance(model_or_path, str | os.PathLike)
    model = load(Path(model_or_path)) if is_file else model_or_path
    if not isinstance(model, keras.Model):
        raise UsageError(
            "augment='keras' compiles the random layers of a Keras model: pass a JAX function (x, key) -> x",
            page="augmentation",
        )

    chain = list(_leading(model))
    if not chain:
        raise UsageError(
            f"augment='keras': the model {model.name!r} does not begin with random layers (RandomFlip, RandomRotation, "
            "...), which are what it means: leave it out, or pass a JAX function (x, key) -> x",
            page="augmentation",
        )
    within = {id(part) for layer in chain for part in (layer, *layer._flatten_layers())}
    later = [layer.name for layer in model._flatten_layers() if id(layer) not in within and is_random_picture(layer)]
    if later:
        raise UsageError(
            f"augment='keras': {', '.join(later)} stand behind layers that are not random: let the model begin with "
            "them, or pass a JAX function (x, key) -> x",
            page="augmentation",
        )

    def own_layers(x: Any, key: Any) -> Any:
        count = iter(range(1 << 16))
        with patch.object(keras.random.SeedGenerator, "next", lambda *_, **__: jax.random.fold_in(key, next(count))):
            for layer in chain:
                x = layer(x, training=True)
        return x

    own_layers.layers = [path for path, layer in layers_of(model) if id(layer) in within]  # type: ignore[attr-defined]
    own_layers.__name__ = ", ".join(layer.name for layer in chain)
    return own_layers


def _leading(model: Any) -> Iterator[Any]:
    """The random layers that are called one after the other on the only input, and whose result one layer reads."""
    import keras

    if isinstance(model, keras.Sequential):
        for layer in model.layers:
            if not is_random_picture(layer):
                return
            yield layer
    elif len(getattr(model, "inputs", None) or ()) == 1:
        value = model.inputs[0]
        while True:
            readers = [o for o in model.operations if any(value is x for node in _nodes(o, model) for x in node)]
            if len(readers) != 1 or not is_random_picture(readers[0]) or len(readers[0]._inbound_nodes) != 1:
                return
            yield readers[0]
            value = readers[0].output


def _nodes(operation: Any, model: Any) -> Iterator[list[Any]]:
    """What each call of an operation within a model is given."""
    for node in operation._inbound_nodes:
        yield list(node.input_tensors)
