"""Update rules of Keras' optimizers that optax computes otherwise or not at all, in Keras' own arithmetic.

They are for a learning rate of 1, and give what is subtracted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


def _zero_moments(params: Any) -> optax.ScaleByAdamState:
    """Return two moments of each gradient, of no step yet."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return optax.ScaleByAdamState(jnp.zeros([], jnp.int32), zeros, zeros)


def _moved(gradients: Any, state: optax.ScaleByAdamState, b1: float, b2: float) -> optax.ScaleByAdamState:
    """Return the moments with one more gradient."""
    mu = jax.tree.map(lambda m, g: m + (1 - b1) * (g - m), state.mu, gradients)
    nu = jax.tree.map(lambda v, g: v + (1 - b2) * (g * g - v), state.nu, gradients)
    return optax.ScaleByAdamState(state.count + 1, mu, nu)


def scale_by_adam(b1: float, b2: float, epsilon: float, amsgrad: bool = False) -> optax.GradientTransformation:
    """Adam as Keras writes it: epsilon is added before the second moment is corrected, not after as in optax.

    AMSGrad takes the largest second moment that there was, before it is corrected; optax corrects first.
    """

    def init(params: Any) -> tuple[Any, ...]:
        return (_zero_moments(params), *([jax.tree.map(jnp.zeros_like, params)] if amsgrad else []))

    def update(gradients: Any, state: tuple[Any, ...], params: Any = None) -> tuple[Any, tuple[Any, ...]]:
        moments = _moved(gradients, state[0], b1, b2)
        highest = [jax.tree.map(jnp.maximum, largest, moments.nu) for largest in state[1:]]
        count, nu = moments.count, highest[0] if highest else moments.nu
        alpha = jnp.sqrt(1 - b2**count) / (1 - b1**count)
        updates = jax.tree.map(lambda m, v: m * alpha / (jnp.sqrt(v) + epsilon), moments.mu, nu)
        return updates, (moments, *highest)

    return optax.GradientTransformation(init, update)


class _NadamState(NamedTuple):
    count: Any
    product: Any
    mu: Any
    nu: Any


def scale_by_nadam(b1: float, b2: float, epsilon: float) -> optax.GradientTransformation:
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


def scale_by_adamax(b1: float, b2: float, epsilon: float) -> optax.GradientTransformation:
    """Adamax as Keras writes it: epsilon is added to the norm, not to the gradient as in optax."""

    def update(gradients: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: m + (1 - b1) * (g - m), state.mu, gradients)
        nu = jax.tree.map(lambda u, g: jnp.maximum(b2 * u, jnp.abs(g)), state.nu, gradients)
        updates = jax.tree.map(lambda m, u: m / (1 - b1**count) / (u + epsilon), mu, nu)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(_zero_moments, update)


class Orthogonal(NamedTuple):
    """What Muon does to a matrix.

    Attributes:
        momentum: of the gradients.
        nesterov: whether it looks ahead.
        steps: how often the polynomial is applied.
        factors: of x, x x^T x and (x x^T)^2 x.
        rms: of the update, times the root of the larger side; None leaves it as it is.
    """

    momentum: float
    nesterov: bool
    steps: int
    factors: tuple[float, float, float]
    rms: float | None

    def transformation(self) -> optax.GradientTransformation:
        """Muon as Keras writes it: the momentum has no correction, and epsilon is added to the norm."""
        trace = optax.trace(self.momentum, self.nesterov)

        def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            moved, state = trace.update(gradients, state)
            return jax.tree.map(self._orthogonalized, moved), state

        return optax.GradientTransformation(trace.init, update)

    def _orthogonalized(self, g: Any) -> Any:
        a, b, c = self.factors
        x = g.T if g.shape[0] > g.shape[1] else g
        x = x / (jnp.sqrt(jnp.sum(x * x)) + 1e-7)
        for _ in range(self.steps):
            square = x @ x.T
            x = a * x + (b * square + c * square @ square) @ x
        x = x.T if g.shape[0] > g.shape[1] else x
        return x if self.rms is None else x * (max(g.shape) ** 0.5 * self.rms)
