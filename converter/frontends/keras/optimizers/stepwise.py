"""Update rules of Keras in which the weight, or the rate, is more than a factor: a step at a rate.

Keras decays weights before such a step reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from converter.frontends.keras.configuration import Numbers, Unreadable

#: What is added to the weights and the next state, from gradients, state, weights, the rate and the number of the step.
Step = Callable[[Any, Any, Any, Any, Any], tuple[Any, Any]]


class Stepwise(NamedTuple):
    """An optimizer at a rate.

    Attributes:
        init: what it keeps of the past, from the weights.
        step: one update.
        proportional: whether the rate is a factor, as long as the weights do not decay.
    """

    init: Callable[[Any], Any]
    step: Step
    proportional: bool = False

    def at(self, rate: Callable[[Any], Any], decay: float) -> optax.GradientTransformation:
        """Return the transformation whose updates are added, for a rate by the number of steps before."""

        def init(params: Any) -> tuple[Any, Any]:
            return jnp.zeros([], jnp.int32), self.init(params)

        def update(gradients: Any, state: tuple[Any, Any], params: Any = None) -> tuple[Any, tuple[Any, Any]]:
            before, kept = state
            lr, count = rate(before), before + 1
            fading = jax.tree.map(lambda w: -w * (decay * lr), params)
            weights = jax.tree.map(jnp.add, params, fading) if decay else params
            updates, kept = self.step(gradients, kept, weights, lr, count)
            return jax.tree.map(jnp.add, fading, updates) if decay else updates, (count, kept)

        return optax.GradientTransformation(init, update)


def _root_mean_square(x: Any) -> Any:
    return jnp.sqrt(jnp.mean(x * x))


def _lamb(n: Numbers) -> Stepwise:
    b1, b2, epsilon = n("beta_1", 0.9), n("beta_2", 0.999), n("epsilon", 1e-7)

    def scaled(update: Any, w: Any, lr: Any) -> Any:
        size, length = jnp.sqrt(jnp.sum(w * w)), jnp.sqrt(jnp.sum(update * update))
        known = (size > 0) & (length > 0)
        return -lr * jnp.where(known, size / jnp.where(known, length, 1.0), 1.0) * update

    def step(gradients: Any, state: Any, weights: Any, lr: Any, count: Any) -> tuple[Any, Any]:
        updates, state = adam.update(gradients, state)
        return jax.tree.map(lambda u, w: scaled(u, w, lr), updates, weights), state

    adam = optax.scale_by_adam(b1, b2, epsilon)
    return Stepwise(adam.init, step, proportional=True)


def _adafactor(n: Numbers) -> Stepwise:
    decay, tiny, least, most = (
        n("beta_2_decay", -0.8),
        n("epsilon_1", 1e-30),
        n("epsilon_2", 1e-3),
        n("clip_threshold", 1),
    )

    def init(params: Any) -> list[tuple[Any, ...]]:
        return [
            (jnp.zeros(w.shape[:-1]), jnp.zeros((*w.shape[:-2], w.shape[-1]))) if w.ndim > 1 else (jnp.zeros(w.shape),)
            for w in jax.tree.leaves(params)
        ]

    def one(g: Any, kept: tuple[Any, ...], w: Any, rate: Any, old: Any) -> tuple[Any, tuple[Any, ...]]:
        square = g * g + tiny
        if g.ndim > 1:
            rows = old * kept[0] + (1 - old) * jnp.mean(square, -1)
            columns = old * kept[1] + (1 - old) * jnp.mean(square, -2)
            kept = rows, columns
            moment = (rows / jnp.mean(rows, -1, keepdims=True))[..., None] * columns[..., None, :]
        else:
            moment = old * kept[0] + (1 - old) * square
            kept = (moment,)
        update = g / jnp.sqrt(moment)
        update = update / jnp.maximum(1.0, _root_mean_square(update) / most)
        return -jnp.maximum(least, _root_mean_square(w)) * rate * update, kept

    def step(gradients: Any, state: Any, weights: Any, lr: Any, count: Any) -> tuple[Any, Any]:
        number = jnp.asarray(count, jnp.float32)
        rate, old = jnp.minimum(lr, 1 / jnp.sqrt(number)), 1 - jnp.power(number, decay)
        leaves, tree = jax.tree.flatten(gradients)
        done = [one(g, kept, w, rate, old) for g, kept, w in zip(leaves, state, jax.tree.leaves(weights), strict=True)]
        return jax.tree.unflatten(tree, [update for update, _ in done]), [kept for _, kept in done]

    return Stepwise(init, step)


def _ftrl(n: Numbers) -> Stepwise:
    power, first = -n("learning_rate_power", -0.5), n("initial_accumulator_value", 0.1)
    l1, l2, shrinkage = (n(f"{kind}_regularization_strength", 0) for kind in ("l1", "l2", "l2_shrinkage"))
    beta = n("beta", 0)

    def init(params: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda w: jnp.full_like(w, first), params), jax.tree.map(jnp.zeros_like, params)

    def powers(sums: Any) -> Any:
        return jax.tree.map(lambda s: jnp.sqrt(s) if power == 0.5 else jnp.power(s, power), sums)

    def step(gradients: Any, state: Any, weights: Any, lr: Any, count: Any) -> tuple[Any, Any]:
        sums, linear = state
        after = jax.tree.map(lambda s, g: s + g * g, sums, gradients)
        before_root, root = powers(sums), powers(after)
        linear = jax.tree.map(
            lambda z, g, w, r, r0: z + (g + 2 * shrinkage * w - (r - r0) / lr * w),
            *(linear, gradients, weights, root, before_root),
        )

        def change(z: Any, r: Any, w: Any) -> Any:
            return (jnp.clip(z, -l1, l1) - z) / (r / lr + 2 * (l2 + beta / (2 * lr))) - w

        return jax.tree.map(change, linear, root, weights), (after, linear)

    return Stepwise(init, step)


def _schedule_free(n: Numbers) -> Stepwise:
    b1, b2, epsilon, warm = n("beta_1", 0.9), n("beta_2", 0.999), n("epsilon", 1e-8), n("warmup_steps", 0)
    if b1 == 0:
        raise Unreadable("its beta_1 is 0, and Keras divides by it")

    def init(params: Any) -> tuple[Any, Any]:
        return jax.tree.map(jnp.copy, params), jax.tree.map(jnp.zeros_like, params)

    def step(gradients: Any, state: Any, weights: Any, lr: Any, count: Any) -> tuple[Any, Any]:
        ahead, nu = state
        number = jnp.asarray(count, jnp.float32)
        lr = lr * jnp.minimum(number / warm, 1.0) if warm > 0 else lr
        nu = jax.tree.map(lambda v, g: v + (1 - b2) * (g * g - v), nu, gradients)
        spread = 1 / (1 - jnp.power(jnp.float32(b2), number))
        moved = jax.tree.map(lambda z, g, v: z - lr * g / (jnp.sqrt(v * spread) + epsilon), ahead, gradients, nu)

        def change(old: Any, z: Any, y: Any) -> Any:
            mean = (1 - 1 / number) * ((y - (1 - b1) * old) / b1) + z / number
            return (1 - b1) * z + b1 * mean - y

        return jax.tree.map(change, ahead, moved, weights), (moved, nu)

    return Stepwise(init, step)


#: By the name of the class.
STEPWISE: dict[str, Callable[[Numbers], Stepwise]] = {
    "Lamb": _lamb,
    "Adafactor": _adafactor,
    "Ftrl": _ftrl,
    "ScheduleFreeAdamW": _schedule_free,
}
