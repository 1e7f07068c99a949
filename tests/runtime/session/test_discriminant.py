"""Class means under a shrunk covariance: scikit-learn's linear discriminant, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import softmax
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from converter.runtime import TrainingSession
from converter.runtime.session.discriminant import _ledoit_wolf, discriminant
from converter.support.errors import UsageError
from examples.data.digits import load
from jax_frontend import Model
from tests.runtime.session.class_nets import OWN, built, passing, rows_of_classes
from tests.runtime.session.test_class_means import _digits_net

#: So many inputs has what is seen with an input of 1e-30, as a layer norm leaves it.
FADED = 7
VECTORS = Path(__file__).parents[1] / "discriminants.json"


@pytest.mark.parametrize("shrinkage", ["auto", 0.1, 1.0])
@pytest.mark.parametrize("rows", [48, 17])
def test_probabilities_are_those_of_scikit_learn(shrinkage: float | str, rows: int) -> None:
    x, y = rows_of_classes(rows)
    others = rows_of_classes(64)[0] + 0.25
    with TrainingSession(built().data) as session:
        session.set_class_means(x, y, shrinkage=shrinkage)
        features, unseen = (session.features(each).astype(np.float64) for each in (x, others))
        oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(features, y)
        found = softmax(session.infer(others).astype(np.float64), axis=1)
        np.testing.assert_allclose(found[:, :OWN], oracle.predict_proba(unseen), atol=2e-5)
        assert not found[:, OWN:].any(), "room for classes stays masked"


@pytest.mark.parametrize(("rows", "inputs"), [(3, 20), (20, 3), (200, 30), (1, 4), (5, 1)])
def test_the_shrinkage_is_that_of_ledoit_and_wolf(rows: int, inputs: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, inputs)) * np.arange(1, inputs + 1)
    x -= x.mean(0)
    assert _ledoit_wolf(x) == pytest.approx(ledoit_wolf_shrinkage(x, assume_centered=True), abs=1e-12)


def test_inputs_that_hardly_vary_have_no_part() -> None:
    """Layer norms leave inputs of 1e-32: then the others decide, in a step of Cholesky and by Woodbury's identity."""
    rng = np.random.default_rng(2)
    for rows, inputs in ((60, 5), (12, 30)):
        y = np.arange(rows) % 3
        x = rng.normal(size=(rows, inputs)) + y[:, None]
        x[:, 2] *= 1e-30
        oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(x, y)
        weights, biases = discriminant(x.copy(), y, oracle.means_, None)
        np.testing.assert_allclose(softmax(x @ weights.T + biases, axis=1), oracle.predict_proba(x), atol=1e-9)
        assert not weights[:, 2].any()


@pytest.mark.quick
def test_a_layer_of_a_discriminant_takes_steps_but_no_class_by_samples() -> None:
    x, y = rows_of_classes()
    with TrainingSession(built().data) as session:
        session.set_class_means(x, y, shrinkage="auto")
        with pytest.raises(UsageError, match="does not hold class means"):
            session.add_class("mine", x[:5])
        before = session.evaluate(x, y)["loss"]
        session.fit(x, y, epochs=2, learning_rate=0.001, progress=False)
        assert session.evaluate(x, y)["loss"] < before + 0.05
        session.set_class_means(x, y)
        session.add_class("mine", x[:5])


def test_two_classes_on_either_side_of_zero_are_no_class_means() -> None:
    """Rows of the last layer are opposite then, and those of the nearest of two means may be the same."""
    x, _ = rows_of_classes()
    both, y = np.concatenate([x + 1, -x - 1]), np.repeat(np.arange(2), len(x))
    with TrainingSession(built(passing(0.0, classes=2), classes="2+3", labels=None).data) as session:
        session.set_class_means(both, y, shrinkage=0.3)
        with pytest.raises(UsageError, match="or with a shrinkage"):
            session.add_class("mine", x[:5])
        assert session.classes()[2] is None
        oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3).fit(both, y)
        found = softmax(session.infer(both).astype(np.float64), axis=1)
        np.testing.assert_allclose(found[:, :2], oracle.predict_proba(both), atol=2e-5)
        session.set_class_means(both, y)
        assert session.add_class("mine", x[:5]) == 2


def test_what_it_cannot_be_made_of_is_refused() -> None:
    x, y = rows_of_classes()
    first = np.array([np.flatnonzero(y == label)[0] for label in range(OWN)])
    with TrainingSession(built().data) as session:
        before = session.state()
        for shrinkage in (0, -0.5, 1.5, "some", True):
            with pytest.raises(UsageError, match="shrinkage: 'auto', or a number above 0"):
                session.set_class_means(x, y, shrinkage=shrinkage)
        for shrinkage in ("auto", 0.1):
            with pytest.raises(UsageError, match="do not differ enough"):
                session.set_class_means(x[first], y[first], shrinkage=shrinkage)
        for name, value in before.items():
            np.testing.assert_array_equal(session.state()[name], value)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_of_new_digits_it_finds_more_than_the_nearest_mean() -> None:
    """Features of a net that knows five digits tell all ten apart, of ten samples each; five choices."""
    model, _ = _digits_net(list(range(5)))
    hidden, last = model.params[:-1], model.params[-1]
    params = [*hidden, (np.zeros((len(last[0]), 10), np.float32), np.zeros(10, np.float32))]
    train, test = load()
    accuracy: dict[str | None, list[float]] = {None: [], "auto": []}
    with TrainingSession(built(Model(model.apply, params, model.inputs), classes="10+1", labels=None).data) as session:
        for seed in range(5):
            rng = np.random.default_rng(seed)
            rows = np.concatenate([rng.choice(np.flatnonzero(train.y == digit), 10, False) for digit in range(10)])
            for shrinkage, found in accuracy.items():
                session.set_class_means(train.x[rows], train.y[rows], shrinkage=shrinkage)
                found.append((session.infer(test.x).argmax(1) == test.y).mean())
    print(accuracy)
    assert np.mean(accuracy["auto"]) > np.mean(accuracy[None]) + 0.03


def vectors() -> list[dict[str, Any]]:
    """Return what stands in discriminants.json, of scikit-learn: the tests in Kotlin and TypeScript read it, too."""
    rng, found = np.random.default_rng(11), []
    for shrinkage, counts, inputs in (
        ("auto", (9, 14, 5), 6),
        (0.25, (3, 2), 5),
        ("auto", (1, 8), 3),
        (1.0, (4, 4), 1),
        ("auto", (6, 5, 4), 40),
        (0.1, (2, 3), 12),
        ("auto", (9, 8), FADED),
        ("auto", (3, 3), FADED),
    ):
        y = np.repeat(np.arange(len(counts)), counts)
        x = np.round(rng.standard_normal((len(y), inputs)) * np.arange(1, inputs + 1) + 2 * y[:, None], 3)
        if inputs == FADED:
            x[:, 1] *= 1e-30
        oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(x, y)
        # Of two classes scikit-learn gives the difference of their rows. Ours have what all have in common left out.
        means, shares = oracle.means_, np.bincount(y) / len(y)
        weights = np.linalg.lstsq(oracle.covariance_, means.T, rcond=None)[0].T
        squares = (means * weights).sum(1) / 2
        weights -= weights.mean(0)
        biases = np.log(shares) - squares
        biases -= biases.min()
        rows = {"x": x.tolist(), "y": y.tolist(), "weights": weights.tolist(), "biases": biases.tolist()}
        found.append({"shrinkage": shrinkage, **rows})
    return found


@pytest.mark.filterwarnings("ignore:Only one sample available")
def test_the_vectors_of_the_other_languages_are_those_of_scikit_learn() -> None:
    recorded = json.loads(VECTORS.read_text())
    for found, there in zip(vectors(), recorded, strict=True):
        assert (found["shrinkage"], found["x"], found["y"]) == (there["shrinkage"], there["x"], there["y"])
        x, y = np.array(there["x"]), np.array(there["y"])
        means = np.stack([x[y == label].mean(0) for label in range(y.max() + 1)])
        ours = discriminant(x, y, means, None if there["shrinkage"] == "auto" else there["shrinkage"])
        for name, value in zip(("weights", "biases"), ours, strict=True):
            np.testing.assert_allclose(there[name], found[name], rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(value, there[name], rtol=1e-9, atol=1e-12)


def _convolutions() -> Model:
    rng = np.random.default_rng(0)
    filters = [rng.normal(size=(3, 3, a, b)).astype(np.float32) / a for a, b in ((3, 8), (8, 12))]
    last = {"w": rng.normal(size=(12, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}

    def apply(params: Any, x: jax.Array) -> jax.Array:
        for kernel in params["filters"]:
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x)
        return x.mean((1, 2)) @ params["last"]["w"] + params["last"]["b"]

    inputs = [jax.ShapeDtypeStruct((1, 8, 8, 3), "float32")]
    return Model(apply, {"filters": filters, "last": last}, inputs)


@pytest.mark.parametrize("reads", [None, "blocks/2"])
@pytest.mark.parametrize("shrinkage", ["auto", 0.1])
def test_of_int8_features_it_is_that_of_scikit_learn_of_the_same_integers(reads: Any, shrinkage: Any) -> None:
    """It weighs directions in which rows vary little, which int8 rounds: a float net's is another one."""
    rng = np.random.default_rng(1)
    x, others = rng.random((2, 45, 8, 8, 3), np.float32)
    y = (np.arange(45) % 3).astype(np.int32)
    x += 0.1 * y[:, None, None, None] * rng.random((45, 1, 1, 3), np.float32)
    options = {"classes": "3+2", "labels": None, "head_reads": reads, "frozen": "int8", "calibration": x}
    with TrainingSession(built(_convolutions(), **options).data) as session:
        session.set_class_means(x, y, shrinkage=shrinkage)
        kept = [session.features(rows) for rows in (x, others)]
        assert {rows.dtype for rows in kept} == {np.dtype(np.int8)}
        head = session.manifest.head
        assert head is not None
        features, unseen = (head.scale * (rows.astype(np.float64) - head.zero_point) for rows in kept)
        oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(features, y)
        wanted = oracle.predict_proba(unseen)
        found = softmax(session.infer(others).astype(np.float64), axis=1)
        np.testing.assert_allclose(found[:, :3], wanted, atol=5e-6)
        assert not found[:, 3:].any()
        loss = -np.log(wanted[np.arange(45), y]).mean()
        assert session.evaluate(others, y)["loss"] == pytest.approx(loss, rel=1e-5)
