"""What a session takes for rows, targets, weights and the rest, and how it says what it does not take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

import converter
import jax_frontend
from converter.program.manifest import TensorSpec
from converter.runtime import TrainingSession
from converter.runtime.data.examples import _by_name
from converter.support.errors import UsageError
from scripts.harness.batches import random_batches, read_batches
from tests.runtime.programs import BATCH, EXAMPLES, program

ROWS = 2 * BATCH + 3
X, Y = EXAMPLES["mlp"].data(ROWS)
SIGNS = np.where(X[:, 0] > 0, 1.0, -1.0)
BITS = (SIGNS + 1) / 2
ONE_HOT = np.eye(4)[Y]


@functools.cache
def scores(loss: str, *shape: int) -> bytes:
    """A program that gives an array of such a shape a row."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((12, int(np.prod(shape)))).astype(np.float32)
    rows = [jax.ShapeDtypeStruct((1, 12), np.float32)]
    model = jax_frontend.Model(lambda p, x: (x @ p["w"]).reshape(-1, *shape), {"w": w}, rows)
    return converter.build(model, loss=loss, batch=BATCH).data


def opened(loss: str = "", *shape: int) -> TrainingSession:
    return TrainingSession(scores(loss, *shape) if loss else program().data)


@pytest.mark.parametrize(
    ("x", "y", "weight"),
    [
        (X, Y.astype(np.float32), None),
        (X, Y[:, None].astype(np.float64), None),
        (X[..., None], Y[:, None, None], np.ones((ROWS, 1))),
        (X[:, None], Y.tolist(), np.ones(ROWS)),
    ],
    ids=["float labels", "a column", "axes of size 1", "an axis in between"],
)
def test_what_only_looks_different_is_the_same(x: np.ndarray, y: Any, weight: Any) -> None:
    with opened() as session:
        assert session.evaluate(x, y, weight) == session.evaluate(X, Y)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_axes_of_size_1_are_those_of_the_target(shape: tuple[int, ...]) -> None:
    values = X[:, 0]
    with opened("mse", *shape) as session:
        expected = np.square(session.infer(X).reshape(-1) - values).mean()
        for given in ((), (1,), (1, 1)):
            found = session.evaluate(X, values.reshape(-1, *given))["loss"]
            assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "shape", "good", "bad", "message"),
    [
        ("binary_crossentropy", (1,), BITS * 0.7, SIGNS, "binary_crossentropy takes numbers from 0 to 1, .*holds -1"),
        ("binary_crossentropy", (1,), BITS > 0, BITS * 255, "numbers from 0 to 1, and row . holds 255"),
        ("binary_focal_crossentropy", (1,), BITS, BITS * 2, "numbers from 0 to 1"),
        ("categorical_crossentropy", (4,), ONE_HOT * 2, -ONE_HOT, "from 0 on, one a class, and row 0 holds -1"),
        ("categorical_focal_crossentropy", (4,), ONE_HOT, -ONE_HOT, "numbers from 0 on"),
        ("squared_hinge", (1,), SIGNS, BITS, r"hinge takes -1 or 1"),
        ("categorical_hinge", (4,), ONE_HOT, -ONE_HOT, "numbers from 0 to 1"),
        ("hinge", (1,), SIGNS, BITS, r"hinge takes -1 or 1 \(.*pass 2 \* y - 1\), and row . holds 0"),
    ],
)
def test_targets_that_the_loss_does_not_compare(
    loss: str, shape: tuple[int, ...], good: np.ndarray, bad: np.ndarray, message: str
) -> None:
    with opened(loss, *shape) as session:
        assert np.isfinite(session.evaluate(X, good)["loss"])
        for method in (session.fit, session.evaluate):
            with pytest.raises(UsageError, match=f"^y: .*{message}"):
                method(X, bad)


@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        ("binary_crossentropy", (1,)),
        ("binary_focal_crossentropy", (1,)),
        ("hinge", (1,)),
        ("hinge", (4,)),
        ("squared_hinge", (4,)),
    ],
)
def test_the_harness_makes_targets_that_the_loss_compares(loss: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    with opened(loss, *shape) as session:
        (tmp_path / "batches").write_bytes(random_batches(session.manifest, 2, 0))
        for batch in read_batches(tmp_path / "batches", session.manifest):
            assert np.isfinite(session.evaluate(batch.inputs, batch.target)["loss"])


@pytest.mark.parametrize("y", [BITS, BITS[:, None], BITS.astype(bool)])
def test_class_weights_of_bits(y: np.ndarray) -> None:
    weight = np.where(BITS == 1, 5.0, 2.0)
    with opened("binary_crossentropy", 1) as session, opened("binary_crossentropy", 1) as other:
        session.fit(X, y, epochs=1, class_weight={0: 2, 1: 5.0})
        other.fit(X, BITS, epochs=1, weight=weight)
        for name, array in other.state().items():
            np.testing.assert_array_equal(session.state()[name], array)


def test_class_weights_of_one_hot_rows() -> None:
    rows = np.eye(4, dtype=np.float32)[Y]
    with opened("categorical_crossentropy", 4) as session, opened("categorical_crossentropy", 4) as other:
        session.fit(X, rows, epochs=1, class_weight={0: 2, 3: 5.0})
        other.fit(X, rows, epochs=1, weight=np.select([Y == 0, Y == 3], [2.0, 5.0], 1.0))
        for name, array in other.state().items():
            np.testing.assert_array_equal(session.state()[name], array)
        with pytest.raises(UsageError, match="which has 0 to 3"):
            session.fit(X, rows, class_weight={4: 2.0})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2, 3], r"must be a dict \{label: weight\}, got \[1, 2, 3\]"),
        ("balanced", "must be a dict"),
        ({"cat": 5.0}, "'cat' is no label, which is a whole number"),
        ({0: 1.0, 99: 3.0}, "99 is no label of this program, which has 0 to 3"),
        ({0.5: 1.0}, "0.5 is no label"),
        ({0: True}, r"class_weight\[0\] must be a number"),
    ],
)
def test_what_are_no_class_weights(weights: Any, message: str) -> None:
    with opened() as session, pytest.raises(UsageError, match=message):
        session.fit(X, Y, class_weight=weights)


def test_class_weights_are_for_labels() -> None:
    with (
        opened("mse", 1) as session,
        pytest.raises(UsageError, match="one whole number or one-hot row each; y is float32"),
    ):
        session.fit(X, X[:, 0], class_weight={0: 2.0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 4}, "fit has no batch_size: a step has the rows that the program was built for, [0-9]+"),
        (
            {"validation_data": (X, Y), "verbose": 0},
            r"no validation_data: .*validation=\(x, y\).*no verbose: .*progress",
        ),
        ({"callbacks": []}, "no callbacks: pass listener=function"),
        ({"sample_weight": X}, "no sample_weight: pass weight="),
        ({"epoch": 3}, "fit has no epoch. Did you mean 'epochs"),
        ({"seed": -1}, "seed must be a whole number from 0 on, got -1"),
        ({"seed": "a"}, "seed must be a whole number"),
        ({"listener": 3}, "listener must be a function of an event, got 3"),
        ({"learning_rate": -1}, "learning_rate is below zero: -1"),
        ({"learning_rate": 1e39}, "learning_rate is larger than float32 can hold: 1e\\+39"),
        ({"learning_rate": True}, "learning_rate must be a number, got True"),
        ({"validation": 0.2}, r"validation must be \(x, y\), \(x, y, weight\) or batches of these, got float"),
        ({"validation": X}, "validation must be .* got ndarray"),
        ({"validation": (X, Y, X)}, "weight: expected float32"),
    ],
)
def test_what_fit_does_not_take(options: dict[str, Any], message: str) -> None:
    with opened() as session:
        before = session.state()
        with pytest.raises(UsageError, match=message):
            session.fit(X, Y, **options)
        for name, array in session.state().items():
            np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda: iter([(X, Y)]), "x: .* this is a function: call it, and pass what it gives"),
        ([{"x": X, "y": Y}], r"x: batch 0 is dict, and expected is \(x, y\) or \(x, y, weight\)"),
        (iter([]), "no rows"),
        (X, "y: missing"),
        ((X, Y), r"give inputs and targets apart, fit\(x, y\)"),
    ],
    ids=["a function", "dicts", "nothing", "no y", "both in one"],
)
@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_what_is_no_data(method: str, source: Any, message: str) -> None:
    with opened() as session, pytest.raises(UsageError, match=message):
        getattr(session, method)(source, **({"epochs": 1} if method == "fit" else {}))


def test_what_is_missing_is_said_with_what_came() -> None:
    specs = (TensorSpec("x", (4, 3), "float32", "input"), TensorSpec("mask", (4, 5), "int32", "input"))
    with pytest.raises(
        UsageError, match=r"x: the input mask is missing\. The model has x \(float32\[3\] a row\), "
    ) as refused:
        _by_name("x", specs, {"x": np.zeros((8, 3), np.float32)})
    assert "mask (int32[5] a row); x ([8, 3]) came" in str(refused.value)


BATCHES: dict[str, Callable[[Any], Any]] = {
    "a dataset": lambda arrays: tf.data.Dataset.from_tensor_slices(arrays).batch(5),
    "a list": lambda arrays: [tuple(a[i : i + 5] for a in arrays) for i in range(0, ROWS, 5)],
    "a generator": lambda arrays: (tuple(a[i : i + 7] for a in arrays) for i in range(0, ROWS, 7)),
    "arrays": lambda arrays: arrays,
}


@pytest.mark.parametrize("kind", BATCHES)
def test_rows_to_evaluate_on_come_in_batches_or_at_once(kind: str) -> None:
    weight = np.random.default_rng(0).random(ROWS).astype(np.float32)
    make = BATCHES[kind]
    with opened() as session:
        expected = session.evaluate(X, Y, weight, metrics="top_2")
        if kind != "arrays":
            assert session.evaluate(make((X, Y, weight)), metrics="top_2") == expected
            assert session.evaluate(make((X, Y))) == session.evaluate(X, Y)
        history = session.fit(X, Y, epochs=2, learning_rate=1e-30, validation=make((X, Y, weight)), metrics="top_2")
        for name, value in expected.items():
            assert history[f"validation_{name}"] == [value] * 2


def test_the_area_under_the_curve_is_of_one_score_or_two_classes() -> None:
    message = r"metrics: auc: it is of one score a row, or of two classes; the output is \[rows, 4\]"
    with opened() as session, pytest.raises(UsageError, match=message):
        session.evaluate(X, Y, metrics=["auc"])


def test_a_result_that_has_no_rows_of_its_own() -> None:
    params = {"w": np.ones((12, 2), np.float32), "short": np.ones(3, np.float32)}
    rows = [jax.ShapeDtypeStruct((1, 12), np.float32)]
    model = jax_frontend.Model(lambda p, x: {"out": x @ p["w"], **p}, params, rows)
    with TrainingSession(converter.build(model, loss={"out": "mse"}, batch=BATCH).data) as session:
        found = session.infer(X[:BATCH])
        for name, array in params.items():
            np.testing.assert_array_equal(found[name], array)
