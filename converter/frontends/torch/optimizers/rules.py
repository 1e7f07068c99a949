"""Update rules of `torch.optim` for a learning rate of 1, in PyTorch's own arithmetic: the subtracted value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log
from typing import Any, NamedTuple

import jax.numpy as jnp

from converter.frontends.torch.optimizers.settings import Settings

#: What is kept of a parameter's past, by name.
Slots = dict[str, Any]
#: The slots that are one number for each weight, not one for each of its elements.
OF_ONE_NUMBER = ("mu_product",)


class Count:
    """The number of a step, 1, 2, ..., and what is made of it alone, once for all weights.

    Args:
        before: the number of steps before it.

    Attributes:
        number: in float32.
    """

    def __init__(self, before: Any) -> None:
        self.number = jnp.asarray(before, jnp.float32) + 1
        self._made: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what is made under a key, the first time or before."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def powered(self, base: float) -> Any:
        """Return base^number."""
        return self.once(("powered", base), lambda: jnp.power(jnp.float32(base), self.number))

    def risen(self, base: float) -> Any:
        """Return 1 - base^number, which for a base near 1 a difference would round away."""
        return self.once(("risen", base), lambda: -jnp.expm1(self.number * log(base)) if base else jnp.float32(1))


class Rule(NamedTuple):
    """An update rule.

    Attributes:
        slots: what it keeps of a weight's past, from the settings of its group: the first value by name.
        step: from gradient, weight, slots, the number of the step and the settings, what is subtracted at a
            rate of 1, and the next slots.
        decoupled: whether weight decay shrinks the weight itself; a name: where that setting says so.
    """

    slots: Callable[[Settings], Mapping[str, float]]
    step: Callable[[Any, Any, Slots, Count, Settings], tuple[Any, Slots]]
    decoupled: bool | str = False


def _sgd_slots(s: Settings) -> Mapping[str, float]:
    return {"momentum_buffer": 0.0} if s.number("momentum") else {}


def _sgd(g: Any, w: Any, slots: Slots, count: Count, s: Settings) -> tuple[Any, Slots]:
    momentum, dampening = s.number("momentum"), s.number("dampening")
    if not momentum:
        return g, {}
    buffer = momentum * slots["momentum_buffer"] + (1 - dampening) * g
    if dampening:
        buffer = jnp.where(count.once("first", lambda: count.number == 1), g, buffer)
    return (g + momentum * buffer if s.flag("nesterov") else buffer), {"momentum_buffer": buffer}


def _moments(g: Any, slots: Slots, s: Settings) -> tuple[Any, Any, float, float]:
    b1, b2 = s.pair("betas")
    mean = slots["exp_avg"] + (g - slots["exp_avg"]) * (1 - b1)
    return mean, b2 * slots["exp_avg_sq"] + (1 - b2) * (g * g), b1, b2


def _adam_slots(s: Settings) -> Mapping[str, float]:
    return {"exp_avg": 0.0, "exp_avg_sq": 0.0, **({"max_exp_avg_sq": 0.0} if s.flag("amsgrad") else {})}


def _adam(g: Any, w: Any, slots: Slots, count: Count, s: Settings) -> tuple[Any, Slots]:
    mean, square, b1, b2 = _moments(g, slots, s)
    kept = {"exp_avg": mean, "exp_avg_sq": square}
    if s.flag("amsgrad"):
        square = kept["max_exp_avg_sq"] = jnp.maximum(slots["max_exp_avg_sq"], square)
    epsilon = s.number("eps")
    factor, least = count.once(
        ("adam", b1, b2, epsilon),
        lambda: (count.risen(b1) / jnp.sqrt(count.risen(b2)), count.risen(b1) * jnp.float32(epsilon)),
    )
    return mean / (jnp.sqrt(square) * factor + least), kept


def _two_moments(s: Settings) -> Mapping[str, float]:
    return {"exp_avg": 0.0, "exp_avg_sq": 0.0}


def _nadam_slots(s: Settings) -> Mapping[str, float]:
    return {"exp_avg": 0.0, "exp_avg_sq": 0.0, "mu_product": 1.0}


def _nesterov(b1: float, count: Count, s: Settings) -> list[Any]:
    """Return the momentum of a step and that of the next."""
    places = [(count.number + later) * s.number("momentum_decay") for later in (0, 1)]
    return [b1 * (1 - 0.5 * jnp.power(jnp.float32(0.96), place)) for place in places]


def _nadam(g: Any, w: Any, slots: Slots, count: Count, s: Settings) -> tuple[Any, Slots]:
    mean, square, b1, b2 = _moments(g, slots, s)
    now, then = count.once(("nadam", b1, s.number("momentum_decay")), lambda: _nesterov(b1, count, s))
    product = slots["mu_product"] * now
    root = jnp.sqrt(square / count.risen(b2)) + s.number("eps")
    step = g / root * ((1 - now) / (1 - product)) + mean / root * (then / (1 - product * then))
    return step, {"exp_avg": mean, "exp_avg_sq": square, "mu_product": product}


def _rectified(b2: float, count: Count) -> tuple[Any, Any]:
    """Return the factor of an adaptive step, and whether a step is one."""
    longest = 2 / (1 - b2) - 1
    length = longest - 2 * count.number * count.powered(b2) / count.risen(b2)
    long = jnp.maximum(length, 5.0)  # of shorter ones the root is of no use
    size = (long - 4) * (long - 2) * longest / ((longest - 4) * (longest - 2) * long)
    return jnp.sqrt(size) * jnp.sqrt(count.risen(b2)), length > 5.0


def _radam(g: Any, w: Any, slots: Slots, count: Count, s: Settings) -> tuple[Any, Slots]:
    mean, square, b1, b2 = _moments(g, slots, s)
    size, is_long = count.once(("radam", b2), lambda: _rectified(b2, count))
    adaptive = size / (jnp.sqrt(square) + s.number("eps"))
    step = mean / count.risen(b1) * jnp.where(is_long, adaptive, 1.0)
    return step, {"exp_avg": mean, "exp_avg_sq": square}


def _adamax_slots(s: Settings) -> Mapping[str, float]:
    return {"exp_avg": 0.0, "exp_inf": 0.0}


def _adamax(g: Any, w: Any, slots: Slots, count: Count, s: Settings) -> tuple[Any, Slots]:
    b1, b2 = s.pair("betas")
    mean = slots["exp_avg"] + (g - slots["exp_avg"]) * (1 - b1)
    norm = jnp.maximum(b2 * slots["exp_inf"], jnp.abs(g) + s.number("eps"))
    return mean / (count.risen(b1) * norm), {"exp_avg": mean, "exp_inf": norm}


def _rmsprop_slots(s: Settings) -> Mapping[str, float]:
    slots = {"square_avg": 0.0}
    if s.flag("centered"):
        slots["grad_avg"] = 0.0
    if s.number("momentum"):
        slots["momentum_buffer"] = 0.0
    return slots


def _rmsprop(g: Any, w: Any, slots: Slots, count: Count, s: Settings) -> tuple[Any, Slots]:
    alpha, momentum = s.number("alpha"), s.number("momentum")
    square = alpha * slots["square_avg"] + (1 - alpha) * (g * g)
    kept, spread = {"square_avg": square}, square
    if s.flag("centered"):
        mean = kept["grad_avg"] = slots["grad_avg"] + (g - slots["grad_avg"]) * (1 - alpha)
        spread = square - mean * mean
    step = g / (jnp.sqrt(spread) + s.number("eps"))
    if momentum:
        step = kept["momentum_buffer"] = momentum * slots["momentum_buffer"] + step
    return step, kept


def _adagrad_slots(s: Settings) -> Mapping[str, float]:
    return {"sum": s.number("initial_accumulator_value")}


def _adagrad(g: Any, w: Any, slots: Slots, count: Count, s: Settings) -> tuple[Any, Slots]:
    total = slots["sum"] + g * g
    step = g / (jnp.sqrt(total) + s.number("eps"))
    if decay := s.number("lr_decay"):
        step = step / count.once(("adagrad", decay), lambda: 1 + (count.number - 1) * decay)
    return step, {"sum": total}


def _adadelta_slots(s: Settings) -> Mapping[str, float]:
    return {"square_avg": 0.0, "acc_delta": 0.0}


def _adadelta(g: Any, w: Any, slots: Slots, count: Count, s: Settings) -> tuple[Any, Slots]:
    rho, epsilon = s.number("rho"), s.number("eps")
    square = rho * slots["square_avg"] + (1 - rho) * (g * g)
    step = jnp.sqrt(slots["acc_delta"] + epsilon) / jnp.sqrt(square + epsilon) * g
    return step, {"square_avg": square, "acc_delta": rho * slots["acc_delta"] + (1 - rho) * (step * step)}


#: By the name of the class. In all of them the learning rate is a factor of what is subtracted.
RULES: dict[str, Rule] = {
    "SGD": Rule(_sgd_slots, _sgd),
    "Adam": Rule(_adam_slots, _adam, "decoupled_weight_decay"),
    "AdamW": Rule(_adam_slots, _adam, True),
    "NAdam": Rule(_nadam_slots, _nadam, "decoupled_weight_decay"),
    "RAdam": Rule(_two_moments, _radam, "decoupled_weight_decay"),
    "Adamax": Rule(_adamax_slots, _adamax),
    "RMSprop": Rule(_rmsprop_slots, _rmsprop),
    "Adagrad": Rule(_adagrad_slots, _adagrad),
    "Adadelta": Rule(_adadelta_slots, _adadelta),
}
