"""Dropout in a JAX model: the identity in JAX, which the training step of the compiled program replaces by masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.ad_checkpoint import checkpoint_name

from converter.errors import UsageError
from converter.ir import Value, ops
from jax_frontend.registry import Call, Result, rule

_MARK = "pocketune.dropout"


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
        raise UsageError(f"dropout: a rate is from 0 to 1, got {rate}")
    # Counted from the end: jax.vmap adds axes in front.
    axes = ",".join(str(axis % x.ndim - x.ndim) for axis in shared)
    return checkpoint_name(x, f"{_MARK} {float(rate)!r} {label} {axes}") if rate else x


@rule("name")
def name(call: Call, x: Value) -> Result:
    """A name of the person's own is nothing; ours is a dropout."""
    if not call.params["name"].startswith(_MARK):
        return x
    _, rate, label, axes = call.params["name"].split(" ")
    key = sum(isinstance(node.op, ops.Dropout) for node in call.b.graph.nodes)
    return call.b(
        ops.Dropout(float(rate), tuple(int(axis) + len(x.shape) for axis in axes.split(",") if axis), label, key), x
    )
