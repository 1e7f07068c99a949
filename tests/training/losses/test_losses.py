"""Losses against optax: value, masking by weight, the count of right answers, and the user's own functions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.ir import Builder, TensorType, evaluate, verify
from converter.support.errors import UnsupportedError, UsageError
from converter.training.losses import attach_loss, named_loss

BATCH, CLASSES = 4, 5
WEIGHT = np.array([1, 0.5, 0, 2], np.float32)


def identity(*shape: int):
    b = Builder()
    b.graph.outputs["output"] = b.input("x", TensorType(shape))
    return b.graph


def run(name: str, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    graph = verify(attach_loss(identity(*x.shape), named_loss(name)))
    outputs, _ = evaluate(graph, {"x": x, "y": y, "weight": WEIGHT}, np.float64)
    return outputs


def masked_mean(rows) -> float:
    rows = np.asarray(rows, np.float64)
    return float((rows.reshape(BATCH, -1).mean(1) * WEIGHT).sum() / WEIGHT.sum())


@pytest.mark.parametrize("shape", [(BATCH, CLASSES), (BATCH, 3, CLASSES), (BATCH, 2, 3, CLASSES)])
def test_cross_entropies(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    x = 3 * rng.standard_normal(shape).astype(np.float32)
    y = rng.integers(0, CLASSES, shape[:-1]).astype(np.int32)
    rows = optax.softmax_cross_entropy_with_integer_labels(x, y)
    right = (x.argmax(-1) == y).reshape(BATCH, -1).mean(1)
    for found in (
        run("sparse_categorical_crossentropy", x, y),
        run("categorical_crossentropy", x, np.eye(CLASSES, dtype=np.float32)[y]),
    ):
        np.testing.assert_allclose(found["loss"], masked_mean(rows), rtol=1e-5)
        np.testing.assert_allclose(found["correct"], (right * WEIGHT).sum(), rtol=1e-6)


def test_cross_entropy_of_soft_targets_and_large_logits() -> None:
    rng = np.random.default_rng(0)
    x = (1e4 * rng.standard_normal((BATCH, CLASSES))).astype(np.float32)
    y = rng.dirichlet(np.ones(CLASSES), BATCH).astype(np.float32)
    rows = optax.softmax_cross_entropy(x, y)
    np.testing.assert_allclose(run("categorical_crossentropy", x, y)["loss"], masked_mean(rows), rtol=1e-5)


def test_squared_error() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, BATCH, 3, 2)).astype(np.float32)
    found = run("mse", x, y)
    np.testing.assert_allclose(found["loss"], masked_mean((x - y) ** 2), rtol=1e-5)
    assert "correct" not in found


def linear(outputs: int = 3) -> jax_frontend.Model:
    w = np.random.default_rng(1).standard_normal((4, outputs)).astype(np.float32)
    return jax_frontend.Model(lambda p, x: x @ p["w"], {"w": w}, [jax.ShapeDtypeStruct((1, 4), np.float32)])


def huber(outputs, targets):
    return optax.huber_loss(outputs, targets).mean(-1)


def margin(outputs, labels):
    right = jnp.take_along_axis(outputs, labels[:, None], 1)
    return jnp.maximum(0, 1 + outputs - right).sum(1)


@pytest.mark.parametrize(
    ("loss", "targets"), [(huber, None), (margin, jax.ShapeDtypeStruct((1,), jnp.int32))], ids=["huber", "margin"]
)
def test_a_loss_of_the_persons_own(loss, targets) -> None:
    model, rng = linear(), np.random.default_rng(0)
    program = converter.build(model, loss=loss, optimizer=optax.sgd(1.0), batch=BATCH, y=targets)
    x = rng.standard_normal((BATCH, 4)).astype(np.float32)
    y = rng.standard_normal((BATCH, 3)).astype(np.float32) if targets is None else np.array([0, 2, 1, 2], np.int32)

    def total(params):
        return (loss(model.apply(params, x), y) * WEIGHT).sum() / WEIGHT.sum()

    value, gradient = jax.value_and_grad(total)(model.params)
    with converter.runtime.TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.train(x, y, learning_rate=0.5, weight=WEIGHT), value, rtol=1e-5)
        np.testing.assert_allclose(session.parameters()["w"], model.params["w"] - 0.5 * gradient["w"], rtol=1e-5)
    assert program.manifest.loss == loss.__name__


def test_what_a_loss_refuses() -> None:
    with pytest.raises(UsageError, match="Did you mean 'mse'"):
        converter.build(linear(), loss="mes")
    with pytest.raises(UsageError, match="one number per example"):
        converter.build(linear(), loss=lambda outputs, y: (outputs - y) ** 2)
    with pytest.raises(UsageError, match="not 3"):
        converter.build(linear(), loss=3)
    with pytest.raises(UsageError, match="logits"):
        attach_loss(identity(BATCH), named_loss("sparse_categorical_crossentropy"))
    two = identity(BATCH, CLASSES)
    two.outputs["more"] = two.outputs["output"]
    with pytest.raises(UnsupportedError, match="pass a function"):
        attach_loss(two, named_loss("mse"))
    taken = identity(BATCH, CLASSES)
    taken.inputs[0].name = "weight"
    with pytest.raises(UsageError, match="rename"):
        attach_loss(taken, named_loss("mse"))
