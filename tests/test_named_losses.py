"""The losses that have a name, against Keras' own: value and gradient, with weights of the rows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

from converter.autodiff import differentiate
from converter.errors import UsageError
from converter.ir import Builder, Parameter, TensorType, evaluate
from converter.losses import LOSSES, Penalty, attach_loss, loss_from_table, named_loss

BATCH, PLACES, CLASSES = 4, 3, 5
WEIGHT = np.array([1, 0.5, 0, 2], np.float32)
RNG = np.random.default_rng(0)
X = 2 * RNG.standard_normal((BATCH, PLACES, CLASSES)).astype(np.float32)
VALUES = RNG.standard_normal(X.shape).astype(np.float32)
BITS = RNG.integers(0, 2, X.shape).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, X.shape[:-1]).astype(np.int32)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[LABELS]
SOFT = RNG.dirichlet(np.ones(CLASSES), X.shape[:-1]).astype(np.float32)
k = keras.losses

#: Name, options, targets, Keras' loss of (y, x).
CASES: list[tuple[str, dict[str, float], np.ndarray, Callable[[Any, Any], Any]]] = [
    ("sparse_categorical_crossentropy", {}, LABELS, lambda y, x: k.sparse_categorical_crossentropy(y, x, True)),
    (
        "sparse_categorical_crossentropy",
        {"label_smoothing": 0.2},
        LABELS,
        lambda y, x: k.categorical_crossentropy(jax.nn.one_hot(y, CLASSES), x, True, 0.2),
    ),
    ("categorical_crossentropy", {}, SOFT, lambda y, x: k.categorical_crossentropy(y, x, True)),
    (
        "categorical_crossentropy",
        {"label_smoothing": 0.1},
        SOFT,
        lambda y, x: k.categorical_crossentropy(y, x, True, 0.1),
    ),
    ("binary_crossentropy", {}, BITS, lambda y, x: k.binary_crossentropy(y, x, True)),
    ("binary_crossentropy", {"label_smoothing": 0.1}, BITS, lambda y, x: k.binary_crossentropy(y, x, True, 0.1)),
    ("binary_focal_crossentropy", {}, BITS, lambda y, x: k.binary_focal_crossentropy(y, x, from_logits=True)),
    (
        "binary_focal_crossentropy",
        {"gamma": 1.5, "alpha": 0.3, "label_smoothing": 0.1},
        BITS,
        lambda y, x: k.binary_focal_crossentropy(y, x, True, 0.3, 1.5, from_logits=True, label_smoothing=0.1),
    ),
    (
        "categorical_focal_crossentropy",
        {},
        ONE_HOT,
        lambda y, x: k.categorical_focal_crossentropy(y, x, from_logits=True),
    ),
    (
        "categorical_focal_crossentropy",
        {"gamma": 3.0, "alpha": 0.5, "label_smoothing": 0.1},
        ONE_HOT,
        lambda y, x: k.categorical_focal_crossentropy(y, x, 0.5, 3.0, from_logits=True, label_smoothing=0.1),
    ),
    ("kl_divergence", {}, SOFT, lambda y, x: optax.losses.kl_divergence(jax.nn.log_softmax(x), y)),
    ("kl_divergence", {}, ONE_HOT, lambda y, x: k.kl_divergence(y, jax.nn.softmax(x))),
    ("mse", {}, VALUES, k.mean_squared_error),
    ("mae", {}, VALUES, k.mean_absolute_error),
    ("huber", {}, VALUES, k.huber),
    ("huber", {"delta": 0.3}, VALUES, lambda y, x: k.huber(y, x, 0.3)),
    ("log_cosh", {}, VALUES, k.log_cosh),
    ("cosine_similarity", {}, VALUES, k.cosine_similarity),
    ("hinge", {}, 2 * BITS - 1, lambda y, x: optax.losses.hinge_loss(x, y).mean(-1)),
]


@pytest.mark.parametrize(("name", "options", "y", "theirs"), CASES, ids=[f"{c[0]}-{'-'.join(c[1])}" for c in CASES])
def test_value_and_gradient_are_those_of_keras(
    name: str, options: dict[str, float], y: np.ndarray, theirs: Callable[[Any, Any], Any]
) -> None:
    def total(x: Any) -> Any:
        rows = theirs(jnp.asarray(y), x).reshape(BATCH, -1).mean(1)
        return (rows * WEIGHT).sum() / WEIGHT.sum()

    value, gradient = jax.value_and_grad(total)(jnp.asarray(X))
    b = Builder()
    b.graph.outputs["output"] = x = b.input("x", TensorType(X.shape))
    scored = attach_loss(b.graph, named_loss(name, **options))
    graph, gradients = differentiate(scored, scored.outputs["loss"], [x])
    graph.outputs = {"loss": scored.outputs["loss"], "gradient": gradients[x]}
    found, _ = evaluate(graph, {"x": X, "y": y, "weight": WEIGHT}, np.float64)
    np.testing.assert_allclose(found["loss"], value, rtol=2e-6)
    np.testing.assert_allclose(found["gradient"], gradient, rtol=2e-5, atol=1e-7)


def test_every_name_is_tested() -> None:
    assert {case[0] for case in CASES} == set(LOSSES)


@pytest.mark.parametrize("name", ["mae", "huber", "log_cosh", "cosine_similarity", "binary_crossentropy"])
def test_no_gradient_is_lost_where_the_answer_is_right_or_far_off(name: str) -> None:
    far = np.array([[0.0, 60.0, -60.0], [0.0, 0.0, 0.0]], np.float32)
    y = np.array([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]], np.float32)
    b = Builder()
    b.graph.outputs["output"] = x = b.input("x", TensorType(far.shape))
    scored = attach_loss(b.graph, named_loss(name))
    graph, gradients = differentiate(scored, scored.outputs["loss"], [x])
    graph.outputs = {"loss": scored.outputs["loss"], "gradient": gradients[x]}
    found, _ = evaluate(graph, {"x": far, "y": y, "weight": np.ones(2, np.float32)})
    assert all(np.isfinite(array).all() for array in found.values())


def test_right_answers_of_a_binary_classifier_are_counted() -> None:
    b = Builder()
    b.graph.outputs["output"] = b.input("x", TensorType(X.shape))
    graph = attach_loss(b.graph, named_loss("binary_crossentropy"))
    found, _ = evaluate(graph, {"x": X, "y": BITS, "weight": WEIGHT})
    right = ((X > 0) == (BITS > 0.5)).reshape(BATCH, -1).mean(1)
    np.testing.assert_allclose(found["correct"], (right * WEIGHT).sum(), rtol=1e-6)


def test_penalties_are_those_of_keras_and_count_once_whatever_the_weights() -> None:
    w = RNG.standard_normal((CLASSES, CLASSES)).astype(np.float32)
    b = Builder()
    x = b.input("x", TensorType((BATCH, CLASSES)))
    weight = b.input("w", TensorType(w.shape))
    b.graph.inputs.remove(weight)
    b.graph.parameters[weight] = Parameter("w", w)
    b.graph.outputs["output"] = x
    loss, both = named_loss("mse"), keras.regularizers.L1L2(0.01, 0.02)
    data = {"x": X[:, 0], "y": VALUES[:, 0], "weight": WEIGHT}
    plain, _ = evaluate(attach_loss(b.graph, loss), data)
    for mean, factor in ((True, 1.0), (False, WEIGHT.sum())):
        penalized = attach_loss(b.graph, replace(loss, penalties={"w": Penalty(0.01, 0.02)}), mean)
        found, _ = evaluate(penalized, data)
        expected = (plain["loss"] + float(both(w))) * factor
        np.testing.assert_allclose(found["loss"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "hubber"}, "Did you mean 'huber'"),
        ({"name": "huber", "detla": 1.0}, "has no option 'detla'. Did you mean 'delta'"),
        ({"name": "huber", "delta": "1"}, "delta is a number that is not negative"),
        ({"name": "huber", "delta": float("nan")}, "delta is a number"),
        ({"name": "categorical_crossentropy", "label_smoothing": True}, "label_smoothing is a number"),
        ({"delta": 1.0}, "expected a name, or a table"),
    ],
)
def test_what_is_no_loss(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loss_from_table(table)
