"""Metrics beside the loss: Keras' and scikit-learn's own numbers, for any number of rows and any weights."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import converter
import jax_frontend
from converter.driver.program import Program
from converter.runtime import TrainingSession
from converter.support.errors import UsageError

BATCH, ROWS, FEATURES, CLASSES = 4, 11, 3, 7
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, FEATURES)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, ROWS).astype(np.int32)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[LABELS]
VALUES = RNG.standard_normal((ROWS, CLASSES)).astype(np.float32)
BITS = RNG.integers(0, 2, (ROWS, 1)).astype(np.float32)
WEIGHT = np.concatenate([RNG.random(ROWS - 2), [0, 3]]).astype(np.float32)
W = RNG.standard_normal((FEATURES, CLASSES)).astype(np.float32)
m = keras.metrics


def own(outputs: Any, y: Any) -> Any:
    """A loss that counts nothing."""
    return jnp.mean(outputs, -1) + 0 * jnp.mean(jnp.asarray(y, jnp.float32).reshape(outputs.shape[0], -1), -1)


@functools.cache
def program(outputs: int = CLASSES, loss: Any = own, y: str = "float32") -> Program:
    model = jax_frontend.Model(
        lambda p, x: x @ p["w"], {"w": W[:, :outputs]}, [jax.ShapeDtypeStruct((1, FEATURES), jnp.float32)]
    )
    targets = jax.ShapeDtypeStruct((1,) if y == "int32" else (1, outputs), y) if loss is own else None
    return converter.build(model, loss=loss, y=targets, batch=BATCH, check=False)


def found(built: Program, y: np.ndarray, metrics: Any, weight: Any = WEIGHT) -> dict[str, float]:
    with TrainingSession(built.data) as session:
        return session.evaluate(X, y, weight, metrics=metrics)


@pytest.mark.parametrize(
    ("name", "y", "theirs"),
    [
        ("accuracy", LABELS, m.SparseCategoricalAccuracy()),
        ("acc", ONE_HOT, m.CategoricalAccuracy()),
        ("accuracy", BITS, m.BinaryAccuracy()),
        ("binary_accuracy", (VALUES > 0).astype(np.float32), m.BinaryAccuracy()),
        ("SparseCategoricalAccuracy", LABELS, m.SparseCategoricalAccuracy()),
        ("top_3", LABELS, m.SparseTopKCategoricalAccuracy(3)),
        ("top_k_categorical_accuracy", ONE_HOT, m.TopKCategoricalAccuracy()),
        ("mae", VALUES, m.MeanAbsoluteError()),
        ("mean_squared_error", VALUES, m.MeanSquaredError()),
    ],
)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weights"])
def test_names_are_those_of_keras(name: str, y: np.ndarray, theirs: Any, weight: Any) -> None:
    built = program(y.shape[-1] if y.ndim > 1 else CLASSES, y=str(y.dtype))
    theirs.reset_state()
    theirs.update_state(y, X @ W[:, : y.shape[-1] if y.ndim > 1 else CLASSES], weight)
    assert found(built, y, [name], weight)[name] == pytest.approx(float(theirs.result()), rel=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_area_under_the_curve_is_exact(outputs: int) -> None:
    scores = np.round(X @ W[:, :outputs])  # ties
    two = program(outputs, y="float32" if outputs == 1 else "int32")
    y = BITS if outputs == 1 else BITS[:, 0].astype(np.int32)
    logits = scores[:, 0] if outputs == 1 else scores[:, 1] - scores[:, 0]
    expected = roc_auc_score(BITS[:, 0], logits, sample_weight=WEIGHT)
    rounded = jax_frontend.Model(
        lambda p, x: jnp.round(x @ p["w"]) + 0 * (x @ p["w"]),
        {"w": W[:, :outputs]},
        [jax.ShapeDtypeStruct((1, FEATURES), jnp.float32)],
    )
    kind = jax.ShapeDtypeStruct(y[:1].shape, y.dtype)
    built = converter.build(rounded, loss=own, y=kind, batch=BATCH, check=False)
    assert found(built, y, "AUC")["AUC"] == pytest.approx(expected, rel=1e-6)
    exact = (X @ W[:, :outputs]) @ (np.ones(1) if outputs == 1 else np.array([-1, 1]))
    assert found(two, y, "auc", None)["auc"] == pytest.approx(roc_auc_score(BITS[:, 0], exact), rel=1e-6)


def test_functions_of_all_rows() -> None:
    def worst(y: np.ndarray, output: np.ndarray) -> float:
        return float(np.abs(y - output).max())

    def distance(y: np.ndarray, output: np.ndarray) -> np.ndarray:
        return np.abs(y - output)

    figures = found(program(), VALUES, [worst, distance])
    off = np.abs(VALUES - X @ W)
    assert figures["worst"] == pytest.approx(off[WEIGHT > 0].max(), rel=1e-5)  # rows of weight 0 are not there
    assert figures["distance"] == pytest.approx(np.average(off.mean(1), weights=WEIGHT), rel=1e-5)


def test_right_answers_that_the_program_counts_are_taken_from_it() -> None:
    built = program(CLASSES, "binary_crossentropy")
    bits = (VALUES > 0).astype(np.float32)
    figures = found(built, bits, ["acc", "binary_accuracy"])
    right = ((X @ W > 0) == (bits > 0.5)).mean(1)  # the outputs are logits: not those over one half
    expected = pytest.approx(np.average(right, weights=WEIGHT), rel=1e-5)
    assert (figures["acc"], figures["binary_accuracy"], figures["accuracy"]) == (expected,) * 3


def test_by_output_and_in_fit() -> None:
    model = jax_frontend.Model(
        lambda p, x: {"kind": x @ p["w"], "size": x @ p["w"][:, :2]},
        {"w": W},
        [jax.ShapeDtypeStruct((1, FEATURES), jnp.float32)],
    )
    built = converter.build(
        model,
        loss={"kind": own, "size": "mse"},
        y={"kind": jax.ShapeDtypeStruct((1,), "int32")},
        batch=BATCH,
        check=False,
    )
    y = {"kind": LABELS, "size": VALUES[:, :2]}
    metrics = {"kind": ["accuracy", "top_2"], "size": "mae"}
    with TrainingSession(built.data) as session:
        history = session.fit(X, y, epochs=2, validation=(X, y), metrics=metrics, learning_rate=0.01)
        last = session.evaluate(X, y, metrics=metrics)
    assert {"kind_accuracy", "kind_top_2", "size_mae", "kind_loss", "size_loss", "loss"} == last.keys()
    for name, value in last.items():
        assert history[f"validation_{name}"][-1] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("acuracy", "unknown name 'acuracy'. Did you mean 'accuracy'"),
        (3, "expected a name or a function"),
        ({"output": "mae"}, "pass a name, a function, or a list of them"),
        (["mae", "mae"], "two figures would be called 'mae'"),
        ("loss", "two figures would be called 'loss'"),
        ("accuracy", None),
        (lambda y, output: np.zeros(3), "not a number for each"),
    ],
)
def test_what_is_no_metric(metrics: Any, message: str | None) -> None:
    with TrainingSession(program().data) as session:
        if message is None:
            assert session.evaluate(X, VALUES, metrics=metrics)
            return
        with pytest.raises(UsageError, match=message):
            session.evaluate(X, VALUES, metrics=metrics)


def test_metrics_that_do_not_fit_or_have_no_rows() -> None:
    with TrainingSession(program(y="int32").data) as session:
        with pytest.raises(UsageError, match=r"metrics: mae: y \[rows\] is not like the output \[rows, "):
            session.evaluate(X, LABELS, metrics="mae")
        with pytest.raises(UsageError, match="validation"):
            session.fit(X, LABELS, metrics="accuracy")


def test_there_is_no_curve_of_one_class() -> None:
    """Said before anything is trained; rows of weight 0 are not there."""
    ones, bits = np.ones((ROWS, 1), np.float32), BITS[:, :1]
    with TrainingSession(program(1).data) as session:
        before = session.state()
        for y, weight in ((ones, None), (bits, (bits[:, 0] > 0).astype(np.float32))):
            with pytest.raises(UsageError, match=r"metrics: auc: all \d+ rows are of class 1, and the area"):
                session.evaluate(X, y, weight, metrics=["auc"])
        with pytest.raises(UsageError, match="metrics: auc"):
            session.fit(X, bits, epochs=1, validation=(X, ones), metrics=["auc"])
        assert all(np.array_equal(before[name], array) for name, array in session.state().items())


def test_labels_that_the_loss_leaves_out_are_not_counted() -> None:
    model = jax_frontend.Model(lambda w, x: x @ w, W, [jax.ShapeDtypeStruct((1, 5, FEATURES), "float32")])
    built = converter.build(model, loss="next_token", batch=2, check=False)
    y = np.array([[1, 2, -1, -1, 0], [3, -1, -1, -1, -1]], np.int32)
    x = RNG.standard_normal((2, 5, FEATURES)).astype(np.float32)
    with TrainingSession(built.data) as session:
        for name in ("top_1", "sparse_categorical_accuracy"):
            with pytest.raises(UsageError, match="labels below 0 are places that the loss leaves out"):
                session.evaluate(x, y, metrics=[name])
