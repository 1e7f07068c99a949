"""Preprocessing layers that Keras computes by TensorFlow: tables of integers are looked up in JAX, others refused."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from converter.support.errors import UnsupportedError, UnsupportedSite

#: What to do with what no program can do.
_BEFORE = "compute it before the model, on the device too, and let the model begin with keras.Input of its numbers"
_HASHES = "it hashes by text, and there is no text in a program"
_INT32 = np.iinfo(np.int32)
#: What JAX raises where a number is needed that only a step has, and what the layer did.
_LEAVES: dict[type[Exception], str] = {
    jax.errors.TracerArrayConversionError: "it hands what it is given to NumPy or TensorFlow, which are not traced",
    jax.errors.TracerBoolConversionError: "its Python asks (`if`, `while`, `and`) for what is only known in a step",
    jax.errors.ConcretizationTypeError: "its Python needs a number (`int`, a shape) that is only known in a step",
    jax.errors.TracerIntegerConversionError: "its Python needs an index that is only known in a step",
}


def check_preprocessing(model: Any) -> None:
    """Raises UnsupportedError where layers of a model handle text, or a table that no program can hold; names all."""
    sites = []
    within: set[int] = set()
    for layer in model._flatten_layers():
        if id(layer) not in within and (reason := _refusal(layer)) is not None:
            within |= {id(part) for part in layer._flatten_layers()}
            sites.append(UnsupportedSite(type(layer).__name__, layer.name, "", reason, _BEFORE))
    if sites:
        listed = "\n".join(f"  {site.primitive} {site.layer!r}: {site.reason}" for site in sites)
        raise UnsupportedError(
            f"layers of {model.name!r} cannot be compiled:\n{listed}\n{_BEFORE}", sites, page="operations"
        )


def _refusal(layer: Any) -> str | None:
    """Return why a layer cannot be compiled; None where it can."""
    import keras

    if isinstance(layer, keras.layers.Hashing | keras.layers.HashedCrossing):
        return _HASHES
    if isinstance(layer, keras.layers.StringLookup | keras.layers.TextVectorization):
        return "it takes text, and there is none in a program"
    if not isinstance(layer, keras.layers.IntegerLookup):
        return None
    if layer.num_oov_indices == 0 and not layer.invert:
        return (
            "num_oov_indices=0 is an error of Keras for numbers out of the vocabulary, and a program has none: give 1"
        )
    if layer.num_oov_indices > 1 and layer.oov_method == "farmhash":
        return f"oov_method='farmhash': {_HASHES}"
    keys, _ = _table(layer)
    if keys.size and (keys.min() < _INT32.min or keys.max() > _INT32.max):
        return "its vocabulary has numbers that are not int32"
    return None


@contextmanager
def within_jax(model: Any) -> Iterator[None]:
    """Raises UnsupportedError where a layer leaves JAX within: it hands what it is given to NumPy or Python."""
    import keras

    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        # Keras makes the error of a layer anew, and cannot do it with all of these: they are where it came from.
        while cause is not None and not isinstance(cause, tuple(_LEAVES)):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        reason = next(why for kind, why in _LEAVES.items() if isinstance(cause, kind))
        owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(cause.__traceback__)]
        layer = next((each for each in reversed(owners) if isinstance(each, keras.layers.Layer)), model)
        kind = type(layer).__name__
        advice = "write it with keras.ops or jax.numpy, or compute it before the model"
        site = UnsupportedSite(kind, layer.name, "", reason, advice)
        raise UnsupportedError(
            f"the layer {kind} {layer.name!r} cannot be compiled: {reason}. {advice}", [site], page="operations"
        ) from None


@contextmanager
def looked_up() -> Iterator[None]:
    """While it lasts, layers that look up integers do so in JAX."""
    import keras

    with patch.object(keras.layers.IntegerLookup, "call", _looking_up(keras.layers.IntegerLookup.call)):
        yield


def _looking_up(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(layer: Any, inputs: Any) -> Any:
        return _look_up(layer, inputs) if isinstance(inputs, jax.Array) else original(layer, inputs)

    return call


def _look_up(layer: Any, inputs: Any) -> Any:
    """Return the places of integers in a layer's vocabulary, or an encoding of these, as the layer gives them."""
    from keras.src.utils.numerical_utils import encode_categorical_inputs

    x = jnp.asarray(inputs).astype(jnp.int32)
    keys, values = _table(layer)
    is_key = x[..., None] == jnp.asarray(keys, jnp.int32)
    found = jnp.asarray(values, jnp.int32)[jnp.argmax(is_key.astype(jnp.int32), -1)]
    if layer.num_oov_indices > 1 and not layer.invert:
        others = jnp.mod(x, layer.num_oov_indices) + layer._oov_start_index()
    else:
        others = jnp.full_like(x, int(layer._default_value))
    places = jnp.where(is_key.any(-1), found, others)
    if layer.mask_token is not None:
        # Encodings leave it out: it has a place that is none.
        places = jnp.where(x == int(layer._mask_key), min(int(layer._mask_value), _INT32.max), places)
    if layer.output_mode == "int":
        return places
    depth = layer.max_tokens if layer.pad_to_max_tokens else layer.vocabulary_size()
    mode = "count" if layer.output_mode == "tf_idf" else layer.output_mode
    encoded = encode_categorical_inputs(places, mode, depth, dtype="float32")
    return encoded * np.asarray(layer.idf_weights_const) if layer.output_mode == "tf_idf" else encoded


def _table(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return what a layer looks up, and what it finds there."""
    keys, values = layer.lookup_table.export()
    return np.asarray(keys).reshape(-1), np.asarray(values).reshape(-1)
