"""JAX functions of shared values, through the whole compiler and the stock interpreter: results and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter

SIZE = 4
#: Of any two square matrices, which may be one.
STEPS: Sequence[Callable[[Any, Any], Any]] = (
    lambda a, b: a @ b.T * 0.1, lambda a, b: a.T @ b / 5, lambda a, b: 2 * (a @ b),
    lambda a, b: jnp.tanh(a) @ jnp.tanh(b).T / 3,
    lambda a, b: a + b.T, lambda a, b: a - 0.5 * b, lambda a, b: a * b, lambda a, b: jax.nn.relu(a @ b.T * 0.1),
    lambda a, b: jax.nn.softmax(a @ b.T / 2) @ b, lambda a, b: jnp.concatenate([a[:2], -b[2:]]) * 0.3,
    lambda a, b: (a.reshape(2, 8) * 1.5).reshape(4, 4) + b.sum(0), lambda a, b: jnp.pad(a[:, :3], ((0, 0), (1, 0))) + b,
    lambda a, b: a / (1 + b.std(1, keepdims=True)), lambda a, b: jax.nn.gelu(a) * b.mean(),
    lambda a, b: jnp.maximum(a, b.T),
    lambda a, b: a - jnp.sum(a * b, -1, keepdims=True) * a, lambda a, b: jnp.einsum("ij,kj->ik", a, b) * 0.2 + a,
)  # fmt: skip


def drawn(seed: int) -> Callable[[Any, Any], Any]:
    """A function of two matrices; a later step reads any that were made, most often the last."""
    rng = np.random.default_rng(seed)
    plan = [(int(rng.integers(len(STEPS))), rng.exponential(1.5, 2).astype(int)) for _ in range(rng.integers(2, 7))]

    def function(x: Any, w: Any) -> Any:
        values = [x, w]
        for step, (first, second) in plan:
            a, b = (values[-1 - min(int(back), len(values) - 1)] for back in (first, second))
            values.append(STEPS[step](a, b))
        return values[-1], values[-2] * 0.5

    return function


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = (rng.uniform(-1, 1, (SIZE, SIZE)).astype(np.float32) for _ in range(2))
    function = drawn(seed)
    expected, back = jax.vjp(function, x, w)
    cotangents = tuple(rng.uniform(-1, 1, (SIZE, SIZE)).astype(np.float32) for _ in expected)
    found = converter.function(function, x, w, gradient=True).run(x, w, *cotangents)
    for mine, theirs in zip(found, (*expected, *back(cotangents)), strict=True):
        scale = 1e-4 * (1 + np.abs(theirs).max())
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=scale, err_msg=f"seed {seed}")


@pytest.mark.quick
@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_as_in_jax(count: int) -> None:
    for seed in range(count):
        check(seed)
