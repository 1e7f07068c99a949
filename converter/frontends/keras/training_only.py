"""Training-only behaviour of a Keras model: which of it a program keeps, fixes or leaves out."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from converter.frontends.keras.activity import penalty_of
from converter.frontends.keras.dropout import drops
from converter.ir.batch_norm import BatchNorm
from converter.support.libraries import is_defined_in, loaded
from converter.support.notes import Note
from converter.training.losses import Penalty

#: Entries of a layer's configuration that say how strong its noise is.
_RATES = ("rate", "stddev", "dropout", "recurrent_dropout")

#: Methods of a model that say how Keras trains it.
_STEPS = {
    "compute_loss": "the program minimizes the loss that is named or compiled",
    "train_step": "a step of the program is forward, backward and update",
    "compute_loss_and_updates": "a step of the program is forward, backward and update",
}

#: What Keras may compute in, with variables of float32.
_HALVES = ("float16", "bfloat16")

_NO_NOISE = "the program computes the model as in inference, without random numbers"
#: How to have what is left out of layers that change pictures.
_AUGMENT = "; augment='keras' (--augment keras) has a step do what the model begins with"


def notes_on(model: Any, variables: Mapping[str, Any], own_losses: int, activities: Sequence[str] = ()) -> list[Note]:
    """Return what to say of a model.

    Args:
        model: a live model.
        variables: those that train, by name.
        own_losses: how many losses its layers added as they were called.
        activities: names of the layers of which an output is regularized in the graph, one for each.
    """
    found = [Note(str(model.name), "left out", f"{type(model).__name__}.{m}: {why}") for m, why in _own_steps(model)]
    found += _order_notes(model)
    found += [note for name, layer in layers_of(model) for note in _of_layer(name, layer, activities)]
    others = own_losses - len(activities)
    if others > 0 and not any(n.status == "left out" and "activity regularizer" in n.why for n in found):
        found.append(Note(str(model.name), "left out", f"{others} losses of its own (add_loss)"))
    for name, variable in variables.items():
        if (regularizer := getattr(variable, "regularizer", None)) is not None:
            penalty = penalty_of(regularizer)
            kind = type(regularizer).__name__
            if penalty is None:
                found.append(Note(name, "left out", f"the regularizer {kind}: only L1, L2 and L1L2 join the loss"))
            else:
                terms = [f"{k} {v:g}" for k, v in (("l1", penalty.l1), ("l2", penalty.l2)) if v]
                found.append(Note(name, "in the loss", f"the regularizer {kind} ({', '.join(terms)}), where it trains"))
    return found


def _order_notes(model: Any) -> list[Note]:
    """What to say of inputs that were declared in a dict in another order than Keras'."""
    inputs = model.input if len(getattr(model, "inputs", None) or []) > 1 else None
    if not isinstance(inputs, Mapping) or list(inputs) == sorted(inputs):
        return []
    why = f"{', '.join(inputs)} are declared in a dict, which Keras orders by its keys: so do lists go. Name them"
    return [Note("inputs", "sorted", why)]


def penalties(variables: Mapping[str, Any]) -> dict[str, Penalty]:
    """Return the regularizers that join the loss, by the name of the variable; `variables` are those that train."""
    known = {
        name: penalty_of(variable.regularizer)
        for name, variable in variables.items()
        if getattr(variable, "regularizer", None) is not None
    }
    return {name: penalty for name, penalty in known.items() if penalty is not None}


def batch_norms(model: Any, variables: Mapping[str, Any]) -> list[BatchNorm]:
    """Return its batch normalization layers."""
    import keras

    names = {id(variable): name for name, variable in variables.items()}
    still = held(model)
    return [
        BatchNorm(
            layer=path,
            mean=names[id(layer.moving_mean)],
            variance=names[id(layer.moving_variance)],
            weights=[names[id(w)] for w in (layer.gamma, layer.beta) if w is not None],
            axis=layer.axis,
            momentum=layer.momentum,
            trainable=bool(layer.trainable) and id(layer.moving_mean) not in still,
            problem="renorm=True is not supported" if layer.renorm else None,
        )
        for path, layer in layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization)
    ]


def held(model: Any) -> set[int]:
    """Return the ids of the variables in Keras' own layers that are not trainable.

    Those say it of all that is in them; but a layer that is loaded as not trainable and makes its parts afterwards, as
    attention does, holds variables that call themselves trainable, which the author's did not. Of a model in the model,
    and of a layer of the author's own, parts may be trainable again: there each says it for itself.
    """
    import keras

    return {
        id(v)
        for _, layer in layers_of(model)
        if not layer.trainable and not isinstance(layer, keras.Model) and not _is_anothers(type(layer))
        for v in layer.variables
    }


def layers_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield every layer once, by the names of the layers that it is in, and the model itself by its own."""
    seen = {id(model)}
    found: list[tuple[str, Any]] = [(str(model.name), model)]

    def descend(layer: Any, path: str) -> None:
        for inner in layer._flatten_layers(include_self=False, recursive=False):
            if id(inner) not in seen:
                seen.add(id(inner))
                found.append((f"{path}{inner.name}", inner))
                descend(inner, f"{path}{inner.name}/")

    descend(model, "")
    yield from found


def _own_steps(model: Any) -> Iterator[tuple[str, str]]:
    """Yield the methods of Keras' own training that its author wrote again, and what is done instead."""
    for method, why in _STEPS.items():
        if _is_own(model, method):
            yield method, why


def _is_own(layer: Any, method: str) -> bool:
    """Return whether a method is not that of Keras."""
    return _is_anothers(next(kind for kind in type(layer).__mro__ if method in vars(kind)))


def _is_anothers(kind: type) -> bool:
    """Return whether a class is not of Keras."""
    return not is_defined_in(kind, loaded("keras"))


def _asks_for_training(layer: Any) -> bool:
    """Return whether the author's own `call` looks at its argument `training`."""
    if not _is_own(layer, "call") or "training" not in inspect.signature(layer.call).parameters:
        return False
    code = getattr(inspect.unwrap(layer.call), "__code__", None)
    return code is None or any(
        i.opname.startswith("LOAD") and i.argval == "training" for i in dis.get_instructions(code)
    )


def _of_layer(name: str, layer: Any, activities: Sequence[str]) -> Iterator[Note]:
    import keras

    kind = type(layer).__name__
    if not drops(layer) and (noise := _noise(layer)) is not None:
        how = _AUGMENT if is_random_picture(layer) else ""
        yield Note(name, "left out", f"{kind}{noise}: {_NO_NOISE}{how}")
    elif isinstance(layer, keras.layers.SpectralNormalization):
        yield Note(name, "left out", f"{kind}: a step of Keras divides the weight by its norm, the program does not")
    elif _asks_for_training(layer):
        yield Note(name, "left out", f"what {kind}.call does for training=True: {_NO_NOISE}")
    if (regularizer := getattr(layer, "activity_regularizer", None)) is not None:
        what = f"the activity regularizer {type(regularizer).__name__}"
        if layer.name in activities:
            last = "; of the uses of a layer the last counts, as in Keras" if len(layer._inbound_nodes) > 1 else ""
            yield Note(name, "in the loss", f"{what}, where something before it trains{last}")
        else:
            yield Note(name, "left out", f"{what}: it does not join the loss")
    if getattr(layer, "compute_dtype", None) in _HALVES and not isinstance(layer, keras.layers.InputLayer):
        yield Note(name, "in float32", f"its policy {layer.dtype_policy.name}: the program computes in float32")
    if getattr(layer, "lora_enabled", False):
        yield Note(name, "fixed", "its kernel, frozen by Keras' enable_lora: lora_kernel_a and _b train")
    if mode := getattr(layer, "quantization_mode", None):
        yield Note(name, "fixed", f"its kernel, quantized by Keras ({mode}): such numbers cannot train")


def is_random_picture(layer: Any) -> bool:
    """Return whether a layer changes pictures in training alone."""
    import keras
    from keras.src.layers.preprocessing.image_preprocessing.base_image_preprocessing_layer import (
        BaseImagePreprocessingLayer,
    )

    kinds = keras.layers
    cut = kinds.Resizing | kinds.CenterCrop | kinds.RandomCrop
    always = kinds.AutoContrast | kinds.ContrastLimitedAdaptiveHistogramEqualization | kinds.MaxNumBoundingBoxes
    return isinstance(layer, BaseImagePreprocessingLayer) and not isinstance(layer, cut | always)


def _noise(layer: Any) -> str | None:
    """`(rate=0.5)` of a layer that draws random numbers in training, None of one that does not."""
    if not getattr(layer, "_seed_generators", None):
        return None
    try:
        config = layer.get_config()
    except Exception:  # a layer of the user's own need not have one
        config = {}
    rates = {key: config[key] for key in _RATES if isinstance(config.get(key), int | float)}
    if rates and not any(rates.values()):
        return None
    shown = ", ".join(f"{key}={value:g}" for key, value in rates.items() if value)
    return f"({shown})" if shown else ""
