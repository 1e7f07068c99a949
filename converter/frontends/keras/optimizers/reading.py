"""Optimizer that a Keras model was compiled with, from its configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from converter.frontends.keras.compile_config import STEPS_DONE, UNDECAYED
from converter.frontends.keras.configuration import Numbers, Unreadable
from converter.frontends.keras.optimizers.averaging import accumulated, averaged
from converter.frontends.keras.optimizers.rules import Orthogonal, scale_by_adam, scale_by_adamax, scale_by_nadam
from converter.frontends.keras.optimizers.stepwise import STEPWISE, Stepwise
from converter.frontends.keras.schedules import Schedule, first_rate, schedule_of
from converter.training.optim.foreign import ForeignOptimizer

#: What stands in names of layers and means itself in a pattern.
_PLAIN = re.compile(r"[\w/ -]+")
#: Muon's polynomials that a step may take; the usual are 5.
_MOST_POLYNOMIALS = 20


def _clip_each(norm: float) -> optax.GradientTransformation:
    """Cut each gradient to a norm of its own."""

    def clipped(g: Any) -> Any:
        return g * norm / jnp.maximum(jnp.sqrt(jnp.sum(g * g)), norm)

    return optax.stateless(lambda gradients, params: jax.tree.map(clipped, gradients))


def _sgd(n: Numbers) -> optax.GradientTransformation:
    return optax.identity()


def _adam(n: Numbers) -> optax.GradientTransformation:
    return scale_by_adam(n("beta_1", 0.9), n("beta_2", 0.999), n("epsilon", 1e-7), n.flag("amsgrad"))


def _nadam(n: Numbers) -> optax.GradientTransformation:
    return scale_by_nadam(n("beta_1", 0.9), n("beta_2", 0.999), n("epsilon", 1e-7))


def _adamax(n: Numbers) -> optax.GradientTransformation:
    return scale_by_adamax(n("beta_1", 0.9), n("beta_2", 0.999), n("epsilon", 1e-7))


def _rmsprop(n: Numbers) -> optax.GradientTransformation:
    scale = optax.scale_by_stddev if n.flag("centered") else optax.scale_by_rms
    return scale(decay=n("rho", 0.9), eps=n("epsilon", 1e-7), eps_in_sqrt=True)


def _adagrad(n: Numbers) -> optax.GradientTransformation:
    return optax.scale_by_rss(n("initial_accumulator_value", 0.1), n("epsilon", 1e-7))


def _adadelta(n: Numbers) -> optax.GradientTransformation:
    return optax.scale_by_adadelta(n("rho", 0.95), n("epsilon", 1e-7))


def _lion(n: Numbers) -> optax.GradientTransformation:
    return optax.scale_by_lion(n("beta_1", 0.9), n("beta_2", 0.99))


def _muon(n: Numbers) -> optax.GradientTransformation:
    """Matrices by Muon, all else by Adam, each with a decay of its own."""
    names, steps = _words(n, "exclude_layers"), n("ns_steps", 5)
    embeddings = n.config.get("exclude_embeddings", True) is not False
    if steps not in range(_MOST_POLYNOMIALS + 1):
        raise Unreadable(f"its ns_steps are {steps:g}")

    def kind(path: Any, weight: Any) -> str:
        name = _name(path)
        excluded = (embeddings and "embedding" in name.lower()) or any(part in name for part in names)
        return "adam" if excluded or weight.ndim != 2 else "muon"

    def decayed(name: str) -> list[optax.GradientTransformation]:
        rate = 0.0 if n.config.get(name, 0) is None else n(name, 0.004)
        return [optax.add_decayed_weights(rate)] if rate else []

    factors = n("muon_a", 3.4445), n("muon_b", -4.775), n("muon_c", 2.0315)
    rms = None if n.config.get("rms_rate", 0) is None else n("rms_rate", 0.2)
    nesterov = n.config.get("nesterov", True) is not False
    muon = Orthogonal(n("momentum", 0.95), nesterov, int(steps), factors, rms).transformation()
    adam = scale_by_adam(n("adam_beta_1", 0.9), n("adam_beta_2", 0.999), n("epsilon", 1e-7))
    rules = {
        "muon": optax.chain(muon, *decayed("weight_decay")),
        "adam": optax.chain(adam, optax.scale(n("adam_lr_ratio", 1)), *decayed("adam_weight_decay")),
    }
    return optax.multi_transform(rules, lambda weights: jax.tree_util.tree_map_with_path(kind, weights))


def _name(path: Any) -> str:
    """Return a parameter's name, of its place in the tree."""
    return "/".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)


def _momentum(n: Numbers) -> list[optax.GradientTransformation]:
    """Of steps, each at the rate at which it was taken."""
    momentum = n("momentum", 0)
    return [optax.trace(momentum, nesterov=n.flag("nesterov"))] if momentum else []


def _decayed(rate: float, undecayed: list[str], schedule: Schedule | None) -> list[optax.GradientTransformation]:
    """Weight decay of all parameters but those of these names."""

    def mask(weights: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: _name(path) not in undecayed, weights)

    decay = rate if schedule is None else lambda count: rate * schedule(count)
    return [optax.add_decayed_weights(decay, mask if undecayed else None)] if rate else []


def _words(n: Numbers, name: str) -> list[str]:
    """Patterns of names that are plain parts of names; a pattern of a stranger's may take for ever."""
    found = n.config.get(name) or []
    if not isinstance(found, list) or not all(isinstance(word, str) and _PLAIN.fullmatch(word) for word in found):
        raise Unreadable(f"its {name} are patterns that are no plain parts of names: {str(found)[:80]}")
    return list(found)


#: Optimizers whose arithmetic optax has, or `rules`; decay of the weights where the configuration has none,
#: None where the optimizer sees to it.
_OPTIMIZERS: dict[str, tuple[Callable[[Numbers], optax.GradientTransformation], float | None]] = {
    "SGD": (_sgd, 0.0),
    "Adam": (_adam, 0.0),
    "AdamW": (_adam, 0.004),
    "Nadam": (_nadam, 0.0),
    "Adamax": (_adamax, 0.0),
    "RMSprop": (_rmsprop, 0.0),
    "Adagrad": (_adagrad, 0.0),
    "Adadelta": (_adadelta, 0.0),
    "Lion": (_lion, 0.0),
    "Muon": (_muon, None),
}
#: The learning rates where none is named, as Keras has them.
_RATES, _USUAL_RATE = {"SGD": 0.01, "ScheduleFreeAdamW": 0.0025}, 0.001
#: Those whose momentum is that of steps, not of gradients: another thing where the rate changes.
_OF_STEPS = ("SGD", "RMSprop")


def read_optimizer(entry: Any) -> ForeignOptimizer:
    """Return the optimizer that a configuration describes.

    Raises:
        Unreadable: it is none of Keras', or nothing here does what it does.
    """
    if isinstance(entry, str):
        known = {name.lower(): name for name in (*_OPTIMIZERS, *STEPWISE)}
        entry = {"class_name": known.get(entry.lower(), entry), "config": {}, "module": "keras.optimizers"}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("config"), Mapping):
        raise Unreadable("the compiled optimizer cannot be read")
    kind, config = str(entry.get("class_name"))[:80], entry["config"]
    if entry.get("module") != "keras.optimizers":
        raise Unreadable(f"{kind} is not one of Keras")
    if kind == "LossScaleOptimizer":
        return read_optimizer(config.get("inner_optimizer"))
    if kind not in _OPTIMIZERS and kind not in STEPWISE:
        raise Unreadable(f"nothing here does the arithmetic of Keras' {kind}")
    n = Numbers(config)
    left_out: list[str] = []
    named = config.get(UNDECAYED)
    undecayed = [str(name) for name in named] if isinstance(named, list) else []
    try:
        schedule, rate = _rate(kind, n, left_out)
        steps = _whole(n, "gradient_accumulation_steps")
        if schedule is not None and steps > 1:
            schedule = _at_updates(schedule, steps)
        if kind in STEPWISE:
            decay = n("weight_decay", 0)
            update, rate = _at_its_rate(STEPWISE[kind](n), schedule, rate, decay)
        else:
            make, usual_decay = _OPTIMIZERS[kind]
            decay = 0.0 if usual_decay is None else n("weight_decay", usual_decay)
            at_rate = [] if schedule is None else [optax.scale_by_schedule(schedule)]
            moving = _momentum(n) if kind in _OF_STEPS else []
            decays = _decayed(decay, undecayed, schedule)
            update = optax.chain(make(n), *at_rate, *moving, *decays, optax.scale(-1.0))
        optimizer: Any = optax.chain(*_clipping(n), update)
        if steps > 1:
            optimizer = accumulated(optimizer, steps)
        if n.flag("use_ema") and (every := _whole(n, "ema_overwrite_frequency", 0)):
            optimizer = averaged(optimizer, n("ema_momentum", 0.99), every, steps)
        elif n.flag("use_ema"):
            left_out.append(
                "use_ema: Keras takes the average for the weights when `fit` ends, and a training on a device goes on; "
                "compile with ema_overwrite_frequency=N, and the average replaces the weights in each Nth step"
            )
    except Unreadable as reason:
        raise Unreadable(f"{kind}: {reason}") from None
    if undecayed and (kind == "Muon" or (kind in STEPWISE and decay)):
        left_out.append(f"exclude_from_weight_decay: here these decay as well: {', '.join(undecayed)}")
    if (done := n(STEPS_DONE, 0)) > 0:
        left_out.append(f"what it keeps after {done:g} steps of training in Keras: it begins anew")
    return ForeignOptimizer(optimizer, f"{kind} of Keras", rate, left_out, _kept(n, schedule))


#: Settings of any optimizer that a note names, where they are set.
_SETTINGS = (
    *("momentum", "nesterov", "weight_decay", "amsgrad", "centered", "clipnorm", "global_clipnorm", "clipvalue"),
    "gradient_accumulation_steps",
)


def _kept(n: Numbers, schedule: Schedule | None) -> list[str]:
    """Return the settings of a configuration that was read, in words."""
    entry, kept = n.config.get("learning_rate"), []
    if schedule is not None and isinstance(entry, Mapping):
        options = {k: v for k, v in entry["config"].items() if isinstance(v, int | float) and not isinstance(v, bool)}
        kept.append(f"{entry.get('class_name')}({', '.join(f'{k}={v:g}' for k, v in options.items())})")
    for name in _SETTINGS:
        value = n.config.get(name)
        if value and isinstance(value, int | float):  # others are no settings of this optimizer's
            words = name.replace("_", " ")
            kept.append(words if value is True else f"{words} {value:g}")
    if n.flag("use_ema") and n.flag("ema_overwrite_frequency"):
        kept.append(
            f"the average of the weights ({n('ema_momentum', 0.99):g}) in each "
            f"{n('ema_overwrite_frequency', 1):g}th step"
        )
    return kept


def _rate(kind: str, n: Numbers, left_out: list[str]) -> tuple[Schedule | None, float | None]:
    """Return the schedule of the learning rate, or else the rate; Keras' own where none is named."""
    entry, usual = n.config.get("learning_rate"), _RATES.get(kind, _USUAL_RATE)
    if not isinstance(entry, Mapping):
        return None, n("learning_rate", usual)
    try:
        return schedule_of(entry), None
    except Unreadable as reason:
        rate = first_rate(entry)
        instead = f"the rate is {usual:g}" if rate is None else f"its first rate, {rate:g}, is the rate"
        rate = usual if rate is None else rate
        left_out.append(f"the schedule {str(entry.get('class_name'))[:80]} ({reason}): {instead}")
        return None, rate


def _at_updates(schedule: Schedule, steps: int) -> Schedule:
    """Return the schedule by the number of updates, each of so many steps: Keras asks it in the last of these."""
    return lambda updates: schedule(updates * steps + (steps - 1))


def _whole(n: Numbers, name: str, default: int = 1) -> int:
    """Return a positive whole number, or the default where there is none. Raises Unreadable."""
    number = n(name, default) if n.flag(name) else default
    if number != int(number) or number < default:
        raise Unreadable(f"its {name} is {number:g}")
    return int(number)


def _at_its_rate(
    rule: Stepwise, schedule: Schedule | None, rate: float | None, decay: float
) -> tuple[optax.GradientTransformation, float | None]:
    """Return the transformation, and the learning rate; None where it is not a factor, and runs in the program."""
    if schedule is not None:
        return rule.at(schedule, decay), None
    if rule.proportional and not decay:
        return rule.at(lambda count: 1.0, 0.0), rate
    return rule.at(lambda count: rate, decay), None


def _clipping(n: Numbers) -> list[optax.GradientTransformation]:
    """At most one, as Keras chooses."""
    if (norm := n("clipnorm", 0)) > 0:
        return [_clip_each(norm)]
    if (norm := n("global_clipnorm", 0)) > 0:
        return [optax.clip_by_global_norm(norm)]
    if (value := n("clipvalue", 0)) > 0:
        return [optax.clip(value)]
    return []
