"""Loss and optimizer that a Keras model was compiled with, from its configuration: read, never executed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from converter.frontends.keras.compile_config import with_options
from converter.frontends.keras.configuration import Unreadable
from converter.frontends.keras.optimizers import read_optimizer
from converter.frontends.source import Compiled
from converter.support.errors import UsageError
from converter.support.notes import Note
from converter.training.losses import LOSSES, JointLoss, Loss, named_loss

#: Other names of the losses; those of the classes are their CamelCase.
_ALIASES = {
    "mean_squared_error": "mse",
    "MeanSquaredError": "mse",
    "mean_absolute_error": "mae",
    "MeanAbsoluteError": "mae",
    "mean_absolute_percentage_error": "mape",
    "MeanAbsolutePercentageError": "mape",
    "mean_squared_logarithmic_error": "msle",
    "MeanSquaredLogarithmicError": "msle",
    "Poisson": "poisson",
    "bce": "binary_crossentropy",
    "BinaryCrossentropy": "binary_crossentropy",
    "CategoricalCrossentropy": "categorical_crossentropy",
    "SparseCategoricalCrossentropy": "sparse_categorical_crossentropy",
    "BinaryFocalCrossentropy": "binary_focal_crossentropy",
    "CategoricalFocalCrossentropy": "categorical_focal_crossentropy",
    "kld": "kl_divergence",
    "KLDivergence": "kl_divergence",
    "Huber": "huber",
    "logcosh": "log_cosh",
    "LogCosh": "log_cosh",
    "CosineSimilarity": "cosine_similarity",
    "Hinge": "hinge",
    "SquaredHinge": "squared_hinge",
    "CategoricalHinge": "categorical_hinge",
    "CategoricalGeneralizedCrossEntropy": "categorical_generalized_cross_entropy",
    "Dice": "dice",
    "Tversky": "tversky",
}
#: Those that sum over axes of their own choice, which is an option of theirs.
_OVER_AXES = ("dice", "tversky")
#: Options of losses that a note names, where they are set.
_SAID = ("label_smoothing", "gamma", "alpha", "delta", "beta", "q", "ignore_class")
#: Of a loss' configuration: means over all that there is, as here.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def read_compiled(config: Mapping[str, Any] | None, outputs: Sequence[str] = ("output",)) -> Compiled | None:
    """Return what `model.compile` was given, from `model.get_compile_config()` or a `.keras` file.

    None for none at all.

    Args:
        config: the configuration.
        outputs: names of the model's outputs.
    """
    if not isinstance(config, Mapping) or not config:
        return None
    notes = []
    loss, problem = None, None
    try:
        loss = _loss(config, outputs)
    except Unreadable as reason:
        problem = str(reason)
    read, refused = None, None
    if (entry := config.get("optimizer")) is not None:
        try:
            read = read_optimizer(entry)
            notes += [Note("optimizer", "left out", text) for text in read.left_out]
        except Unreadable as reason:
            refused = str(reason)
    if config.get("metrics") not in (None, [], ["accuracy"], ["acc"]) or config.get("weighted_metrics"):
        text = "`evaluate` gives the loss, and the accuracy of classifiers; name others there, metrics=[...]"
        notes.append(Note("metrics", "left out", f"the compiled metrics are not computed: {text}"))
    options = _loss_words(config)
    if read is None:
        return Compiled(loss, problem, notes=tuple(notes), optimizer_problem=refused, loss_options=options)
    return Compiled(
        loss,
        problem,
        read.optimizer,
        read.name,
        read.learning_rate,
        tuple(notes),
        loss_options=options,
        optimizer_options=read.kept,
    )


def _loss_words(config: Mapping[str, Any]) -> list[str]:
    """Return the options of the losses that change what they are, and the weights of these, in words."""
    given: Any = config.get("loss")
    entries = given.values() if isinstance(given, Mapping) and _is_several(given) else given
    found: list[str] = []
    for entry in entries if _is_several(given) else [given]:
        inner = entry.get("config") if isinstance(entry, Mapping) else None
        for name in _SAID:
            value = inner.get(name) if isinstance(inner, Mapping) else None
            if isinstance(value, int | float) and not isinstance(value, bool) and value:
                found.append(f"{name.replace('_', ' ')} {value:g}")
    weights: Any = config.get("loss_weights")
    factors = weights.values() if isinstance(weights, Mapping) else weights if isinstance(weights, list) else []
    numbers = [f"{value:g}" for value in factors if isinstance(value, int | float)]
    return [*dict.fromkeys(found), *([f"loss weights {', '.join(numbers)}"] if numbers else [])]


def loss_of(loss: Any) -> Loss:
    """Reads a loss of Keras' own, an object or a function of `keras.losses`, with its options.

    Raises:
        UsageError: Pocketune has no such loss, or not with these options.
    """
    import keras

    try:
        entry = keras.losses.serialize(loss)
        if isinstance(entry, str):
            entry = {"class_name": "function", "config": entry, "module": "keras.losses"}
        return _one_loss(with_options(entry, loss))
    except Unreadable as reason:
        name = getattr(loss, "__name__", type(loss).__name__)
        raise UsageError(
            f"the loss {name} cannot be taken over: {reason}. Name one of pocketune.losses.LOSSES, or write it in JAX: "
            "(outputs, targets) -> loss of each example",
            page="keras-files",
        ) from None


# -- losses ------------------------------------------------------------------------------------------------------------


def _loss(config: Mapping[str, Any], outputs: Sequence[str]) -> Loss | JointLoss | None:
    entry, weights = config.get("loss"), config.get("loss_weights")
    if entry is None:
        return None
    if len(outputs) > 1:
        # One loss is that of every output.
        each = _by_output("loss", entry, outputs) if _is_several(entry) else dict.fromkeys(outputs, entry)
        factors = {} if weights is None else _by_output("loss_weights", weights, outputs)
        if not all(isinstance(f, int | float) and isfinite(f) for f in factors.values()):
            raise Unreadable("its loss_weights are no numbers")
        return JointLoss({name: _one_loss(one) for name, one in each.items() if one is not None}).weighed(factors)
    factor = 1.0
    if weights is not None:
        (factor,) = _only(weights)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not isfinite(factor):
            raise Unreadable("its loss_weights are no numbers")
    if _is_several(entry):
        if len(entry) != 1:
            raise Unreadable("it has a loss for each output, and the model has one output")
        (entry,) = entry.values() if isinstance(entry, Mapping) else entry
    return replace(_one_loss(entry), factor=float(factor))


def _only(weights: Any) -> list[Any]:
    """Return what was given for the only output: by its name, in a list, or alone."""
    several = [*weights.values()] if isinstance(weights, Mapping) else weights
    if not isinstance(several, list):
        return [several]
    if len(several) != 1:
        raise Unreadable("it has loss_weights for several outputs, and the model has one")
    return several


def _is_several(entry: Any) -> bool:
    return isinstance(entry, list) or (isinstance(entry, Mapping) and "class_name" not in entry)


def _by_output(what: str, given: Any, outputs: Sequence[str]) -> dict[str, Any]:
    """Return what was given for the outputs, by name, in their order."""
    if isinstance(given, Mapping) and given.keys() <= set(outputs):
        return {name: given[name] for name in outputs if name in given}
    if isinstance(given, list) and len(given) == len(outputs):
        return dict(zip(outputs, given, strict=True))
    raise Unreadable(f"its {what} is not by the outputs {', '.join(outputs)}")


def _one_loss(entry: Any) -> Loss:
    name, options = _named(entry)
    summed = options.pop("reduction", "mean") == "sum"
    link = named_loss(name).link
    from_logits = options.pop("from_logits", False)
    if not isinstance(from_logits, bool):
        raise Unreadable(f"from_logits is {from_logits!r}")
    try:
        made = named_loss(name, **options)
        needs_link = link is not None and not from_logits
        return replace(made, needs_link=needs_link, needs_logits=from_logits, summed=summed, given_as=_title(entry))
    except Exception as error:
        raise Unreadable(str(error)) from None


def _title(entry: Any) -> str:
    """Return what Keras calls a loss that it has."""
    if not isinstance(entry, Mapping):
        return str(entry)
    return str(entry.get("config") if entry.get("class_name") == "function" else entry.get("class_name"))


def _named(entry: Any) -> tuple[str, dict[str, Any]]:
    """Our name of a loss, and its options."""
    options: dict[str, Any] = {}
    if isinstance(entry, Mapping) and entry.get("class_name") == "function":
        if entry.get("module") not in ("builtins", "keras.losses") or entry.get("registered_name") not in (
            *("function", None),
            entry.get("config"),
        ):
            raise Unreadable(f"{str(entry.get('config'))[:80]} is a function of its author's")
        entry = entry.get("config")
    elif isinstance(entry, Mapping):
        kind, inner = entry.get("class_name"), entry.get("config")
        if entry.get("module") != "keras.losses" or not isinstance(kind, str) or not isinstance(inner, Mapping):
            raise Unreadable(f"{str(kind)[:80]} is not a loss of Keras")
        options, entry = _options(kind, inner), kind
    if not isinstance(entry, str):
        raise Unreadable("it is no loss that has a name")
    name = _ALIASES.get(entry, entry)
    if name in ("ctc", "CTC"):
        how = 'loss="ctc", y=jax.ShapeDtypeStruct((1, LENGTH), "int32")'
        raise Unreadable(f"of CTC it does not say how long the labels are: name it, {how}")
    if name not in LOSSES:
        raise Unreadable(f"Pocketune has no loss {entry[:80]!r}")
    if name in _OVER_AXES and options.get("reduction") == "sum":
        raise Unreadable(f"{name} of reduction='sum' is not built: compile the loss with its mean")
    return name, options


def _options(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a loss that change what it is; those of no effect are gone."""
    options = {key: value for key, value in config.items() if key not in ("name", "dtype", "fn")}
    if (reduction := options.get("reduction", "mean")) not in (*_MEANS, "sum"):
        raise Unreadable(f"its reduction {str(reduction)[:40]!r} is neither a mean nor a sum")
    if _ALIASES.get(kind) not in _OVER_AXES and options.pop("axis", -1) != -1:
        raise Unreadable("it works along another axis than the last")
    if (ignored := options.pop("ignore_class", None)) is not None:
        options["ignore"] = ignored
    if kind == "Huber" and "delta" not in options:
        raise Unreadable("Keras does not store the delta of a Huber loss")
    if kind == "BinaryFocalCrossentropy" and options.pop("apply_class_balancing", False) is not True:
        options.pop("alpha", None)
    return options
