"""The step that `build` itself runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.driver.check import StandstillWarning, check_program
from converter.runtime import TrainingSession
from converter.support.errors import NumericError
from tests.runtime.programs import program


def build(apply: Any, w: Any, optimizer: Any = "sgd", dtype: Any = np.float32, **options: Any) -> converter.Program:
    model = jax_frontend.Model(apply, {"w": np.asarray(w, np.float32)}, [jax.ShapeDtypeStruct((1, 3), dtype)])
    return converter.build(model, optimizer=optimizer, batch=2, **options)


@pytest.mark.parametrize("state", ["variables", "stateless", "split"])
@pytest.mark.parametrize("loss", ["mse", "categorical_crossentropy", "sparse_categorical_crossentropy"])
def test_a_good_program_passes(loss: str, state: str) -> None:
    build(lambda p, x: x @ p["w"], np.eye(3), loss=loss, state=state)
    check_program(program("cnn", state, "adam", 0.5).data)


def test_a_loss_that_is_not_finite() -> None:
    with pytest.raises(NumericError, match="the loss is nan"):
        build(lambda p, x: jnp.log(x - 2) @ p["w"], np.eye(3))


def test_a_step_that_leaves_nan() -> None:
    # The loss is finite, its slope is not.
    with pytest.raises(NumericError, match=r"Sqrt \(w at .*test_check.py"):
        build(lambda p, x: jnp.sqrt(p["w"] * x), np.zeros(3), loss="mse")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_nothing_moves(optimizer: str) -> None:
    with pytest.warns(StandstillWarning, match=r"moves nothing \(w\)"):
        build(lambda p, x: jax.nn.relu(x @ p["w"] - 1e9), np.eye(3), optimizer)
    with pytest.warns(StandstillWarning, match=r"moves nothing \(w\)"):
        build(lambda p, x: x @ p["w"], np.eye(3), optax.sgd(0.0))


def test_a_schedule_may_begin_at_zero() -> None:
    build(lambda p, x: x @ p["w"], np.eye(3), optax.adam(optax.linear_schedule(0.0, 1.0, 10)))


def test_an_index_out_of_range_is_no_crash() -> None:
    built = build(lambda p, x: p["w"][x].sum(1), np.eye(5), dtype=np.int32)
    with TrainingSession(built.data) as session:
        assert np.isfinite(session.train(np.array([[0, 1, 4]]), [2]))
        w, beyond = jnp.asarray(session.parameters()["w"]), np.array([[0, 1, 5]], np.int32)
        np.testing.assert_allclose(session.infer(beyond), w[beyond].sum(1), rtol=1e-6)  # the nearest, as in JAX
        assert np.isfinite(session.train(beyond, [2]))
        assert np.isfinite(session.train(np.array([[0, 1, 4]]), [2]))
