"""Random layers of a JAX model, in training alone: marked in the trace, which is that of inference.

The training step of the compiled program replaces the marks by random numbers of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from converter.ir import Value, ops
from converter.support.errors import UsageError
from jax_frontend.registry import Equation, ImportRules, Result
from jax_frontend.rules.random import generator

rule = ImportRules()

_MARK, _ACTIVITY = "pocketune.dropout", "pocketune.activity"
_IN_TRAINING, _KEY = "pocketune.in_training", "pocketune.key"


def dropout(x: Any, rate: float, shared: Sequence[int] = (), label: str = "Dropout") -> Any:
    """Marks where a model drops elements with probability `rate` while it trains (and scales up the rest).

    Args:
        x: an array of JAX, which is returned.
        rate: from 0 to 1.
        shared: axes along which whole lines are dropped.
        label: what reports call it.

    Raises:
        UsageError: the rate is none.
    """
    if not 0 <= rate <= 1:
        raise UsageError(f"dropout: a rate is from 0 to 1, got {rate}", page="dropout")
    # Counted from the end: jax.vmap adds axes in front.
    axes = ",".join(str(axis % x.ndim - x.ndim) for axis in shared)
    return checkpoint_name(x, f"{_MARK} {float(rate)!r} {label} {axes}") if rate else x


def in_training(x: Any, trained: Any, said: str) -> Any:
    """Marks what stands for x, which is returned, while a model trains; `said` is what reports call it."""

    def mark(x: Any, trained: Any) -> Any:
        return jax.lax.optimization_barrier((x, trained))[0]

    mark.__name__ = f"{_IN_TRAINING} {said}"
    return jax.jit(mark)(x, trained)


def random_key() -> Any:
    """Return a key for `jax.random`, for what is given to `in_training`: new in each step of the program."""

    def key() -> Any:
        return jax.random.wrap_key_data(jnp.zeros(1, jnp.uint32), impl=generator())

    key.__name__ = _KEY
    return jax.jit(key)()


def activity(x: Any, l1: float = 0.0, l2: float = 0.0, layer: str = "") -> Any:
    """Marks what adds l1 * sum(|x|) + l2 * sum(x^2) of each row to its loss; x is returned."""
    return checkpoint_name(x, f"{_ACTIVITY} {l1!r} {l2!r} {x.ndim} {layer}")


@rule("name")
def name(call: Equation, x: Value) -> Result:
    """Return what a name marks: one of the user's own is nothing, ours is a dropout, or joins the loss."""
    if call.params["name"].startswith(_ACTIVITY):
        _, l1, l2, rank, layer = call.params["name"].split(" ", 4)
        has_rows = len(x.shape) == int(rank)  # jax.vmap adds axes in front
        return call.b(ops.Activity(float(l1), float(l2), layer), x) if has_rows else x
    if not call.params["name"].startswith(_MARK):
        return x
    _, rate, label, axes = call.params["name"].split(" ")
    shared = tuple(int(axis) + len(x.shape) for axis in axes.split(",") if axis)
    return call.b(ops.Dropout(float(rate), shared, label, _who(call)), x)


@rule(f"jit {_IN_TRAINING}")
def in_training_mark(call: Equation, x: Value, trained: Value) -> Result:
    """Return what stands for a value while the model trains."""
    return call.b(ops.InTraining(call.params["name"].partition(" ")[2]), x, trained)


@rule(f"jit {_KEY}")
def key_mark(call: Equation) -> Result:
    """Return a key that is new in each step."""
    return call.b(ops.CallKey(_who(call)))


def _who(call: Equation) -> int:
    """Return a number for one who draws."""
    return sum(isinstance(node.op, ops.Dropout | ops.CallKey) for node in call.b.graph.nodes)
