"""Tensors of more axes than TensorFlow Lite's kernels and XNNPACK's variables take train all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
import jax_frontend
from converter.runtime import TrainingSession

#: Of a trained tensor [2, 3, 2, 2, 2], and of one of nine axes.
FUNCTIONS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "tiled": ((2, 3, 2, 2, 2), lambda a: jnp.tile(a, (2, 1, 3, 1, 2)) ** 2),
    "broadcast": ((2, 1, 3, 1, 2, 1, 2, 1, 2), lambda a: jnp.broadcast_to(a, (2, 2, 3, 2, 2, 2, 2, 2, 2)) ** 3),
    "summed": ((2, 1, 3, 1, 2, 2, 2, 1, 2), lambda a: (a**2).sum((1, 4, 8)) * jnp.exp(a.mean((0, 5)).sum())),
    "transposed": ((2,) * 9, lambda a: jnp.transpose(a, (3, 1, 0, 5, 2, 8, 4, 7, 6))[..., 0] ** 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_step_is_that_of_jax(name: str) -> None:
    shape, function = FUNCTIONS[name]
    params = {"a": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}

    def apply(p: Any, x: Any) -> Any:
        y = function(p["a"]).reshape(1, -1)
        return (y * jnp.cos(jnp.arange(y.size))).sum(1, keepdims=True) * x

    model, one = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 1), np.float32)]), np.ones((1, 1), "f")
    program = converter.build(model, loss=lambda y: y[:, 0], optimizer="sgd", batch=1, check=False)
    gradient = jax.grad(lambda p: apply(p, one).sum())(params)["a"]
    with TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(one), apply(params, one), rtol=1e-4)
        session.train(one, learning_rate=0.1)
        np.testing.assert_allclose(session.parameters()["a"], params["a"] - 0.1 * gradient, atol=2e-5)
