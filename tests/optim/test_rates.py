"""A learning rate is never applied twice, or not at all. optax is the oracle of what a rate is."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.errors import UsageError
from converter.optim.rate import own_rate
from jax_frontend.model import named_leaves
from tests.runtime.programs import EXAMPLES

MAKERS = [
    optax.sgd, optax.adam, optax.adamw, optax.rmsprop, optax.adagrad, optax.lion, optax.lamb, optax.yogi, optax.nadam,
    optax.radam, optax.adabelief, optax.adamax, optax.sm3,
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "rate"), [(make, rate) for make in MAKERS for rate in (1e-3, 0.5, 1.0) if (make, rate) != (optax.lamb, 1)]
)
def test_the_rate_is_found(make: Any, rate: float) -> None:
    assert own_rate(make(rate)) == pytest.approx(rate)
    assert own_rate(optax.chain(optax.clip_by_global_norm(1.0), make(rate))) == pytest.approx(rate)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(optax.cosine_decay_schedule(1e-3, 100)),
        optax.chain(optax.adam(1e-3), optax.clip(0.1)),
        optax.adafactor(1e-2),
        optax.lamb(1.0),  # its last product is with a number of its own
        optax.rmsprop(1e-2, momentum=0.9),
        optax.rprop(1e-2),  # in its state
        optax.multi_transform({"a": optax.sgd(0.1), "b": optax.sgd(0.2)}, {"c": "a", "d": "b"}),
        optax.multi_transform({"a": optax.sgd(0.1)}, lambda weights: jax.tree.map(lambda _: "a", weights)),
    ],
    ids=["schedule", "clipped", "adafactor", "lamb", "rmsprop with momentum", "rprop", "by parameter", "by a function"],
)
def test_no_constant_rate_of_its_own(optimizer: Any) -> None:
    assert own_rate(optimizer) is None


EXAMPLE = EXAMPLES["mlp"]
X, Y = EXAMPLE.data(8)


def trained(program: converter.Program, **rate: Any) -> dict[str, np.ndarray]:
    """The weights after three steps."""
    with converter.runtime.TrainingSession(program.data) as session:
        for _ in range(3):
            session.train(X, Y, **rate)
        return session.parameters()


def by_optax(
    model: jax_frontend.Model, optimizer: optax.GradientTransformation, steps: int = 3
) -> dict[str, np.ndarray]:
    def loss(parameters: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(parameters, X), Y).mean()

    parameters = model.params
    state = optimizer.init(parameters)
    for _ in range(steps):
        updates, state = optimizer.update(jax.grad(loss)(parameters), state, parameters)
        parameters = optax.apply_updates(parameters, updates)
    return {name: np.asarray(leaf) for name, leaf in named_leaves(parameters).items()}


@pytest.mark.parametrize("make", [optax.sgd, optax.adam, lambda rate: optax.adamw(rate, weight_decay=0.1)])
def test_the_input_is_the_learning_rate_whoever_built_the_optimizer(make: Any) -> None:
    model = EXAMPLE.model()
    program = converter.build(model, optimizer=make(1e-3), check=False)
    assert program.manifest.learning_rate == pytest.approx(1e-3)
    for given, meant in (({}, 1e-3), ({"learning_rate": 1e-3}, 1e-3), ({"learning_rate": 0.02}, 0.02)):
        ours, theirs = trained(program, **given), by_optax(model, make(meant))
        for name, array in theirs.items():
            np.testing.assert_allclose(ours[name], array, rtol=1e-5, atol=1e-6, err_msg=f"{given}: {name}")


@pytest.mark.parametrize("make", [optax.adafactor, optax.rprop, lambda rate: optax.rmsprop(rate, momentum=0.9)])
def test_a_rate_that_cannot_be_told_is_as_it_was_built(make: Any) -> None:
    program = converter.build(EXAMPLE.model(), optimizer=make(1e-2), check=False)
    theirs = by_optax(EXAMPLE.model(), make(1e-2))
    for name, array in trained(program).items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-5, atol=1e-6)
    with pytest.warns(UserWarning, match=r"learning_rate=0.01 multiplies the rate that the optimizer was built with"):
        trained(program, learning_rate=0.01)


def test_a_schedule_runs_in_the_graph_and_the_input_multiplies_it() -> None:
    model, schedule = EXAMPLE.model(), optax.linear_schedule(0.1, 0.0, 3)
    program = converter.build(model, optimizer=optax.sgd(schedule), check=False)
    assert program.manifest.learning_rate == 1
    theirs = by_optax(model, optax.sgd(schedule))
    for name, array in trained(program).items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-5, atol=1e-6)


def test_a_multiple_of_one_is_as_it_was_built() -> None:
    program = converter.build(EXAMPLE.model(), optimizer=optax.adam(1e-3), check=False)
    with pytest.warns(UserWarning, match=r"learning_rate=1.0 is read as 0.001, the rate .* built with"):
        ours = trained(program, learning_rate=1.0)
    assert all(np.array_equal(array, ours[name]) for name, array in trained(program).items())


def test_a_function_of_the_step_gives_rates_whatever_their_value() -> None:
    program = converter.build(EXAMPLE.model(), optimizer=optax.sgd(1e-3), check=False)
    with converter.runtime.TrainingSession(program.data) as by_function, warnings.catch_warnings():
        warnings.simplefilter("error")
        by_function.fit(X, Y, epochs=2, learning_rate=lambda step: 0.5 + 0.5 * step, seed=0, progress=False)
        found = by_function.parameters()
    theirs = by_optax(EXAMPLE.model(), optax.sgd(lambda step: 0.5 + 0.5 * step), steps=2)
    for name, array in theirs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adamw", optax.adamw(1.0), optax.rmsprop(1.0), optax.chain(optax.scale(-1.0))])
def test_a_rate_of_one_is_none(optimizer: Any) -> None:
    assert converter.build(EXAMPLE.model(), optimizer=optimizer, check=False).manifest.learning_rate is None


@pytest.mark.parametrize(
    "optimizer", [optax.scale_by_adam(), optax.identity(), optax.chain(optax.scale_by_rms(), optax.scale(0.01))]
)
def test_what_goes_uphill_is_refused(optimizer: Any) -> None:
    with pytest.raises(UsageError, match=r"goes up the gradient: .* optax.scale_by_learning_rate"):
        converter.build(EXAMPLE.model(), optimizer=optimizer)


def test_weights_that_are_kept_positive_are_not_taken_for_going_uphill() -> None:
    converter.build(
        EXAMPLE.model(), optimizer=optax.chain(optax.sgd(0.1), optax.keep_params_nonnegative()), check=False
    )


def test_what_does_not_move_at_first_is_taken() -> None:
    """A warm-up from 0."""
    slow = optax.sgd(optax.linear_schedule(0.0, 1.0, 10))
    assert not jnp.any(slow.update(jnp.ones(2), slow.init(jnp.ones(2)))[0])
    converter.build(EXAMPLE.model(), optimizer=slow, check=False)
