"""FedProx's term: half of mu times the squared distance from where a round began, added to what a step minimizes.

Its gradient, mu (w - anchor), joins that of the loss before the optimizer. mu and the anchors are slots that no
step changes, so whoever runs a round sets both: a program is built once for every mu (arXiv 1812.06127).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class ProximalState(NamedTuple):
    """Slots by these names: `optimizer/0/proximal_mu`, `optimizer/0/proximal_anchor/<parameter>`."""

    proximal_mu: Any
    proximal_anchor: Any


def near_anchor(optimizer: optax.GradientTransformation, mu: float) -> optax.GradientTransformation:
    """Return an optimizer that also holds weights near an anchor, which is what was built until a session sets it.

    Args:
        optimizer: any.
        mu: from 0 on; likewise.
    """

    def init(weights: Any) -> ProximalState:
        return ProximalState(jnp.float32(mu), weights)

    def update(gradients: Any, state: ProximalState, weights: Any = None) -> tuple[Any, ProximalState]:
        def held(gradient: Any, weight: Any, anchor: Any) -> Any:
            return gradient + state.proximal_mu * (weight - anchor)

        return jax.tree.map(held, gradients, weights, state.proximal_anchor), state

    return optax.chain(optax.GradientTransformation(init, update), optimizer)
