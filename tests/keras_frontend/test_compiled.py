"""What a model was compiled with is what it trains with: ten steps against Keras' own training step on JAX."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, losses, optimizers

import converter
from converter.errors import UsageError
from keras_frontend.compiled import read_compiled
from keras_frontend.schedules import schedule_of

BATCH, FEATURES, CLASSES, STEPS = 6, 5, 4, 10
RNG = np.random.default_rng(0)
X = RNG.standard_normal((BATCH, FEATURES)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, BATCH).astype(np.int32)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[LABELS]
VALUES = RNG.standard_normal((BATCH, CLASSES)).astype(np.float32)
BITS = RNG.integers(0, 2, (BATCH, CLASSES)).astype(np.float32)


def net(activation: str | None = None) -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(7, activation="tanh"),
            layers.Dense(CLASSES, activation=activation, name="head"),
        ]
    )


def trained_alike(program: converter.Program, model: Any, y: np.ndarray, rate: float, rtol: float = 1e-4) -> None:
    """Ten steps of both; the model is compiled."""
    expected = [float(np.ravel(model.train_on_batch(X, y))[0]) for _ in range(STEPS)]
    with converter.runtime.TrainingSession(program.data) as session:
        found = [session.train(X, y, learning_rate=rate) for _ in range(STEPS)]
        np.testing.assert_allclose(found, expected, rtol=rtol)
        for name, array in session.parameters().items():  # Keras drops the outermost name of models that it loads
            (weight,) = (w for w in model.weights if w.path.endswith(name))
            np.testing.assert_allclose(array, weight.numpy(), rtol=1e-3, atol=1e-5)


LOSSES: dict[str, tuple[str | None, Any, np.ndarray]] = {
    "sparse": ("softmax", "sparse_categorical_crossentropy", LABELS),
    "sparse of logits": (None, losses.SparseCategoricalCrossentropy(from_logits=True), LABELS),
    "categorical, smoothed": ("softmax", losses.CategoricalCrossentropy(label_smoothing=0.1), ONE_HOT),
    "categorical of logits": (None, losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2), ONE_HOT),
    "binary": ("sigmoid", "binary_crossentropy", BITS),
    "binary of logits, smoothed": (None, losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.2), BITS),
    "binary focal": ("sigmoid", losses.BinaryFocalCrossentropy(True, 0.3, 1.5), BITS),
    "mse": (None, "mse", VALUES),
    "mae, a function": (None, losses.mean_absolute_error, VALUES),
    "percentages": (None, "mape", 50 + VALUES),
    "logarithms": ("relu", losses.MeanSquaredLogarithmicError(), BITS),
    "counts": ("softplus", losses.Poisson(), 3 * BITS),
    "huber": (None, "huber", VALUES),
    "mse, in a list": (None, ["mse"], VALUES),
    "log cosh": (None, losses.LogCosh(), VALUES),
    "cosine": (None, losses.CosineSimilarity(), VALUES),
    "divergence": ("softmax", "kl_divergence", ONE_HOT),
}


@pytest.mark.parametrize("case", LOSSES)
def test_the_compiled_loss_is_the_default(case: str, tmp_path: Path) -> None:
    activation, loss, y = LOSSES[case]
    model = net(activation)
    model.compile(optimizers.SGD(0.1), loss)
    model.save(tmp_path / "model.keras")
    program = converter.build(tmp_path / "model.keras", batch=BATCH)
    assert [note.status for note in program.notes if note.subject == "loss"] == ["as compiled"]
    trained_alike(program, model, y, 0.1)


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


def test_what_is_named_wins() -> None:
    model = net("softmax")
    model.compile("adam", "sparse_categorical_crossentropy")
    program = converter.build(model, loss="mse", optimizer="sgd", batch=2, check=False)
    assert (program.manifest.loss, program.manifest.optimizer, program.notes) == ("mse", "sgd", ())


def own_loss(y: Any, z: Any) -> Any:
    return (y - z) ** 2


@pytest.mark.parametrize(
    ("loss", "options", "why"),
    [
        (own_loss, {}, "own_loss"),
        (lambda y, z: (y - z) ** 2, {}, "__lambda__ is not a loss of Keras"),
        (losses.CosineSimilarity(axis=0), {}, "another axis than the last"),
        (losses.MeanSquaredError(reduction="sum"), {}, "reduction 'sum' is no mean"),
        (losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0), {}, "ignore_class"),
        (losses.CategoricalHinge(), {}, "no loss 'CategoricalHinge'"),
        ("hinge", {}, "-1 or 1"),
        ("mse", {"loss_weights": [2.0]}, "loss_weights"),
        ({"a": "mse", "b": "mae"}, {}, "a loss for each output"),
    ],
    ids=["own", "lambda", "axis", "sum", "ignored class", "unknown", "hinge", "weights", "dict"],
)
def test_a_loss_that_cannot_be_taken_over_is_said(loss: Any, options: dict[str, Any], why: str) -> None:
    model = net()
    model.compile("sgd", loss, **options)
    with pytest.raises(UsageError, match=f"compiled with a loss that cannot be taken over: .*{why}.*Name one"):
        converter.build(model, batch=2)
    assert converter.build(model, loss="mse", batch=2, check=False).manifest.loss == "mse"


def test_options_that_no_file_holds_are_those_of_the_live_model(tmp_path: Path) -> None:
    model = net()
    model.compile(optimizers.SGD(0.1), losses.Huber(delta=0.2))
    trained_alike(converter.build(model, batch=BATCH), model, VALUES, 0.1)
    model.save(tmp_path / "model.keras")
    with pytest.raises(UsageError, match="does not store the delta"):
        converter.build(tmp_path / "model.keras", batch=2)


def test_what_a_live_optimizer_knows_is_said(tmp_path: Path) -> None:
    model, optimizer = net(), optimizers.AdamW(0.01)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer, "mse")
    model.train_on_batch(X, VALUES)
    said = [note.why for note in converter.build(model, batch=2, check=False).notes if note.status == "left out"]
    assert ["exclude_from_weight_decay" in why and "head/bias" in why for why in said] == [True, False]
    assert "after 1 steps of training in Keras: it begins anew" in said[1]
    model.save(tmp_path / "model.keras")
    from_file = converter.build(tmp_path / "model.keras", batch=2, check=False).notes
    assert said[1] in [note.why for note in from_file]


def test_a_link_that_keras_applies_twice_is_said() -> None:
    model = net("softmax")
    model.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True))
    assert (
        sum("Keras applies the softmax twice" in n.why for n in converter.build(model, batch=2, check=False).notes) == 1
    )


def test_probabilities_that_are_none_are_refused() -> None:
    model = net()
    model.compile("sgd", "sparse_categorical_crossentropy")  # from_logits=False, and there is no softmax
    with pytest.raises(UsageError, match="from_logits=False, and the model does not end in a softmax"):
        converter.build(model, batch=2)


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
    assert program.manifest.learning_rate == 1
    trained_alike(program, model, VALUES, 1.0)


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
        (optimizers.SGD(0.1, use_ema=True), "moving average of the weights", 0.1),
        (optimizers.SGD(0.1, gradient_accumulation_steps=4), "gradient_accumulation_steps", 0.1),
    ],
    ids=["schedule", "ema", "accumulation"],
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
        (optimizers.Ftrl(), "nothing here does the arithmetic of Keras' Ftrl"),
        (optimizers.Adam(amsgrad=True), "Adam: optax' AMSGrad"),
        (Own(), "Own is not one of Keras"),
    ],
    ids=["ftrl", "amsgrad", "own"],
)
def test_an_optimizer_that_cannot_be_taken_over_is_said(optimizer: Any, why: str) -> None:
    model = net()
    model.compile(optimizer, "mse")
    with pytest.raises(UsageError, match=f"an optimizer that cannot be taken over, {why}.*Name one"):
        converter.build(model, batch=2)
    assert converter.build(model, optimizer="adam", batch=2, check=False).manifest.optimizer == "adam"


def test_metrics_that_are_not_computed_are_said() -> None:
    model = net()
    model.compile("sgd", "mse", metrics=["mae"])
    assert "metrics" in [note.subject for note in converter.build(model, batch=2, check=False).notes]


@pytest.mark.parametrize(
    "config",
    [
        {"optimizer": 3, "loss": 3},
        {"optimizer": {"class_name": "SGD", "module": "os", "config": {}}, "loss": [["mse"]]},
        {"optimizer": {"class_name": "SGD", "module": "keras.optimizers", "config": {"momentum": "0.9"}}, "loss": {}},
        {"optimizer": {"class_name": ["SGD"], "config": []}, "loss": {"class_name": "function", "config": ["mse"]}},
        {"optimizer": {"class_name": "Adam", "module": "keras.optimizers", "config": {"epsilon": float("nan")}}},
        {"loss": {"class_name": "Huber", "module": "keras.losses", "config": {"delta": float("inf")}}},
        {"loss": {"class_name": "Huber", "module": "keras.losses", "config": {"delta": [1]}}},
        {"loss": {"class_name": "function", "module": "subprocess", "config": "mse", "registered_name": "function"}},
        {"optimizer": {"class_name": "LossScaleOptimizer", "module": "keras.optimizers", "config": {}}},
    ],
)
def test_a_configuration_of_any_kind_is_read_without_harm(config: dict[str, Any]) -> None:
    compiled = read_compiled(config)
    assert compiled is not None
    assert compiled.loss is None
    assert compiled.optimizer is None


@pytest.mark.parametrize("loss", [{"head": "huber"}, ["huber"], "huber"])
def test_the_loss_of_the_only_output_is_the_models(loss: Any) -> None:
    compiled = read_compiled({"loss": loss})
    assert compiled is not None
    assert compiled.loss is not None
    assert compiled.loss.name == "huber"


@pytest.mark.parametrize("config", [None, {}, [], "adam"])
def test_no_configuration(config: Any) -> None:
    assert read_compiled(config) is None
