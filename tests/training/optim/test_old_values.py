"""State that takes over the value of other state: what a step keeps of the step before, in the stock interpreter."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 6)).astype(np.float32)
Y = RNG.standard_normal((5, 3)).astype(np.float32)
WEIGHTS = {"w": (0.4 * RNG.standard_normal((6, 3))).astype(np.float32), "b": np.zeros(3, np.float32)}


def apply(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


def rows(output: Any, y: Any) -> Any:
    return ((output - y) ** 2).mean(-1)


def with_history() -> optax.GradientTransformation:
    """Steps along where the weights went in the last step, and in the one before."""

    def update(gradients: Any, state: Any, params: Any) -> Any:
        last, before = state
        moved = jax.tree.map(
            lambda g, p, a, b: 0.3 * (p - a) + 0.1 * (a - b) - 0.2 * g, gradients, params, last, before
        )
        return moved, (params, last)

    return optax.GradientTransformation(lambda params: (params, params), update)


def with_turns() -> optax.GradientTransformation:
    """Two momenta by turns: they change places in every step."""

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        now, then = state
        return jax.tree.map(lambda g, m: -g * m, gradients, now), (then, now)

    def init(params: Any) -> Any:
        return tuple(jax.tree.map(lambda p, rate=rate: jnp.full(p.shape, rate), params) for rate in (0.1, 0.4))

    return optax.GradientTransformation(init, update)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "history": with_history,
    "turns": with_turns,
    "lbfgs": lambda: optax.lbfgs(0.2, memory_size=3, linesearch=None),
}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_what_is_kept_of_the_last_step_is_what_it_was(case: str) -> None:
    optimizer = OPTIMIZERS[case]()
    model = jax_frontend.Model(apply, WEIGHTS, [jax.ShapeDtypeStruct((1, 6), jnp.float32)])
    program = converter.build(model, loss=rows, optimizer=optimizer, update="full", batch=5)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: rows(apply(p, X), Y).mean())(params)
        updates, state = optimizer.update(gradients, state, params)
        return value, optax.apply_updates(params, updates), state

    params, state = WEIGHTS, optimizer.init(WEIGHTS)
    with converter.runtime.TrainingSession(program.data) as session:
        for _ in range(6):
            value, params, state = step(params, state)
            assert session.train(X, Y) == pytest.approx(float(value), rel=1e-5)
        found = session.parameters()
    for name, array in params.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
