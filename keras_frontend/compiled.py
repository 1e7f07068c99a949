"""The loss and the optimizer that a Keras model was compiled with, from its configuration: read, never executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import jax
import jax.numpy as jnp
import optax

from converter.losses import LOSSES, JointLoss, Loss, named_loss
from converter.notes import Note

#: Other names of the losses; those of the classes are their CamelCase.
_ALIASES = {
    "mean_squared_error": "mse",
    "MeanSquaredError": "mse",
    "mean_absolute_error": "mae",
    "MeanAbsoluteError": "mae",
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
}
#: Of a loss' configuration: means over all that there is, as here.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@dataclass(frozen=True)
class Compiled:
    """What the model's author trained it with: the defaults where the person names nothing.

    Attributes:
        loss: None where there was none, or it cannot be taken over.
        problem: why it cannot.
        optimizer: an optax transformation for a learning rate of 1; None where it cannot be taken over.
        optimizer_name: what it is called.
        learning_rate: its own; None where that is not one number.
        notes: what of it is not used.
    """

    loss: Loss | JointLoss | None
    problem: str | None
    optimizer: Any
    optimizer_name: str
    learning_rate: float | None
    notes: Sequence[Note] = ()


class _Unreadable(Exception):
    """Why a configuration cannot be taken over."""


def read_compiled(config: Mapping[str, Any] | None, outputs: Sequence[str] = ("output",)) -> Compiled | None:
    """What `model.compile` was given, from `model.get_compile_config()` or a `.keras` file; None for none at all.

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
    except _Unreadable as reason:
        problem = str(reason)
    optimizer, name, rate = None, "", None
    try:
        optimizer, name, rate, why = _optimizer(config.get("optimizer"))
        notes += [Note("optimizer", "left out", text) for text in why]
    except _Unreadable as reason:
        notes.append(Note("optimizer", "not used", f"{reason}; name one that fits"))
    if config.get("metrics") not in (None, [], ["accuracy"], ["acc"]) or config.get("weighted_metrics"):
        text = "`evaluate` gives the loss, and the accuracy of classifiers; name others there, metrics=[...]"
        notes.append(Note("metrics", "left out", f"the compiled metrics are not computed: {text}"))
    return Compiled(loss, problem, optimizer, name, rate, tuple(notes))


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
            raise _Unreadable("its loss_weights are no numbers")
        return JointLoss({name: _one_loss(one) for name, one in each.items() if one is not None}, factors)
    if weights is not None:
        raise _Unreadable("it has a weight for its only loss (loss_weights)")
    if _is_several(entry):
        if len(entry) != 1:
            raise _Unreadable("it has a loss for each output, and the model has one output")
        (entry,) = entry.values() if isinstance(entry, Mapping) else entry
    return _one_loss(entry)


def _is_several(entry: Any) -> bool:
    return isinstance(entry, list) or (isinstance(entry, Mapping) and "class_name" not in entry)


def _by_output(what: str, given: Any, outputs: Sequence[str]) -> dict[str, Any]:
    """What was given for the outputs, by name, in their order."""
    if isinstance(given, Mapping) and given.keys() <= set(outputs):
        return {name: given[name] for name in outputs if name in given}
    if isinstance(given, list) and len(given) == len(outputs):
        return dict(zip(outputs, given, strict=True))
    raise _Unreadable(f"its {what} is not by the outputs {', '.join(outputs)}")


def _one_loss(entry: Any) -> Loss:
    name, options = _named(entry)
    link = named_loss(name).link
    from_logits = options.pop("from_logits", False)
    if not isinstance(from_logits, bool):
        raise _Unreadable(f"from_logits is {from_logits!r}")
    try:
        return replace(named_loss(name, **options), needs_link=link is not None and not from_logits)
    except Exception as error:
        raise _Unreadable(str(error)) from None


def _named(entry: Any) -> tuple[str, dict[str, Any]]:
    """Our name of a loss, and its options."""
    options: dict[str, Any] = {}
    if isinstance(entry, Mapping) and entry.get("class_name") == "function":
        if entry.get("module") not in ("builtins", "keras.losses") or entry.get("registered_name") not in (
            *("function", None),
            entry.get("config"),
        ):
            raise _Unreadable(f"{str(entry.get('config'))[:80]} is a function of its author's")
        entry = entry.get("config")
    elif isinstance(entry, Mapping):
        kind, inner = entry.get("class_name"), entry.get("config")
        if entry.get("module") != "keras.losses" or not isinstance(kind, str) or not isinstance(inner, Mapping):
            raise _Unreadable(f"{str(kind)[:80]} is not a loss of Keras")
        options, entry = _options(kind, inner), kind
    if not isinstance(entry, str):
        raise _Unreadable("it is no loss that has a name")
    name = _ALIASES.get(entry, entry)
    if name not in LOSSES:
        raise _Unreadable(f"Pocketune has no loss {entry[:80]!r}")
    if name == "hinge":
        raise _Unreadable("hinge of Keras guesses from each batch whether labels are 0 or 1; here they are -1 or 1")
    return name, options


def _options(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a loss that change what it is; those of no effect are gone."""
    options = {key: value for key, value in config.items() if key not in ("name", "dtype", "fn")}
    if (reduction := options.pop("reduction", "mean")) not in _MEANS:
        raise _Unreadable(f"its reduction {str(reduction)[:40]!r} is no mean")
    if options.pop("axis", -1) != -1:
        raise _Unreadable("it works along another axis than the last")
    if options.pop("ignore_class", None) is not None:
        raise _Unreadable("it ignores a class (ignore_class)")
    if kind == "Huber" and "delta" not in options:
        raise _Unreadable("Keras does not store the delta of a Huber loss")
    if kind == "BinaryFocalCrossentropy" and options.pop("apply_class_balancing", False) is not True:
        options.pop("alpha", None)
    return options


# -- optimizers --------------------------------------------------------------------------------------------------------


def _scale_by_adam(b1: float, b2: float, epsilon: float) -> optax.GradientTransformation:
    """Adam as Keras writes it: epsilon is added before the second moment is corrected, not after as in optax."""

    def init(params: Any) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros([], jnp.int32), zeros, zeros)

    def update(gradients: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: m + (1 - b1) * (g - m), state.mu, gradients)
        nu = jax.tree.map(lambda v, g: v + (1 - b2) * (g * g - v), state.nu, gradients)
        alpha = jnp.sqrt(1 - b2**count) / (1 - b1**count)
        updates = jax.tree.map(lambda m, v: m * alpha / (jnp.sqrt(v) + epsilon), mu, nu)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def _clip_each(norm: float) -> optax.GradientTransformation:
    """Each gradient cut to a norm of its own."""

    def clipped(g: Any) -> Any:
        return g * norm / jnp.maximum(jnp.sqrt(jnp.sum(g * g)), norm)

    return optax.stateless(lambda gradients, params: jax.tree.map(clipped, gradients))


class _Numbers:
    """The numbers and flags of an optimizer's configuration."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def __call__(self, name: str, default: float) -> float:
        value = self.config.get(name, default)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise _Unreadable(f"its {name} is {str(value)[:40]!r}")
        return float(value)

    def flag(self, name: str) -> bool:
        return self.config.get(name) not in (None, False)


def _sgd(n: _Numbers) -> optax.GradientTransformation:
    momentum = n("momentum", 0)
    return optax.trace(momentum, nesterov=n.flag("nesterov")) if momentum else optax.identity()


def _adam(n: _Numbers) -> optax.GradientTransformation:
    if n.flag("amsgrad"):
        raise _Unreadable("optax' AMSGrad does other arithmetic than that of Keras")
    return _scale_by_adam(n("beta_1", 0.9), n("beta_2", 0.999), n("epsilon", 1e-7))


def _rmsprop(n: _Numbers) -> optax.GradientTransformation:
    decay, epsilon, momentum = n("rho", 0.9), n("epsilon", 1e-7), n("momentum", 0)
    scale = optax.scale_by_stddev if n.flag("centered") else optax.scale_by_rms
    scaled = scale(decay=decay, eps=epsilon, eps_in_sqrt=True)
    return optax.chain(scaled, optax.trace(momentum)) if momentum else scaled


def _adagrad(n: _Numbers) -> optax.GradientTransformation:
    return optax.scale_by_rss(n("initial_accumulator_value", 0.1), n("epsilon", 1e-7))


def _adadelta(n: _Numbers) -> optax.GradientTransformation:
    return optax.scale_by_adadelta(n("rho", 0.95), n("epsilon", 1e-7))


def _lion(n: _Numbers) -> optax.GradientTransformation:
    return optax.scale_by_lion(n("beta_1", 0.9), n("beta_2", 0.99))


#: Optimizers whose arithmetic optax has, or that stand above; decay of the weights where the configuration has none.
_OPTIMIZERS: dict[str, tuple[Callable[[_Numbers], optax.GradientTransformation], float]] = {
    "SGD": (_sgd, 0.0),
    "Adam": (_adam, 0.0),
    "AdamW": (_adam, 0.004),
    "RMSprop": (_rmsprop, 0.0),
    "Adagrad": (_adagrad, 0.0),
    "Adadelta": (_adadelta, 0.0),
    "Lion": (_lion, 0.0),
}


def _optimizer(entry: Any) -> tuple[optax.GradientTransformation, str, float | None, list[str]]:
    """The transformation for a learning rate of 1, its name, its own rate, and what of it is left out."""
    if isinstance(entry, str):
        known = {name.lower(): name for name in _OPTIMIZERS}
        entry = {"class_name": known.get(entry.lower(), entry), "config": {}, "module": "keras.optimizers"}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("config"), Mapping):
        raise _Unreadable("the compiled optimizer cannot be read")
    kind, config = str(entry.get("class_name"))[:80], entry["config"]
    if entry.get("module") != "keras.optimizers":
        raise _Unreadable(f"the compiled optimizer {kind} is not one of Keras")
    if kind == "LossScaleOptimizer":
        return _optimizer(config.get("inner_optimizer"))
    if kind not in _OPTIMIZERS:
        raise _Unreadable(f"optax has no optimizer that does the arithmetic of Keras' {kind}")
    make, usual_decay = _OPTIMIZERS[kind]
    n = _Numbers(config)
    try:
        steps = [*_clipping(n), make(n)]
    except _Unreadable as reason:
        raise _Unreadable(f"the compiled optimizer {kind} cannot be taken over: {reason}") from None
    if decay := n("weight_decay", usual_decay):
        steps.append(optax.add_decayed_weights(decay))
    left_out = []
    rate = None
    if isinstance(schedule := config.get("learning_rate"), Mapping):
        left_out.append(f"the schedule {str(schedule.get('class_name'))[:80]}: each step takes its `learning_rate`")
    elif schedule is not None:
        rate = n("learning_rate", 0) or None
    if n.flag("use_ema"):
        left_out.append("the moving average of the weights (use_ema)")
    if n.flag("gradient_accumulation_steps"):
        left_out.append("gradient_accumulation_steps: build with a larger batch, and micro_batch for its memory")
    return optax.chain(*steps, optax.scale(-1.0)), f"{kind} of Keras", rate, left_out


def _clipping(n: _Numbers) -> list[optax.GradientTransformation]:
    """At most one, as Keras chooses."""
    if (norm := n("clipnorm", 0)) > 0:
        return [_clip_each(norm)]
    if (norm := n("global_clipnorm", 0)) > 0:
        return [optax.clip_by_global_norm(norm)]
    if (value := n("clipvalue", 0)) > 0:
        return [optax.clip(value)]
    return []
