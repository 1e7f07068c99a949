"""A training whose learning rate is 0 says so; that of a schedule is 0 from where optax has it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import converter
from converter.runtime import RateWarning, TrainingSession
from tests.runtime.programs import EXAMPLES

X, Y = EXAMPLES["mlp"].data(8)
STEPS = 3
ENDING: dict[str, Any] = {
    "linear": optax.sgd(optax.linear_schedule(0.1, 0.0, STEPS)),
    "cosine": optax.adam(optax.cosine_decay_schedule(1e-3, STEPS)),
    "warmed up": optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 1, STEPS)),
    "one's own": optax.sgd(lambda step: 0.1 * (step < STEPS)),
    "injected": optax.inject_hyperparams(optax.adam)(learning_rate=optax.cosine_decay_schedule(1e-3, STEPS)),
    "gathered": optax.MultiSteps(optax.adam(optax.cosine_decay_schedule(1e-3, STEPS)), 2).gradient_transformation(),
}
LASTING: dict[str, Any] = {
    "to a rate": optax.adam(optax.cosine_decay_schedule(1e-3, STEPS, alpha=0.1)),
    "for ever": optax.sgd(optax.exponential_decay(0.1, 1000, 0.99)),
    "some weights": optax.multi_transform(
        {"a": optax.sgd(optax.linear_schedule(0.1, 0.0, STEPS)), "b": optax.sgd(0.1)},
        lambda weights: {"layers": [{"w": "a", "b": "b"} for _ in weights["layers"]]},
    ),
}


def built(optimizer: Any, state: str = "variables") -> converter.Program:
    return converter.build(EXAMPLES["mlp"].model(), optimizer=optimizer, batch=8, state=state, check=False)


def moved(session: TrainingSession) -> bool:
    before = session.parameters()
    session.train(X, Y)
    return any(not np.array_equal(before[name], array) for name, array in session.parameters().items())


@pytest.mark.parametrize("name", ENDING)
def test_the_end_of_a_schedule_is_said_before_the_first_step_that_changes_nothing(name: str, tmp_path: Path) -> None:
    program = built(ENDING[name])
    running = program.manifest.running_rate
    assert running is not None
    assert running.zero_from == STEPS
    (note,) = (note.why for note in program.notes if note.subject == "learning rate")
    assert f"from step {STEPS} on it is 0" in note
    assert "constant rate" in note
    steps = STEPS * (2 if name == "gathered" else 1)
    with TrainingSession(program.data) as session:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            changes = [moved(session) for _ in range(steps)]
        assert any(changes)
        with pytest.warns(RateWarning, match=r"runs in the program .* has ended"):
            assert not moved(session)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            session.train(X, Y)  # it was said
        session.save(tmp_path / "ended.state")
    with TrainingSession(program.data) as session:
        session.restore(tmp_path / "ended.state")
        with pytest.warns(RateWarning, match="has ended"):
            session.fit(X, Y, epochs=2, progress=False)


@pytest.mark.parametrize("name", LASTING)
def test_a_schedule_that_goes_on_is_not_said_to_end(name: str) -> None:
    program = built(LASTING[name])
    assert program.manifest.running_rate is not None
    assert program.manifest.running_rate.zero_from is None
    with TrainingSession(program.data) as session, warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2 * STEPS):
            assert moved(session)


def test_a_reset_begins_the_schedule_anew() -> None:
    with TrainingSession(built(ENDING["cosine"], "stateless").data) as session:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            session.fit(X, Y, epochs=STEPS, progress=False)
            session.reset()
            session.fit(X, Y, epochs=STEPS, progress=False)
        with pytest.warns(RateWarning):
            session.fit(X, Y, epochs=1, progress=False)


def test_an_optimizer_of_rate_0_is_said_to_change_nothing() -> None:
    program = built(optax.sgd(0.0))
    with TrainingSession(program.data) as session, pytest.warns(RateWarning):
        assert not moved(session)


def test_a_rate_of_0_that_is_given_is_said() -> None:
    with TrainingSession(built("adam").data) as session:
        for given in ({"learning_rate": 0.0}, {"rate_scale": 0.0}, {"learning_rate": 0}):
            with pytest.warns(RateWarning, match="the learning rate is 0"):
                session.train(X, Y, **given)
        with pytest.warns(RateWarning, match="is 0 in steps 1 and 2"):
            session.fit(X, Y, epochs=4, learning_rate=lambda step: 0.1 * (step == 0), progress=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            session.fit(X, Y, epochs=3, learning_rate=lambda step: 0.1 * step, progress=False)
