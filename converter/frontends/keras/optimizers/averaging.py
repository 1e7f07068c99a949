"""Gradient accumulation and weight averages, which any Keras optimizer can do beside its own arithmetic."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from converter.training.optim.trace import Finishing


def accumulated(inner: optax.GradientTransformation, steps: int) -> optax.GradientTransformation:
    """Return the transformation of the mean of so many gradients, in each step of which but the last nothing moves."""

    def init(params: Any) -> tuple[Any, Any, Any]:
        return jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params), inner.init(params)

    def update(gradients: Any, state: tuple[Any, Any, Any], params: Any = None) -> tuple[Any, tuple[Any, Any, Any]]:
        before, sums, kept = state
        count = jnp.mod(before + 1, steps)
        is_due = count == 0
        sums = jax.tree.map(jnp.add, gradients, sums)
        updates, moved = inner.update(jax.tree.map(lambda g: g / steps, sums), kept, params)

        def due(then: Any, otherwise: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(is_due, a, b), then, otherwise)

        nothing = jax.tree.map(jnp.zeros_like, sums)
        return due(updates, nothing), (count, due(nothing, sums), due(moved, kept))

    return optax.GradientTransformation(init, update)


def averaged(inner: optax.GradientTransformation, momentum: float, every: int, steps: int) -> Finishing:
    """Return the transformation with a moving average that replaces the weights at intervals, as `use_ema` does.

    Args:
        inner: the transformation.
        momentum: the part of the average that stays in a step; the first average is the weights.
        every: in how many updates the average replaces the weights once.
        steps: how many steps make an update.
    """

    def init(params: Any) -> tuple[Any, Any, Any]:
        return inner.init(params), jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params)

    def update(gradients: Any, state: tuple[Any, Any, Any], params: Any = None) -> tuple[Any, tuple[Any, Any, Any]]:
        updates, kept = inner.update(gradients, state[0], params)
        return updates, (kept, *state[1:])

    def finish(params: Any, state: tuple[Any, Any, Any]) -> tuple[Any, tuple[Any, Any, Any]]:
        kept, count, average = state
        updates = jnp.floor(count / steps)
        stays = jnp.where(updates == 0, 0.0, momentum)
        average = jax.tree.map(lambda a, w: stays * a + (1 - stays) * w, average, params)
        is_due = jnp.mod(updates + 1, every) == 0
        params = jax.tree.map(lambda a, w: jnp.where(is_due, a, w), average, params)
        return params, (kept, count + 1, average)

    return Finishing(init, update, finish)
