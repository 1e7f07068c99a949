"""A learning rate that is applied twice, or never: told, or refused. optax is the oracle of what a rate is."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import converter
from converter.errors import UsageError
from converter.optim.rate import OptimizerWarning, own_rate
from tests.runtime.programs import EXAMPLES

MAKERS = [
    optax.sgd, optax.adam, optax.adamw, optax.rmsprop, optax.adagrad, optax.lion, optax.lamb, optax.yogi, optax.nadam,
    optax.radam, optax.adabelief, optax.adamax, optax.sm3,
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("rate", [1e-3, 0.5, 1.0])
def test_the_rate_is_found(make: Any, rate: float) -> None:
    assert own_rate(make(rate)) == pytest.approx(rate)
    assert own_rate(optax.chain(optax.clip_by_global_norm(1.0), make(rate))) == pytest.approx(rate)


@pytest.mark.parametrize(
    "optimizer",
    ["adam", optax.adam(optax.cosine_decay_schedule(1e-3, 100)), optax.adafactor(), optax.chain(optax.scale(-1.0))],
)
def test_no_constant_rate_of_its_own(optimizer: Any) -> None:
    assert own_rate(optimizer) == 1


def test_build_tells() -> None:
    model = EXAMPLES["mlp"].model()
    with pytest.warns(
        OptimizerWarning, match="learning rate of 0.001, .* train with learning_rate=1.0 for 0.001"
    ) as told:
        converter.build(model, optimizer=optax.adam(1e-3), check=False)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", OptimizerWarning)
        converter.build(model, optimizer=optax.adam(1.0), check=False)
        converter.build(model, optimizer="adamw", check=False)


@pytest.mark.parametrize(
    "optimizer", [optax.scale_by_adam(), optax.identity(), optax.chain(optax.scale_by_rms(), optax.scale(0.01))]
)
def test_what_goes_uphill_is_refused(optimizer: Any) -> None:
    with pytest.raises(UsageError, match=r"goes up the gradient: .* optax.scale_by_learning_rate"):
        converter.build(EXAMPLES["mlp"].model(), optimizer=optimizer)


def test_what_does_not_move_at_first_is_taken() -> None:
    """A warm-up from 0."""
    slow = optax.sgd(optax.linear_schedule(0.0, 1.0, 10))
    assert not jnp.any(slow.update(jnp.ones(2), slow.init(jnp.ones(2)))[0])
    converter.build(EXAMPLES["mlp"].model(), optimizer=slow, check=False)
