"""The loss that a model was compiled with: ten steps against Keras' own training step on JAX."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, losses, optimizers

import converter
from converter.frontends.keras.compiled import read_compiled
from converter.support.errors import UsageError
from tests.keras_frontend.compiled import (
    BATCH,
    BITS,
    CLASSES,
    FEATURES,
    LABELS,
    ONE_HOT,
    RNG,
    STEPS,
    VALUES,
    X,
    net,
    trained_alike,
)
from tests.steps import stepped

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
    "hinge": (None, "hinge", 2 * BITS - 1),
    "squared hinge": ("tanh", losses.SquaredHinge(), 2 * BITS - 1),
    "categorical hinge": (None, losses.CategoricalHinge(), ONE_HOT),
    "generalized": ("softmax", losses.CategoricalGeneralizedCrossEntropy(0.6), LABELS),
    "dice of the batch": ("sigmoid", losses.Dice(), BITS),
    "dice of rows": ("sigmoid", losses.Dice(axis=-1), BITS),
    "tversky": ("sigmoid", losses.Tversky(0.3, 0.7, axis=(1,)), BITS),
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


def test_what_is_named_wins() -> None:
    model = net("softmax")
    model.compile("adam", "sparse_categorical_crossentropy")
    program = converter.build(model, loss="mse", optimizer="sgd", batch=2, check=False)
    assert (program.manifest.loss, program.manifest.optimizer) == ("mse", "sgd")
    assert [(note.subject, note.status) for note in program.notes] == [("learning rate", "a default")]


def own_loss(y: Any, z: Any) -> Any:
    return (y - z) ** 2


@pytest.mark.parametrize(
    ("loss", "options", "why"),
    [
        (own_loss, {}, "own_loss"),
        (lambda y, z: (y - z) ** 2, {}, "__lambda__ is not a loss of Keras"),
        (losses.CosineSimilarity(axis=0), {}, "another axis than the last"),
        (losses.MeanSquaredError(reduction=None), {}, "reduction 'None' is neither a mean nor a sum"),
        (losses.Circle(), {}, "no loss 'Circle'"),
        (losses.CTC(), {}, "does not say how long the labels are"),
        (losses.Dice(reduction="sum"), {}, "compile the loss with its mean"),
        ("mse", {"loss_weights": [float("inf")]}, "loss_weights"),
        ({"a": "mse", "b": "mae"}, {}, "a loss for each output"),
    ],
    ids=["own", "lambda", "axis", "none", "unknown", "ctc", "dice", "weights", "dict"],
)
def test_a_loss_that_cannot_be_taken_over_is_said(loss: Any, options: dict[str, Any], why: str) -> None:
    model = net()
    model.compile("sgd", loss, **options)
    with pytest.raises(UsageError, match=f"compiled with a loss that cannot be taken over: .*{why}.*Name one"):
        converter.build(model, batch=2)
    assert converter.build(model, loss="mse", batch=2, check=False).manifest.loss == "mse"


WEIGHED: dict[str, tuple[Any, np.ndarray, dict[str, Any]]] = {
    "a sum": (losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"), LABELS, {}),
    "a weighed sum": (losses.MeanSquaredError(reduction="sum"), VALUES, {"loss_weights": [0.3]}),
    "a weight": ("mae", VALUES, {"loss_weights": 2.5}),
    "an ignored label": (losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1), LABELS, {}),
    "an ignored label beyond the others": (
        losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1, reduction="sum"),
        np.where(LABELS == 1, -1, LABELS),
        {},
    ),
}


@pytest.mark.parametrize("case", WEIGHED)
def test_sums_weights_and_ignored_labels(case: str) -> None:
    """Beside a regularizer, which none of them touches."""
    loss, y, options = WEIGHED[case]
    model = net()
    model.layers[0].kernel.regularizer = keras.regularizers.L2(0.01)
    model.compile(optimizers.SGD(0.05), loss, **options)
    program = converter.build(model, batch=BATCH)
    (why,) = (note.why for note in program.notes if note.subject == "loss")
    assert ("the sum over the rows" in why) == (getattr(loss, "reduction", "mean") == "sum")
    trained_alike(program, model, y, 0.05)


def test_places_are_summed_and_ignored(tmp_path: Path) -> None:
    """Of segmentation, where a label says that nobody knows; from a file."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4, 3)), layers.Dense(5, activation="tanh"), layers.Dense(CLASSES)])
    x = RNG.standard_normal((BATCH, 4, 3)).astype(np.float32)
    y = RNG.integers(0, CLASSES, (BATCH, 4)).astype(np.int32)
    y[RNG.random(y.shape) < 0.4] = 255
    for reduction in ("sum", "mean"):
        loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255, reduction=reduction)
        model.compile(optimizers.SGD(0.02), loss)
        model.save(tmp_path / "model.keras")
        program = converter.build(tmp_path / "model.keras", batch=BATCH)
        expected = [float(np.ravel(model.train_on_batch(x, y))[0]) for _ in range(3)]
        np.testing.assert_allclose(stepped(program, [(x, y)] * 3, 0.02).losses, expected, rtol=1e-4)


def test_a_short_batch_of_a_sum_is_the_sum_of_its_rows() -> None:
    model = net()
    model.compile(optimizers.SGD(0.05), losses.MeanSquaredError(reduction="sum"))
    program = converter.build(model, batch=BATCH)
    expected = [float(np.ravel(model.train_on_batch(X[:4], VALUES[:4]))[0]) for _ in range(3)]
    found = stepped(program, [(X[:4], VALUES[:4])] * 3, 0.05).losses
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_sums_and_weights_of_several_outputs() -> None:
    keras.utils.set_random_seed(1)
    x = keras.Input((FEATURES,))
    h = layers.Dense(6, activation="tanh")(x)
    model = keras.Model(x, [layers.Dense(CLASSES, name="kind")(h), layers.Dense(CLASSES, name="size")(h)])
    kinds = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=2)
    both = {"kind": kinds, "size": losses.MeanSquaredError(reduction="sum")}
    model.compile(optimizers.SGD(0.05), both, loss_weights={"kind": 2.0, "size": 0.3})
    program = converter.build(model, batch=BATCH)
    y = {"kind": LABELS, "size": VALUES}
    with converter.runtime.TrainingSession(program.data) as session:
        before = session.evaluate(X, y)
        expected = [model.train_on_batch(X, [LABELS, VALUES], return_dict=True)["loss"] for _ in range(STEPS)]
        found = [session.train(X, y, learning_rate=0.05) for _ in range(STEPS)]
    np.testing.assert_allclose(found, np.ravel(expected), rtol=1e-4)
    np.testing.assert_allclose(before["loss"], 2 * before["kind_loss"] + 0.3 * before["size_loss"], rtol=1e-6)


def test_a_sum_is_not_taken_in_parts() -> None:
    model = net()
    model.compile("sgd", losses.MeanSquaredError(reduction="sum"))
    with pytest.raises(UsageError, match=r"sum of its rows.*cannot be taken in parts: leave micro_batch"):
        converter.build(model, batch=4, micro_batch=2)


def test_options_that_no_file_holds_are_those_of_the_live_model(tmp_path: Path) -> None:
    model = net()
    model.compile(optimizers.SGD(0.1), losses.Huber(delta=0.2))
    trained_alike(converter.build(model, batch=BATCH), model, VALUES, 0.1)
    model.save(tmp_path / "model.keras")
    with pytest.raises(UsageError, match="does not store the delta"):
        converter.build(tmp_path / "model.keras", batch=2)


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
