"""The optimizer that a model was compiled with: ten steps against Keras' own training step on JAX."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras import losses, optimizers

import converter
from converter.frontends.keras.compiled import read_compiled
from converter.frontends.keras.schedules import schedule_of
from converter.runtime import RateWarning
from converter.support.errors import UsageError
from tests.keras_frontend.compiled import BATCH, LABELS, VALUES, X, net, trained_alike

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda: optimizers.Adam(0.01),
    "adam, large epsilon": lambda: optimizers.Adam(0.01, beta_1=0.8, beta_2=0.9, epsilon=0.01),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "nadam": lambda: optimizers.Nadam(0.01, beta_1=0.8),
    "adamax": lambda: optimizers.Adamax(0.01, epsilon=0.01, weight_decay=0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.01),
    "rmsprop, centered": lambda: optimizers.RMSprop(0.01, rho=0.8, momentum=0.9, centered=True),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "lion": lambda: optimizers.Lion(0.01, weight_decay=0.1),
    "amsgrad": lambda: optimizers.Adam(0.1, beta_2=0.6, amsgrad=True),
    "lamb": lambda: optimizers.Lamb(0.01),
    "muon": lambda: optimizers.Muon(0.02, adam_lr_ratio=0.5, weight_decay=0.2),
    "muon, named layers by Adam": lambda: optimizers.Muon(0.02, exclude_layers=["head"], nesterov=False, rms_rate=None),
    "clipped": lambda: optimizers.SGD(0.5, clipnorm=0.1),
    "clipped as one": lambda: optimizers.SGD(0.5, global_clipnorm=0.1),
    "clipped by value": lambda: optimizers.Adam(0.01, clipvalue=0.01),
}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_the_compiled_optimizer_is_the_default(case: str) -> None:
    model = net()
    model.compile(OPTIMIZERS[case](), losses.SparseCategoricalCrossentropy(from_logits=True))
    program = converter.build(model, batch=BATCH)
    rate = float(model.optimizer.learning_rate)
    assert program.manifest.learning_rate == rate
    assert program.manifest.optimizer == f"{type(model.optimizer).__name__} of Keras"
    trained_alike(program, model, LABELS, rate)


#: Those whose updates are not proportional to the rate, which is a part of the program.
STEPWISE: dict[str, Callable[[], Any]] = {
    "lamb": lambda: optimizers.Lamb(0.1, weight_decay=0.5),
    "adafactor": lambda: optimizers.Adafactor(0.6, clip_threshold=0.5, weight_decay=0.1),
    "ftrl": lambda: optimizers.Ftrl(0.3),
    "ftrl, regularized": lambda: optimizers.Ftrl(
        0.3,
        -0.4,
        l1_regularization_strength=0.02,
        l2_regularization_strength=0.1,
        l2_shrinkage_regularization_strength=0.05,
        beta=0.2,
        weight_decay=0.1,
    ),
    "schedule-free": lambda: optimizers.ScheduleFreeAdamW(0.05, warmup_steps=4, weight_decay=0.1),
    "a schedule": lambda: optimizers.Ftrl(optimizers.schedules.ExponentialDecay(0.3, 4, 0.5), clipnorm=0.2),
    "a schedule of lamb": lambda: optimizers.Lamb(optimizers.schedules.ExponentialDecay(0.03, 4, 0.5)),
}


@pytest.mark.parametrize("case", STEPWISE)
def test_a_rate_that_is_more_than_a_factor_is_part_of_the_program(case: str) -> None:
    model = net()
    model.compile(STEPWISE[case](), losses.SparseCategoricalCrossentropy(from_logits=True))
    program = converter.build(model, batch=BATCH)
    assert program.manifest.learning_rate is None
    trained_alike(program, model, LABELS, None)


def test_what_does_not_decay_is_that_of_the_live_model() -> None:
    """In `.keras` files there is nothing of it."""
    model, optimizer = net(), optimizers.AdamW(0.05, weight_decay=0.8)
    model.layers[0].bias.assign(np.linspace(-1, 1, 7))
    optimizer.exclude_from_weight_decay(var_list=[model.layers[1].kernel], var_names=["bias"])
    model.compile(optimizer, "mse")
    program = converter.build(model, batch=BATCH)
    assert not [note for note in program.notes if note.status == "left out"]
    trained_alike(program, model, VALUES, 0.05)


def test_what_a_live_optimizer_knows_is_said(tmp_path: Path) -> None:
    model, optimizer = net(), optimizers.Lamb(0.01, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer, "mse")
    model.train_on_batch(X, VALUES)
    said = [note.why for note in converter.build(model, batch=2, check=False).notes if note.status == "left out"]
    assert ["exclude_from_weight_decay" in why and "head/bias" in why for why in said] == [True, False]
    assert "after 1 steps of training in Keras: it begins anew" in said[1]
    model.save(tmp_path / "model.keras")
    from_file = converter.build(tmp_path / "model.keras", batch=2, check=False).notes
    assert said[1] in [note.why for note in from_file]


schedules = optimizers.schedules
SCHEDULES: dict[str, Any] = {
    "exponential": schedules.ExponentialDecay(0.3, 4, 0.5),
    "exponential, stairs": schedules.ExponentialDecay(0.3, 4, 0.5, staircase=True),
    "inverse time": schedules.InverseTimeDecay(0.3, 3, 0.7),
    "inverse time, stairs": schedules.InverseTimeDecay(0.3, 3, 0.7, staircase=True),
    "piecewise": schedules.PiecewiseConstantDecay([2, 5], [0.3, 0.2, 0.05]),
    "polynomial": schedules.PolynomialDecay(0.3, 6, 0.01, power=2.0),
    "polynomial, again and again": schedules.PolynomialDecay(0.3, 4, 0.01, cycle=True),
    "cosine": schedules.CosineDecay(0.3, 6, alpha=0.1),
    "cosine, warmed up": schedules.CosineDecay(0.01, 6, warmup_target=0.3, warmup_steps=3),
    "restarts": schedules.CosineDecayRestarts(0.3, 3, t_mul=1.0, m_mul=0.9, alpha=0.1),
    "restarts, ever longer": schedules.CosineDecayRestarts(0.3, 3, t_mul=2.0, m_mul=0.8),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_a_schedule_gives_the_rates_of_keras(case: str) -> None:
    rate = schedule_of(schedules.serialize(SCHEDULES[case]))
    found = [float(rate(np.int32(count))) for count in range(14)]
    np.testing.assert_allclose(found, [float(SCHEDULES[case](count)) for count in range(14)], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("case", ["cosine, warmed up", "piecewise", "restarts, ever longer"])
def test_a_compiled_schedule_runs_in_the_program(case: str) -> None:
    model = net()
    model.compile(optimizers.SGD(SCHEDULES[case], weight_decay=0.1), "mse")
    program = converter.build(model, batch=BATCH)
    assert program.manifest.learning_rate is None
    with pytest.warns(RateWarning, match="has ended") if case == "cosine, warmed up" else nullcontext():
        trained_alike(program, model, VALUES, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda rate: optimizers.SGD(rate, momentum=0.9),
        lambda rate: optimizers.SGD(rate, momentum=0.8, nesterov=True, weight_decay=0.1),
        lambda rate: optimizers.RMSprop(rate, momentum=0.7, weight_decay=0.1),
    ],
    ids=["sgd", "nesterov", "rmsprop"],
)
def test_momentum_holds_steps_at_the_rates_at_which_they_were_taken(make: Callable[[Any], Any]) -> None:
    model = net()
    model.compile(make(schedules.PiecewiseConstantDecay([2, 5], [0.05, 0.002, 0.01])), "mse")
    trained_alike(converter.build(model, batch=BATCH), model, VALUES, None)


class OwnSchedule(schedules.LearningRateSchedule):
    initial_learning_rate = 0.003

    def __call__(self, step: Any) -> Any:
        return self.initial_learning_rate / (1.0 + step)

    def get_config(self) -> dict[str, Any]:
        return {"initial_learning_rate": self.initial_learning_rate}


@pytest.mark.parametrize(
    ("optimizer", "why", "rate"),
    [
        (optimizers.SGD(OwnSchedule()), "the schedule OwnSchedule (it is not one of Keras): its first rate", 0.003),
        (optimizers.SGD(0.1, use_ema=True), "compile with ema_overwrite_frequency=N", 0.1),
    ],
    ids=["schedule", "ema"],
)
def test_what_of_the_optimizer_is_not_used_is_said(optimizer: Any, why: str, rate: float) -> None:
    model = net()
    model.compile(optimizer, "mse")
    program = converter.build(model, batch=2, check=False)
    assert [note.status for note in program.notes if why in note.why] == ["left out"]
    assert program.manifest.learning_rate == pytest.approx(rate)


class Own(optimizers.SGD):
    pass


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        (
            optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD())),
            "nothing here does the arithmetic of Keras' MultiOptimizer",
        ),
        (optimizers.Muon(exclude_layers=["(a+)+b"]), "Muon: its exclude_layers are patterns"),
        (Own(), "Own is not one of Keras"),
    ],
    ids=["multi", "pattern", "own"],
)
def test_an_optimizer_that_cannot_be_taken_over_is_said(optimizer: Any, why: str) -> None:
    model = net()
    model.compile(optimizer, "mse")
    with pytest.raises(UsageError, match=f"an optimizer that cannot be taken over, {why}.*Name one"):
        converter.build(model, batch=2)
    assert converter.build(model, optimizer="adam", batch=2, check=False).manifest.optimizer == "adam"


def test_what_is_kept_of_loss_and_optimizer_is_said() -> None:
    model = net()
    loss = losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    schedule = optimizers.schedules.CosineDecay(1e-3, 500)
    model.compile(optimizers.AdamW(schedule, weight_decay=1e-4, clipnorm=0.5, gradient_accumulation_steps=2), loss)
    program = converter.build(model, batch=2, check=False)
    said = {note.subject: note.why for note in program.notes if note.status == "as compiled"}
    assert said["loss"].startswith("categorical_crossentropy with label smoothing 0.1;")
    assert "CosineDecay(initial_learning_rate=0.001, decay_steps=500" in said["optimizer"]
    assert "weight decay 0.0001, clipnorm 0.5, gradient accumulation steps 2; name" in said["optimizer"]


@pytest.mark.parametrize(("name", "value"), [("momentum", "abc"), ("nesterov", [1]), ("clipnorm", {})])
def test_a_setting_that_an_optimizer_has_not_is_not_read(name: str, value: Any) -> None:
    """Of a stranger's file; Adam has no momentum, and none of its settings is text."""
    entry = optimizers.serialize(optimizers.Adam(1e-3))
    config = {"optimizer": {**entry, "config": {**entry["config"], name: value}}, "loss": "mse"}
    found = read_compiled(config)
    assert found is not None
    assert found.optimizer is not None or found.optimizer_problem is not None
