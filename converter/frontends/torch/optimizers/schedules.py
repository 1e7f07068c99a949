"""Schedulers of `torch.optim.lr_scheduler` as functions of the step, by the rates that they give PyTorch itself."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from math import pi
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import torch

from converter.support.errors import UsageError

#: Steps that a table of rates holds: those after them have the last rate.
MOST_STEPS = 1 << 14
#: Changes of a rate that are written out.
_FEW = 8


class Scheduled(NamedTuple):
    """A learning rate that runs in the program.

    Attributes:
        rate: that of a parameter group by the number of steps before, `scheduler.step()` being called in each.
        held: the number of steps after which it stays as it is, where PyTorch's goes on; None where it does not.
    """

    rate: Callable[[Any], Any]
    held: int | None = None


def schedules_of(scheduler: Any) -> list[Scheduled]:
    """Return what a scheduler makes of the rate of each parameter group.

    Raises:
        UsageError: the rate is no function of the step, or it changes more than the rate.
    """
    kind = type(scheduler).__name__
    if kind == "ReduceLROnPlateau":
        raise UsageError(
            f"the scheduler {kind} cannot be taken over: it looks at the loss of an evaluation, which a program does "
            "not make. Use one that counts steps, or optax.contrib.reduce_on_plateau",
            page="optimizers",
        )
    if getattr(scheduler, "cycle_momentum", False):
        raise UsageError(
            f"the scheduler {kind} cannot be taken over: it changes the momentum as well. Give it cycle_momentum=False",
            page="optimizers",
        )
    begins = [float(group.get("initial_lr", 0.0)) for group in scheduler.optimizer.param_groups]
    known = [_by_formula(scheduler, begin) for begin in begins]
    made = [one for one in known if one is not None] or [_by_rates(rates) for rates in _rates(scheduler)]
    for one in made:
        one.rate.__name__ = one.rate.__qualname__ = kind
    return made


def _by_formula(scheduler: Any, base: float) -> Scheduled | None:
    """A schedule that never ends and has a formula; None for others, and for one that has taken steps."""
    kind = type(scheduler).__name__
    if getattr(scheduler, "last_epoch", -1) != 0:
        return None
    if kind == "StepLR":
        size, gamma = int(scheduler.step_size), float(scheduler.gamma)

        def by_steps(count: Any) -> Any:
            return base * jnp.power(jnp.float32(gamma), jnp.floor(jnp.asarray(count, jnp.float32) / size))

        return Scheduled(by_steps)
    if kind == "CosineAnnealingLR":
        half, least = float(scheduler.T_max), float(scheduler.eta_min)

        def cosine(count: Any) -> Any:
            place = jnp.mod(jnp.asarray(count, jnp.float32), 2 * half)
            return least + (base - least) * 0.5 * (1 + jnp.cos(place * (pi / half)))

        return Scheduled(cosine)
    return None


def _by_rates(rates: np.ndarray) -> Scheduled:
    """A schedule by the rates themselves."""
    first = float(rates[0])
    if (exponent := _exponent(rates)) is not None:
        return Scheduled(lambda count: first * jnp.power(jnp.float32(exponent), jnp.asarray(count, jnp.float32)))
    changes = [int(at) + 1 for at in np.flatnonzero(np.diff(rates))]
    last = changes[-1] if changes else 0
    if len(changes) > _FEW:
        table = rates[: last + 1].astype(np.float32)

        def by_table(count: Any) -> Any:
            return jnp.take(jnp.asarray(table), jnp.minimum(jnp.asarray(count, jnp.int32), last), mode="clip")

        return Scheduled(by_table, MOST_STEPS if last == MOST_STEPS - 1 else None)
    jumps = [(at, float(rates[at] - rates[at - 1])) for at in changes]

    def by_jumps(count: Any) -> Any:
        rate = jnp.float32(first)
        for at, jump in jumps:
            rate = rate + jnp.where(jnp.asarray(count, jnp.float32) >= at, jnp.float32(jump), 0.0)
        return rate

    return Scheduled(by_jumps)


def _rates(scheduler: Any) -> np.ndarray:
    """The rates [groups, steps] from now on, by the scheduler itself on parameters of no meaning."""
    twin = copy.copy(scheduler)
    groups = [{**group, "params": [torch.zeros(1)]} for group in scheduler.optimizer.param_groups]
    _attach(twin, torch.optim.SGD(groups))
    rates = [[float(group["lr"]) for group in groups]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(MOST_STEPS - 1):
            try:
                twin.step()
            except ValueError:  # behind the last step that it was made for
                break
            rates.append([float(group["lr"]) for group in groups])
    return np.asarray([*rates, *[rates[-1]] * (MOST_STEPS - len(rates))]).T


def _attach(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Let a scheduler, and those that it is made of, work on another optimizer."""
    scheduler.optimizer = optimizer
    if inner := getattr(scheduler, "_schedulers", None):
        scheduler._schedulers = [copy.copy(each) for each in inner]
        for each in scheduler._schedulers:
            _attach(each, optimizer)


def _exponent(rates: np.ndarray) -> float | None:
    """The factor of each step where it is always the same; None where it is not, or 1."""
    begin = rates[:64]
    if not (begin > 0).all():
        return None
    factor = float(begin[1] / begin[0])
    if np.isclose(factor, 1.0, rtol=1e-12, atol=0.0):
        return None
    for some in (begin, rates):  # all of them only where the first are right: others may grow without end
        if not np.allclose(some, rates[0] * factor ** np.arange(len(some), dtype=np.float64), rtol=1e-6, atol=1e-30):
            return None
    return factor
