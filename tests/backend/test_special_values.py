"""Numbers that are not finite, in the stock interpreter: what a step makes of them must be as visible as in JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import converter
import jax_frontend
from converter.runtime import TrainingSession
from converter.support.errors import NumericError

#: More than a vector of the kernels, and a remainder.
VALUES = np.array([np.nan, np.inf, -np.inf, 0, 1, -1, 30, -200, 3] * 3 + [np.nan], np.float32)
FUNCTIONS: list[Callable[[Any], Any]] = [
    jnp.exp,
    jnp.log,
    jnp.log2,
    jax.nn.softplus,
    jax.nn.relu,
    jax.nn.sigmoid,
    jnp.tanh,
    jax.nn.gelu,
]


def test_functions_of_what_is_not_finite_equal_jax() -> None:
    def together(x: jax.Array) -> list[jax.Array]:
        return [f(x) for f in FUNCTIONS] + [
            *(lax.rsqrt(jnp.abs(x)), lax.rsqrt(jnp.abs(x) + 1e-3)),
            lax.rsqrt(x + 1.0),  # 0 where x is -1
        ]

    for found, expected in zip(converter.function(together, VALUES).run(VALUES), together(VALUES), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_rows_with_infinity_have_the_sum_of_jax() -> None:
    rows = np.array([[1, 2, 3], [-np.inf, 2, 3], [np.inf, 2, 3], [-np.inf] * 3], np.float32)

    def together(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.nn.logsumexp(x, -1), jnp.log(jnp.exp(x).sum(-1))

    for found, expected in zip(converter.function(together, rows).run(rows), together(rows), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("activation", [jnp.exp, jax.nn.relu, lambda x: jnp.maximum(x, 0), jax.nn.softmax])
@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "mse"])
def test_a_step_that_met_nan_is_seen(activation: Callable[[Any], Any], loss: str) -> None:
    """The logarithm of a negative number in one of four rows."""
    rng = np.random.default_rng(0)
    params = {"a": rng.standard_normal((6, 8)).astype("f"), "b": rng.standard_normal((8, 5)).astype("f")}
    model = jax_frontend.Model(
        lambda p, x: activation(jnp.log(x) @ p["a"]) @ p["b"], params, [jax.ShapeDtypeStruct((1, 6), jnp.float32)]
    )
    x = rng.uniform(1, 2, (4, 6)).astype(np.float32)
    x[0, 2] = -1
    y = np.arange(4, dtype=np.int32) if loss != "mse" else np.eye(4, 5, dtype=np.float32)
    program = converter.build(model, loss=loss, optimizer=optax.sgd(0.1), batch=4, check=False)
    with TrainingSession(program.data) as session, pytest.raises(NumericError, match="the loss is nan"):
        session.train(x, y, 0.1)
