"""Losses with derivatives of their own in PyTorch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from converter.frontends.torch.derivatives import derived
from converter.frontends.torch.registry import Call, Rules

rule = Rules()

#: What PyTorch takes for the logarithm of 0, and for the least variance of a probability.
_LEAST_LOG, _LEAST_VARIANCE = -100.0, 1e-12


def _surprise(p: Any, y: Any) -> Any:
    """Minus the logarithm of what a probability gives to a target."""
    yes, no = jnp.maximum(jnp.log(p), _LEAST_LOG), jnp.maximum(jnp.log1p(-p), _LEAST_LOG)
    return (y - 1.0) * no - y * yes


def _cotangents(dy: Any, p: Any, y: Any, _: Any) -> tuple[Any, Any]:
    by_p = dy * (p - y) / jnp.maximum((1.0 - p) * p, _LEAST_VARIANCE)
    return by_p, dy * (jnp.log1p(-p) - jnp.log(p))


_binary = derived(_surprise, _cotangents)


@rule("binary_cross_entropy")
def binary_cross_entropy(call: Call, p: Any, y: Any, weight: Any = None, reduction: int = 1) -> Any:
    loss = _binary(*jnp.broadcast_arrays(p, y))
    loss = loss if weight is None else loss * weight
    return (loss, jnp.mean(loss), jnp.sum(loss))[reduction]
