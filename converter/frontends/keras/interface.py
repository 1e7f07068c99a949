"""Interface of a Keras model: how it is called on flat inputs, their shapes, and what inputs and outputs are called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from converter.ir import Interface
from converter.support.errors import UnsupportedError, UsageError
from converter.support.libraries import is_defined_in, loaded


def calling(model: Any) -> tuple[Callable[[Sequence[Any]], Any], list[tuple[tuple[int | None, ...], str]]]:
    """Return how to call a model on its flat inputs, and the (shape, dtype) of each."""
    if is_functional(model):
        import keras

        # A Sequential that was built by its first call keeps no `input`; it has exactly one.
        structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        specs = [(tuple(t.shape), str(t.dtype)) for t in model.inputs]
        # `call`, not `__call__`: layer paths then start below the model's own name, as the variables' paths do.
        return lambda arrays: model.call(keras.tree.pack_sequence_as(structure, list(arrays)), training=False), specs
    leaves, structure = jax.tree_util.tree_flatten(_built_shape(model), is_leaf=_is_shape)
    return (
        lambda arrays: model(jax.tree_util.tree_unflatten(structure, arrays), training=False),
        [(tuple(shape), model.input_dtype) for shape in leaves],
    )


def is_functional(model: Any) -> bool:
    """Return whether Keras runs the model by its recorded graph of layers, not by a `call` of the user's own."""
    return bool(getattr(model, "inputs", None)) and is_defined_in(type(model).call, loaded("keras"))


def input_names(model: Any) -> list[str]:
    """Return names of the inputs: keys of the dict that the model takes, of `keras.Input`, or what `call` takes."""
    if is_functional(model):
        import keras

        if not isinstance(model, keras.Sequential) and isinstance(model.input, Mapping):
            return ["_".join(map(str, path)) for path, _ in keras.tree.flatten_with_path(model.input)]
        return [tensor.name for tensor in model.inputs]
    flat = jax.tree_util.tree_flatten_with_path(_built_shape(model), is_leaf=_is_shape)[0]
    return ["_".join(["x", *(str(getattr(k, "key", getattr(k, "idx", k))) for k in keys)]) for keys, _ in flat]


def output_names(model: Any) -> list[str]:
    """Return what Keras calls the outputs, the layers that give them.

    A layer that gives several gets `_1`, `_2`, ...
    """
    names: list[str] = []
    for layer in model.output_names:
        name, count = layer, 0
        while name in names:
            count += 1
            name = f"{layer}_{count}"
        names.append(name)
    return names


def _built_shape(model: Any) -> Any:
    """Return the shape, or tree of shapes, of the one argument that a subclassed model was built with."""
    parameters = inspect.signature(model.call).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(needed) > 1:
        raise UsageError(
            f"{type(model).__name__}.call takes {len(needed)} arguments ({', '.join(needed)}), whose shapes Keras does "
            f"not keep. Wrap it: {needed[0]}, ... = keras.Input(...), ...; keras.Model([{', '.join(needed)}], "
            f"model({', '.join(needed)}))",
            page="models",
        )
    shape = (model.get_build_config() or {}).get("input_shape")
    if shape is None:
        raise UsageError(
            f"the shape of the input of {model.name!r} is not known: call it once on a batch", page="models"
        )
    return _plain(shape)


def _plain(tree: Any) -> Any:
    """Dicts, lists and tuples in place of the tracking ones of Keras, which JAX takes for leaves."""
    if isinstance(tree, Mapping):
        return {key: _plain(item) for key, item in tree.items()}
    if _is_shape(tree):
        return tuple(tree)
    return [_plain(item) for item in tree] if isinstance(tree, list | tuple) else tree


def _is_shape(item: Any) -> bool:
    return isinstance(item, list | tuple) and all(d is None or isinstance(d, int) for d in item)


def input_spec(model: Any, index: int, spec: tuple[tuple[int | None, ...], str]) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an input, for one row.

    Raises:
        UsageError: an axis after the batch has no fixed size.
        UnsupportedError: it takes strings.
    """
    shape, dtype = spec
    if not shape or any(size is None for size in shape[1:]):
        raise UsageError(
            f"input {index} of {model.name!r} has the shape {shape}: every axis after the batch needs a fixed size, "
            "for example keras.Input((224, 224, 3)), or said for this build alone: inputs=[jax.ShapeDtypeStruct("
            "(1, 224, 224, 3), 'float32')]",
            page="models",
        )
    if dtype == "string":
        raise UnsupportedError(
            f"input {index} of {model.name!r} takes strings: turn them into numbers before the model, for example by "
            "taking its preprocessing layers out",
            page="models",
        )
    return jax.ShapeDtypeStruct((1, *shape[1:]), dtype if dtype != "int64" else "int32")


def own_interface(model: Any, inputs: Sequence[str], outputs: Mapping[str, str]) -> Interface:
    """Return what the user calls the inputs and outputs of a model; what Keras numbers by itself has no name.

    Args:
        model: a live one.
        inputs: names in the graph.
        outputs: keys of the dict that it returns, by the name in the graph, where that has one output alone.
    """
    if is_functional(model):
        own = ["" if _is_automatic("KerasTensor", name) else name for name in input_names(model)]
        if not outputs and len(model.outputs) == 1:
            layer = model.outputs[0]._keras_history.operation
            outputs = {} if _is_automatic(type(layer).__name__, layer.name) else {"output": layer.name}
    else:
        (called, *_) = inspect.signature(model.call).parameters
        own = [name.removeprefix("x_") if name != "x" else called for name in input_names(model)]
    return Interface(dict(zip(inputs, own, strict=True)), outputs)


def _is_automatic(kind: str, name: str) -> bool:
    """Return whether Keras gives an object of a class such a name by itself: `dense`, `dense_1`, `keras_tensor_12`."""
    from keras.src.utils.naming import to_snake_case

    return re.fullmatch(rf"{to_snake_case(kind)}(_\d+)?", name) is not None
