"""Learning rate schedules of Keras, from their configuration, as functions of the number of the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi
from typing import Any

import jax.numpy as jnp

from converter.frontends.keras.configuration import Numbers, Unreadable

#: The learning rate of a step, from how many there were before it.
Schedule = Callable[[Any], Any]

#: Restarts that a schedule may have in as many steps as are counted exactly.
_MOST_RESTARTS, _MOST_STEPS = 256, 1 << 24


def _progress(n: Numbers) -> Schedule:
    """In units of `decay_steps`, in whole ones where the schedule goes by stairs."""
    steps, staircase = _steps(n, "decay_steps"), n.flag("staircase")
    return lambda count: jnp.floor(count / steps) if staircase else count / steps


def _steps(n: Numbers, name: str) -> float:
    if (steps := n(name, 0)) <= 0:
        raise Unreadable(f"its {name} is {steps:g}")
    return steps


def _exponential(n: Numbers) -> Schedule:
    first, rate, progress = n("initial_learning_rate", 0), n("decay_rate", 1), _progress(n)
    return lambda count: first * jnp.power(jnp.float32(rate), progress(count))


def _inverse_time(n: Numbers) -> Schedule:
    first, rate, progress = n("initial_learning_rate", 0), n("decay_rate", 0), _progress(n)
    return lambda count: first / (1 + rate * progress(count))


def _piecewise(n: Numbers) -> Schedule:
    boundaries, values = n.several("boundaries"), n.several("values")
    if len(values) != len(boundaries) + 1:
        raise Unreadable("it has not one value more than boundaries")

    def rate(count: Any) -> Any:
        found = jnp.float32(values[0])
        for boundary, value in zip(boundaries, values[1:], strict=True):
            found = jnp.where(count > boundary, jnp.float32(value), found)
        return found

    return rate


def _polynomial(n: Numbers) -> Schedule:
    first, last, power = n("initial_learning_rate", 0), n("end_learning_rate", 1e-4), n("power", 1)
    steps, cycle = _steps(n, "decay_steps"), n.flag("cycle")

    def rate(count: Any) -> Any:
        whole = steps * jnp.maximum(jnp.ceil(count / steps), 1) if cycle else steps
        left = 1 - jnp.minimum(count, whole) / whole
        return (first - last) * (left if power == 1 else jnp.power(left, power)) + last

    return rate


def _cosine(n: Numbers) -> Schedule:
    first, alpha, steps = n("initial_learning_rate", 0), n("alpha", 0), _steps(n, "decay_steps")
    warm = n("warmup_steps", 0) if n.config.get("warmup_target") is not None else 0.0
    top = n("warmup_target", first) if warm else first

    def rate(count: Any) -> Any:
        fraction = jnp.clip(count - warm, 0, steps) / steps
        decayed = top * ((1 - alpha) * 0.5 * (1 + jnp.cos(pi * fraction)) + alpha)
        return jnp.where(count < warm, (top - first) * count / warm + first, decayed) if warm else decayed

    return rate


def _cosine_restarts(n: Numbers) -> Schedule:
    first, alpha, steps = n("initial_learning_rate", 0), n("alpha", 0), _steps(n, "first_decay_steps")
    longer, lower = n("t_mul", 2), n("m_mul", 1)
    if longer == 1:
        return lambda count: _restarted(first, alpha, count / steps % 1, lower, jnp.floor(count / steps))
    starts = [0.0]
    while starts[-1] < _MOST_STEPS / steps:
        if longer < 1 or len(starts) > _MOST_RESTARTS:
            raise Unreadable(f"it restarts too often (t_mul {longer:g})")
        starts.append(starts[-1] + longer ** (len(starts) - 1))
    table = jnp.asarray(starts[1:], jnp.float32)

    def rate(count: Any) -> Any:
        place = count / steps
        restarts = jnp.sum((place >= table).astype(jnp.float32))
        length = jnp.power(jnp.float32(longer), restarts)
        return _restarted(first, alpha, (place - (length - 1) / (longer - 1)) / length, lower, restarts)

    return rate


def _restarted(first: float, alpha: float, fraction: Any, lower: float, restarts: Any) -> Any:
    height = 0.5 if lower == 1 else 0.5 * jnp.power(jnp.float32(lower), restarts)
    return first * ((1 - alpha) * height * (1 + jnp.cos(pi * fraction)) + alpha)


_SCHEDULES: dict[str, Callable[[Numbers], Schedule]] = {
    "ExponentialDecay": _exponential,
    "InverseTimeDecay": _inverse_time,
    "PiecewiseConstantDecay": _piecewise,
    "PolynomialDecay": _polynomial,
    "CosineDecay": _cosine,
    "CosineDecayRestarts": _cosine_restarts,
}


def schedule_of(entry: Mapping[str, Any]) -> Schedule:
    """Return the schedule that a configuration describes, of the number of steps before.

    Raises:
        Unreadable: it is none of Keras', or its numbers are none.
    """
    kind, config = entry.get("class_name"), entry.get("config")
    if entry.get("module") != "keras.optimizers.schedules" or not isinstance(config, Mapping):
        raise Unreadable("it is not one of Keras")
    if not isinstance(kind, str) or kind not in _SCHEDULES:
        raise Unreadable("it is not known here")
    made = _SCHEDULES[kind](Numbers(config))

    def schedule(count: Any) -> Any:
        return made(jnp.asarray(count).astype(jnp.float32))

    schedule.__qualname__ = f"{kind} of Keras"
    return schedule


def first_rate(entry: Mapping[str, Any]) -> float | None:
    """Return the rate that a schedule names as its first, where it names one."""
    config = entry.get("config")
    try:
        if not isinstance(config, Mapping) or config.get("initial_learning_rate") is None:
            return None
        return Numbers(config)("initial_learning_rate", 0)
    except Unreadable:
        return None
