"""The optimizer that a Keras model was compiled with, from its configuration, in Keras' own arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from keras_frontend.compile_config import STEPS_DONE, UNDECAYED
from keras_frontend.configuration import Numbers, Unreadable
from keras_frontend.schedules import first_rate, schedule_of


def _zero_moments(params: Any) -> optax.ScaleByAdamState:
    """Two moments of each gradient, of no step yet."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return optax.ScaleByAdamState(jnp.zeros([], jnp.int32), zeros, zeros)


def _scale_by_adam(b1: float, b2: float, epsilon: float) -> optax.GradientTransformation:
    """Adam as Keras writes it: epsilon is added before the second moment is corrected, not after as in optax."""

    def update(gradients: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: m + (1 - b1) * (g - m), state.mu, gradients)
        nu = jax.tree.map(lambda v, g: v + (1 - b2) * (g * g - v), state.nu, gradients)
        alpha = jnp.sqrt(1 - b2**count) / (1 - b1**count)
        updates = jax.tree.map(lambda m, v: m * alpha / (jnp.sqrt(v) + epsilon), mu, nu)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(_zero_moments, update)


class _NadamState(NamedTuple):
    count: Any
    product: Any
    mu: Any
    nu: Any


def _scale_by_nadam(b1: float, b2: float, epsilon: float) -> optax.GradientTransformation:
    """Nadam as Keras writes it: its momentum warms up, which that of optax does not."""

    def momentum(step: Any) -> Any:
        return b1 * (1 - 0.5 * jnp.power(jnp.float32(0.96), step.astype(jnp.float32)))

    def init(params: Any) -> _NadamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return _NadamState(jnp.zeros([], jnp.int32), jnp.ones([]), zeros, zeros)

    def update(gradients: Any, state: _NadamState, params: Any = None) -> tuple[Any, _NadamState]:
        count = state.count + 1
        now, then = momentum(count), momentum(count + 1)
        product = state.product * now
        mu = jax.tree.map(lambda m, g: m + (1 - b1) * (g - m), state.mu, gradients)
        nu = jax.tree.map(lambda v, g: v + (1 - b2) * (g * g - v), state.nu, gradients)
        ahead, here, spread = then / (1 - product * then), (1 - now) / (1 - product), 1 / (1 - b2**count)
        updates = jax.tree.map(
            lambda m, v, g: (m * ahead + g * here) / (jnp.sqrt(v * spread) + epsilon), mu, nu, gradients
        )
        return updates, _NadamState(count, product, mu, nu)

    return optax.GradientTransformation(init, update)


def _scale_by_adamax(b1: float, b2: float, epsilon: float) -> optax.GradientTransformation:
    """Adamax as Keras writes it: epsilon is added to the norm, not to the gradient as in optax."""

    def update(gradients: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: m + (1 - b1) * (g - m), state.mu, gradients)
        nu = jax.tree.map(lambda u, g: jnp.maximum(b2 * u, jnp.abs(g)), state.nu, gradients)
        updates = jax.tree.map(lambda m, u: m / (1 - b1**count) / (u + epsilon), mu, nu)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(_zero_moments, update)


def _clip_each(norm: float) -> optax.GradientTransformation:
    """Each gradient cut to a norm of its own."""

    def clipped(g: Any) -> Any:
        return g * norm / jnp.maximum(jnp.sqrt(jnp.sum(g * g)), norm)

    return optax.stateless(lambda gradients, params: jax.tree.map(clipped, gradients))


def _sgd(n: Numbers) -> optax.GradientTransformation:
    momentum = n("momentum", 0)
    return optax.trace(momentum, nesterov=n.flag("nesterov")) if momentum else optax.identity()


def _adam(n: Numbers) -> optax.GradientTransformation:
    if n.flag("amsgrad"):
        raise Unreadable("optax' AMSGrad does other arithmetic than that of Keras")
    return _scale_by_adam(n("beta_1", 0.9), n("beta_2", 0.999), n("epsilon", 1e-7))


def _nadam(n: Numbers) -> optax.GradientTransformation:
    return _scale_by_nadam(n("beta_1", 0.9), n("beta_2", 0.999), n("epsilon", 1e-7))


def _adamax(n: Numbers) -> optax.GradientTransformation:
    return _scale_by_adamax(n("beta_1", 0.9), n("beta_2", 0.999), n("epsilon", 1e-7))


def _rmsprop(n: Numbers) -> optax.GradientTransformation:
    decay, epsilon, momentum = n("rho", 0.9), n("epsilon", 1e-7), n("momentum", 0)
    scale = optax.scale_by_stddev if n.flag("centered") else optax.scale_by_rms
    scaled = scale(decay=decay, eps=epsilon, eps_in_sqrt=True)
    return optax.chain(scaled, optax.trace(momentum)) if momentum else scaled


def _adagrad(n: Numbers) -> optax.GradientTransformation:
    return optax.scale_by_rss(n("initial_accumulator_value", 0.1), n("epsilon", 1e-7))


def _adadelta(n: Numbers) -> optax.GradientTransformation:
    return optax.scale_by_adadelta(n("rho", 0.95), n("epsilon", 1e-7))


def _lion(n: Numbers) -> optax.GradientTransformation:
    return optax.scale_by_lion(n("beta_1", 0.9), n("beta_2", 0.99))


#: Optimizers whose arithmetic optax has, or that stand above; decay of the weights where the configuration has none.
_OPTIMIZERS: dict[str, tuple[Callable[[Numbers], optax.GradientTransformation], float]] = {
    "SGD": (_sgd, 0.0),
    "Adam": (_adam, 0.0),
    "AdamW": (_adam, 0.004),
    "Nadam": (_nadam, 0.0),
    "Adamax": (_adamax, 0.0),
    "RMSprop": (_rmsprop, 0.0),
    "Adagrad": (_adagrad, 0.0),
    "Adadelta": (_adadelta, 0.0),
    "Lion": (_lion, 0.0),
}


class Read(NamedTuple):
    """A compiled optimizer.

    Attributes:
        optimizer: for a learning rate of 1.
        name: what it is called.
        learning_rate: its own; 1 for a schedule, which runs in the program; None where there is none.
        left_out: what of it is not used.
    """

    optimizer: optax.GradientTransformation
    name: str
    learning_rate: float | None
    left_out: list[str]


def read_optimizer(entry: Any) -> Read:
    """The optimizer that a configuration describes.

    Raises:
        Unreadable: it is none of Keras', or does what optax does not.
    """
    if isinstance(entry, str):
        known = {name.lower(): name for name in _OPTIMIZERS}
        entry = {"class_name": known.get(entry.lower(), entry), "config": {}, "module": "keras.optimizers"}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("config"), Mapping):
        raise Unreadable("the compiled optimizer cannot be read")
    kind, config = str(entry.get("class_name"))[:80], entry["config"]
    if entry.get("module") != "keras.optimizers":
        raise Unreadable(f"{kind} is not one of Keras")
    if kind == "LossScaleOptimizer":
        return read_optimizer(config.get("inner_optimizer"))
    if kind not in _OPTIMIZERS:
        raise Unreadable(f"nothing here does the arithmetic of Keras' {kind}")
    make, usual_decay = _OPTIMIZERS[kind]
    n = Numbers(config)
    try:
        steps = [*_clipping(n), make(n)]
        if decay := n("weight_decay", usual_decay):
            steps.append(optax.add_decayed_weights(decay))
        left_out: list[str] = []
        schedule = config.get("learning_rate")
        if isinstance(schedule, Mapping):
            scale, rate = _scheduled(schedule, left_out)
        else:
            scale, rate = optax.scale(-1.0), None if schedule is None else n("learning_rate", 0) or None
    except Unreadable as reason:
        raise Unreadable(f"{kind}: {reason}") from None
    if decay and (undecayed := config.get(UNDECAYED)):
        left_out.append(f"exclude_from_weight_decay: here these decay as well: {', '.join(map(str, undecayed))}")
    if (done := n(STEPS_DONE, 0)) > 0:
        left_out.append(f"what it keeps after {done:g} steps of training in Keras: it begins anew")
    if n.flag("use_ema"):
        left_out.append("the moving average of the weights (use_ema)")
    if n.flag("gradient_accumulation_steps"):
        left_out.append("gradient_accumulation_steps: build with a larger batch, and micro_batch for its memory")
    return Read(optax.chain(*steps, scale), f"{kind} of Keras", rate, left_out)


def _scheduled(entry: Mapping[str, Any], left_out: list[str]) -> tuple[optax.GradientTransformation, float | None]:
    """The last step of an update whose rate follows a schedule, and the learning rate of the program."""
    try:
        schedule = schedule_of(entry)
    except Unreadable as reason:
        rate = first_rate(entry)
        instead = "name a learning rate in each step" if rate is None else f"its first rate, {rate:g}, is the default"
        left_out.append(f"the schedule {str(entry.get('class_name'))[:80]} ({reason}): {instead}")
        return optax.scale(-1.0), rate
    return optax.scale_by_schedule(lambda count: -schedule(count)), 1.0


def _clipping(n: Numbers) -> list[optax.GradientTransformation]:
    """At most one, as Keras chooses."""
    if (norm := n("clipnorm", 0)) > 0:
        return [_clip_each(norm)]
    if (norm := n("global_clipnorm", 0)) > 0:
        return [optax.clip_by_global_norm(norm)]
    if (value := n("clipvalue", 0)) > 0:
        return [optax.clip(value)]
    return []
