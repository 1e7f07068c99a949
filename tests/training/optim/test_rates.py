"""A learning rate is never applied twice, or not at all. optax is the oracle of what a rate is."""

from __future__ import annotations

import re
import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import converter
import jax_frontend
from converter.support.errors import UsageError
from converter.training.optim.named import NAMED, NamedOptimizer
from converter.training.optim.rate import own_rate
from jax_frontend.model import named_leaves
from tests.runtime.programs import EXAMPLES
from tests.steps import assert_alike, stepped

MAKERS = [
    optax.sgd, optax.adam, optax.adamw, optax.rmsprop, optax.adagrad, optax.lion, optax.lamb, optax.yogi, optax.nadam,
    optax.radam, optax.adabelief, optax.adamax, optax.sm3,
]  # fmt: skip


@pytest.mark.parametrize(("make", "rate"), [(make, rate) for make in MAKERS for rate in (1e-3, 0.5, 1.0)])
def test_the_rate_is_found(make: Any, rate: float) -> None:
    assert own_rate(make(rate)) == pytest.approx(rate)
    assert own_rate(optax.chain(optax.clip_by_global_norm(1.0), make(rate))) == pytest.approx(rate)


def by_axes(weights: Any) -> Any:
    return jax.tree.map(lambda w: "a" if w.ndim > 1 else "b", weights)


NO_FACTOR = {
    "schedule": optax.adam(optax.cosine_decay_schedule(1e-3, 100)),
    "clipped": optax.chain(optax.adam(1e-3), optax.clip(0.1)),
    "a sum behind the rate": optax.adafactor(1e-2, weight_decay_rate=0.1),
    "a sum behind a rate of 1": optax.adafactor(1.0, momentum=0.9, weight_decay_rate=0.1),
    "a sum, scaled": optax.chain(optax.adafactor(1e-2, weight_decay_rate=0.1), optax.scale(0.5)),
    "clipped at a rate of 1": optax.chain(optax.scale(1.0), optax.clip(0.1), optax.scale(-1.0)),
    "fromage": optax.fromage(1.0),
    "prodigy": optax.contrib.prodigy(1.0),
    "schedule-free": optax.contrib.schedule_free_sgd(1.0),
    "rmsprop with momentum": optax.rmsprop(1e-2, momentum=0.9),
    "rprop": optax.rprop(1e-2),  # in its state
    "by parameter": optax.multi_transform({"a": optax.sgd(0.1), "b": optax.sgd(0.2)}, {"c": "a", "d": "b"}),
    "by axes": optax.multi_transform({"a": optax.sgd(1.0), "b": optax.sgd(0.1)}, by_axes),
}


@pytest.mark.parametrize("others", [optax.set_to_zero(), optax.adam(0.25)], ids=["stay", "move alike"])
def test_the_rate_of_groups_that_move_is_that_of_the_optimizer(others: Any) -> None:
    make = partial(optax.multi_transform, param_labels=by_axes)
    program = converter.build(EXAMPLE.model(), optimizer=make({"a": optax.sgd(0.25), "b": others}), check=False)
    assert program.manifest.learning_rate == 0.25
    compared(program, EXAMPLE.model(), make({"a": optax.sgd(0.25), "b": others}))


@pytest.mark.parametrize("name", NO_FACTOR)
def test_no_constant_rate_of_its_own(name: str) -> None:
    assert own_rate(NO_FACTOR[name]) is None


EXAMPLE = EXAMPLES["mlp"]
X, Y = EXAMPLE.data(8)


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


def compared(program: converter.Program, model: jax_frontend.Model, optimizer: Any, **rate: Any) -> None:
    """Three steps, with a rate or a factor of it as the session takes them."""
    found = stepped(program, [(X, Y)] * 3, **rate)
    assert_alike(found.parameters, by_optax(model, optimizer), rtol=1e-3, atol=2e-5)


#: Those whose rate is a factor of all that they add.
FACTORS = {
    "sgd": optax.sgd,
    "adam": optax.adam,
    "adamw": lambda rate: optax.adamw(rate, weight_decay=0.1),
    "adadelta": optax.adadelta,
    "adafactor": optax.adafactor,
    "lamb": optax.lamb,
    "clipped": lambda rate: optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(rate)),
}


@pytest.mark.quick
@pytest.mark.parametrize("built", [1e-3, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (1.0, 0.25))])
@pytest.mark.parametrize("name", FACTORS)
def test_the_rate_is_that_which_is_given_or_else_that_it_was_built_with(name: str, built: float) -> None:
    make, model = FACTORS[name], EXAMPLE.model()
    program = converter.build(model, optimizer=make(built), check=False)
    assert program.manifest.learning_rate == pytest.approx(built)
    assert program.manifest.running_rate is None
    compared(program, model, make(built))
    compared(program, model, make(1.0), learning_rate=1.0)
    compared(program, model, make(0.02), learning_rate=0.02)
    compared(program, model, make(0.5 * built), rate_scale=0.5)


IN_PROGRAM = {
    "adafactor": optax.adafactor(1e-2, weight_decay_rate=0.1),
    "rprop": optax.rprop(1e-2),
    "rmsprop": optax.rmsprop(1.0, momentum=0.9),
    "schedule": optax.sgd(optax.linear_schedule(1.0, 0.1, 3)),
    "injected": optax.inject_hyperparams(optax.sgd)(learning_rate=1.0),
    "by axes": optax.multi_transform({"a": optax.sgd(1.0), "b": optax.sgd(0.1)}, by_axes),
    "prodigy": optax.contrib.prodigy(1.0),
}


@pytest.mark.parametrize("name", IN_PROGRAM)
def test_a_rate_that_runs_in_the_program_is_as_it_was_built_and_none_is_taken_beside_it(name: str) -> None:
    program = converter.build(EXAMPLE.model(), optimizer=IN_PROGRAM[name], check=False)
    running = program.manifest.running_rate
    assert program.manifest.learning_rate is None
    assert running is not None
    (note,) = (note for note in program.notes if note.subject == "learning rate")
    assert note.status == "in the program"
    assert running.description in note.why
    compared(program, EXAMPLE.model(), IN_PROGRAM[name])
    for given in (1.0, 3e-3, lambda step: 0.1):
        with (
            converter.runtime.TrainingSession(program.data) as session,
            pytest.raises(UsageError, match=f"learning_rate: .* runs in it .{re.escape(running.description)}"),
        ):
            session.fit(X, Y, learning_rate=given)


def test_a_scale_multiplies_a_schedule() -> None:
    schedule = optax.linear_schedule(0.2, 0.1, 3)
    program = converter.build(EXAMPLE.model(), optimizer=optax.sgd(schedule), check=False)
    compared(program, EXAMPLE.model(), optax.sgd(lambda step: 0.5 * schedule(step)), rate_scale=0.5)


def test_a_function_of_the_step_gives_rates_whatever_their_value() -> None:
    program = converter.build(EXAMPLE.model(), optimizer=optax.sgd(1e-3), check=False)
    with converter.runtime.TrainingSession(program.data) as by_function, warnings.catch_warnings():
        warnings.simplefilter("error")
        by_function.fit(X, Y, epochs=2, learning_rate=lambda step: 0.5 + 0.5 * step, seed=0, progress=False)
        found = by_function.parameters()
    theirs = by_optax(EXAMPLE.model(), optax.sgd(lambda step: 0.5 + 0.5 * step), steps=2)
    for name, array in theirs.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMED)
def test_a_name_alone_has_a_rate_that_is_said(name: str) -> None:
    program = converter.build(EXAMPLE.model(), optimizer=name, check=False)
    assert program.manifest.learning_rate == pytest.approx(NAMED[name])
    (note,) = (note for note in program.notes if note.subject == "learning rate")
    assert note.status == "a default"
    assert note.why.startswith(f"{NAMED[name]:g}, ")
    make = optax.sgd if name == "momentum" else getattr(optax, name)
    options = {"momentum": 0.9} if name == "momentum" else {}
    compared(program, EXAMPLE.model(), make(NAMED[name], **options))


@pytest.mark.parametrize("make", [lambda tx: tx, lambda tx: optax.chain(optax.clip(1.0), tx)], ids=["alone", "chained"])
def test_adadelta_without_a_rate_descends_at_1_and_says_so(make: Any) -> None:
    program = converter.build(EXAMPLE.model(), optimizer=make(optax.adadelta()), check=False)
    assert program.manifest.learning_rate == 1
    assert [note.status for note in program.notes if note.subject == "learning rate"] == ["a default"]
    compared(program, EXAMPLE.model(), make(optax.adadelta(1.0)))


@pytest.mark.parametrize(("options", "rate"), [({}, 1.0), ({"learning_rate": 0.5}, 0.5), ({"learning_rate": 1.0}, 1.0)])
def test_a_table_of_options_may_name_the_rate(options: dict[str, float], rate: float) -> None:
    program = converter.build(EXAMPLE.model(), optimizer=NamedOptimizer("adadelta", options), check=False)
    assert program.manifest.learning_rate == rate
    assert [note.status for note in program.notes if note.subject == "learning rate"] == ["a default"] * (not options)


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


def test_an_update_that_is_no_function_of_python_is_taken() -> None:
    class Descent:
        def __call__(self, gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            return jax.tree.map(lambda g: -0.3 * g, gradients), state

    optimizer = optax.GradientTransformation(lambda params: (), Descent())
    program = converter.build(EXAMPLES["mlp"].model(), optimizer=optimizer, batch=4)
    assert (program.manifest.learning_rate is None) != (program.manifest.running_rate is None)
