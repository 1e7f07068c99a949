"""Augmentation layers that a Keras model begins with, as a function that a step applies to its inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax

from converter.frontends.keras.preprocessing import within_jax
from converter.frontends.keras.process import runs_jax
from converter.frontends.keras.training_only import is_random_picture, layers_of
from converter.support.errors import UsageError

_ELSE = "or pass a JAX function (x, key) -> x"
#: Layers that no program does in a step, and why.
_REFUSED = {
    "RandomElasticTransform": "the size of its filter is a random number, and a program has filters of fixed sizes",
    "RandomPerspective": "it solves a system of equations for each picture, and no operator of the runtime does",
    "AugMix": "Keras on JAX chooses its operations once, and a step for all steps alike",
    "CutMix": "it mixes pictures of different rows, and the labels of these would stay as they are",
    "MixUp": "it mixes pictures of different rows, and the labels of these would stay as they are",
}


def own_augmentation(model_or_path: Any) -> Callable[[Any, Any], Any]:
    """Return the random layers that a model begins with: `(x, key) -> x`.

    Before and between them there may be layers that multiply each channel and add to it: the function undoes these
    after the last random one, as the model itself does them again. Its `layers` are the paths of the random ones.

    Raises:
        UsageError: no Keras model on the JAX backend, or one that does not begin with such layers, has several inputs,
            has some after other layers, too, or one that no program does.
    """
    if not runs_jax():
        raise UsageError(
            "augment='keras' needs Keras on JAX in this process: set KERAS_BACKEND=jax before it is imported",
            page="augmentation",
        )
    import keras

    from converter.frontends.keras.importer import load

    is_file = isinstance(model_or_path, str | os.PathLike)
    model = load(Path(model_or_path)) if is_file else model_or_path
    if not isinstance(model, keras.Model):
        raise UsageError(
            "augment='keras' compiles the random layers of a Keras model: pass a JAX function (x, key) -> x",
            page="augmentation",
        )
    chain = _chain(model)
    random = [layer for layer in chain if is_random_picture(layer)]
    within = {id(part) for layer in random for part in (layer, *layer._flatten_layers())}
    _check(model, random, within)

    def own_layers(x: Any, key: Any) -> Any:
        count = iter(range(1 << 16))
        with patch.object(keras.random.SeedGenerator, "next", lambda *_, **__: jax.random.fold_in(key, next(count))):
            for layer in chain:
                with within_jax(layer):
                    x = layer(x, training=True)
        for layer in reversed(chain):
            x = _undone(layer, x)
        return x

    own_layers.layers = [path for path, layer in layers_of(model) if id(layer) in within]  # type: ignore[attr-defined]
    own_layers.__name__ = ", ".join(layer.name for layer in random)
    return own_layers


def _check(model: Any, random: Sequence[Any], within: set[int]) -> None:
    """Raises UsageError where random layers of a model are none that a step can begin with; names them."""
    others = [layer for layer in model._flatten_layers() if id(layer) not in within and is_random_picture(layer)]
    if others:
        raise UsageError(
            f"augment='keras': {', '.join(layer.name for layer in others)} come after layers that are neither random "
            f"nor Rescaling or Normalization: let the model begin with them, {_ELSE}",
            page="augmentation",
        )
    if not random:
        raise UsageError(
            f"augment='keras': the model {model.name!r} does not begin with random layers (RandomFlip, RandomRotation, "
            f"...), which are what it means: leave it out, {_ELSE}",
            page="augmentation",
        )
    for layer in (part for each in random for part in (each, *each._flatten_layers())):
        if (reason := _REFUSED.get(type(layer).__name__)) is not None:
            raise UsageError(
                f"augment='keras': {type(layer).__name__} {layer.name!r} cannot be compiled: {reason}. Take it out of "
                f"the model, {_ELSE}",
                page="augmentation",
            )


def _chain(model: Any) -> list[Any]:
    """Return the layers from the input to the last random one.

    Empty where another layer comes before the first of these.
    """
    chain = list(_leading(model))
    while chain and not is_random_picture(chain[-1]):
        chain.pop()
    return chain


def _leading(model: Any) -> Iterator[Any]:
    """Yield the layers that are called one after the other on the only input, and whose result one layer reads."""
    for layer in _in_turn(model):
        for part in _parts(layer):
            if not _may_lead(part):
                return
            yield part


def _in_turn(model: Any) -> Iterator[Any]:
    """Yield the layers of a model that are called once, one after the other, up to where its ways part."""
    import keras

    if isinstance(model, keras.Sequential):
        yield from model.layers
    elif len(getattr(model, "inputs", None) or ()) == 1:
        value = model.inputs[0]
        while True:
            readers = [o for o in model.operations if any(value is x for node in _nodes(o, model) for x in node)]
            if len(readers) != 1 or len(readers[0]._inbound_nodes) != 1:
                return
            yield readers[0]
            value = readers[0].output


def _parts(layer: Any) -> Iterator[Any]:
    """Yield the layers in a layer that does nothing but call these in turn, or itself."""
    import keras

    if not isinstance(layer, keras.Sequential | keras.layers.Pipeline):
        yield layer
        return
    for each in layer.layers:
        yield from _parts(each)


def _may_lead(layer: Any) -> bool:
    """Return whether a layer is random, or can be undone."""
    import keras

    if isinstance(layer, keras.layers.Rescaling):
        return bool((keras.ops.convert_to_numpy(layer.scale) != 0).all())
    return isinstance(layer, keras.layers.Normalization) or is_random_picture(layer)


def _undone(layer: Any, x: Any) -> Any:
    """Return what a layer made x of; x itself of a random one."""
    import keras

    if isinstance(layer, keras.layers.Rescaling):
        return (x - layer.offset) / layer.scale
    if not isinstance(layer, keras.layers.Normalization):
        return x
    deviation = keras.ops.maximum(keras.ops.sqrt(layer.variance), keras.config.epsilon())
    return (x - layer.mean) / deviation if layer.invert else x * deviation + layer.mean


def _nodes(operation: Any, model: Any) -> Iterator[list[Any]]:
    """Yield what each call of an operation within a model is given."""
    for node in operation._inbound_nodes:
        yield list(node.input_tensors)
