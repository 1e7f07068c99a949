"""Dropout in training: Keras' own steps with the same masks, which NumPy makes here from their definition."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from keras import layers

import converter
import jax_frontend
from converter.passes.idioms import with_idioms
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from converter.training.dropout import dropouts
from tests.randomness import key_of

BATCH, STEPS, RATE = 4, 10, 0.1
RNG = np.random.default_rng(0)
X = RNG.standard_normal((BATCH, 6, 6, 3)).astype(np.float32)
Y = RNG.integers(0, 3, BATCH).astype(np.int32)
GOLDEN, FIRST, SECOND = 0x9E3779B1, 0x7FEB352D, 0x846CA68B


def hashed(x: np.ndarray) -> np.ndarray:
    """Two rounds on int32; the sign comes in from the left."""
    for shift, factor in ((16, FIRST), (15, SECOND)):
        x = ((x ^ (x >> shift)).astype(np.uint32) * np.uint32(factor)).astype(np.uint32).view(np.int32)
    return x


def wrapped(number: int) -> np.ndarray:
    return np.array([number & 0xFFFFFFFF], np.uint32).view(np.int32)


def mask(key: int, call: int, rate: float, shape: tuple[int, ...]) -> np.ndarray:
    """Which elements stay."""
    start = int(hashed(wrapped(call * GOLDEN + key * FIRST))[0])
    places = np.array([(start + i * GOLDEN) & 0xFFFFFFFF for i in range(int(np.prod(shape)))], np.uint32)
    return (hashed(places.view(np.int32)) >= round(rate * 2**32) - 2**31).reshape(shape)


def net() -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((6, 6, 3)),
            layers.Conv2D(4, 3, name="conv"),
            layers.SpatialDropout2D(0.25, name="maps"),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.3, name="flat"),
            layers.Dense(8, activation="relu", name="dense"),
            layers.Dropout(0.5, noise_shape=(None, 1), name="whole_rows"),
            layers.Dense(3, name="head"),
        ],
        name="net",
    )


def noisy() -> Any:
    keras.utils.set_random_seed(0)
    middle = [layers.GaussianNoise(0.3), layers.ReLU(), layers.GaussianDropout(0.2), layers.AlphaDropout(0.3)]
    first = layers.Conv2D(4, 3, name="conv")
    return keras.Sequential([keras.Input((6, 6, 3)), first, *middle, layers.Flatten(), layers.Dense(3)], name="net")


def recurrent() -> Any:
    """A long loop, gates with masks of their own, and one mask for all."""
    keras.utils.set_random_seed(0)
    sequence = [keras.Input((6, 6, 3)), layers.Reshape((12, 9))]
    cells = [
        layers.LSTM(5, dropout=0.2, recurrent_dropout=0.3, return_sequences=True, name="lstm"),
        layers.GRU(4, dropout=0.1, name="gru"),
    ]
    return keras.Sequential([*sequence, *cells, layers.Dense(3, name="head")], name="net")


#: Rates and shapes of the masks, in the order in which the layers are called.
NET = [(0.25, (BATCH, 1, 1, 4)), (0.3, (BATCH, 64)), (0.5, (BATCH, 1))]
RECURRENT = [*[(0.2, (BATCH, 9))] * 4, *[(0.3, (BATCH, 5))] * 4, (0.1, (BATCH, 5))]


def steps_of_keras(
    model: Any, monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[float, tuple[int, ...]]], draws: int = 0
) -> Iterator[tuple[float, list[np.ndarray]]]:
    """Losses of SGD on Keras' own forward pass, and the weights after each step.

    Its dropout takes our masks, and what draws otherwise our keys.
    """
    given: list[jax.Array] = []
    fixed = [v.value for v in model.non_trainable_variables]

    def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
        return jnp.where(given.pop(0), inputs / (1 - rate), 0.0)

    def next_key(*_: Any, **__: Any) -> Any:
        return given.pop(0)

    @jax.jit
    def step(weights: list[jax.Array], masks: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        def loss(weights: list[jax.Array]) -> jax.Array:
            given[:] = masks
            outputs, _ = model.stateless_call(weights, fixed, X, training=True)
            return optax.softmax_cross_entropy_with_integer_labels(outputs, Y).mean()

        value, slopes = jax.value_and_grad(loss)(weights)
        return value, [w - RATE * slope for w, slope in zip(weights, slopes, strict=True)]

    monkeypatch.setattr(keras.src.backend.random, "dropout", dropout)
    monkeypatch.setattr(keras.random.SeedGenerator, "next", next_key)
    weights = [v.value for v in model.trainable_variables]
    for call in range(STEPS):
        masks = [mask(key, call, rate, shape) for key, (rate, shape) in enumerate(sizes)]
        value, weights = step(weights, [*masks, *(key_of(call, who) for who in range(draws))])
        yield float(value), [np.asarray(w) for w in weights]


@pytest.mark.quick
@pytest.mark.parametrize(("make", "masks", "draws"), [(net, NET, 0), (noisy, [], 3), (recurrent, RECURRENT, 0)])
def test_ten_steps_are_those_of_keras_with_the_same_random_numbers(
    make: Any, masks: Any, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    program = converter.build(model, optimizer="sgd", batch=BATCH, dropout="train", check=False)
    with TrainingSession(program.data) as session:
        plain = np.asarray(model(X, training=False))
        np.testing.assert_allclose(session.infer(X), plain, rtol=1e-4, atol=1e-5)
        steps = list(steps_of_keras(model, monkeypatch, masks, draws))
        np.testing.assert_allclose([session.train(X, Y, RATE) for _ in steps], [loss for loss, _ in steps], rtol=1e-4)
        for variable, weight in zip(model.trainable_variables, steps[-1][1], strict=True):
            np.testing.assert_allclose(session.parameters()[variable.path], weight, rtol=1e-3, atol=1e-5)


def test_masks_keep_the_mean_and_are_new_in_each_step_and_layer() -> None:
    rate, shape = 0.3, (64, 1024)
    masks = [mask(key, call, rate, shape) for key in (0, 1) for call in (0, 1, 2)]
    for i, one in enumerate(masks):
        assert abs(one.mean() - (1 - rate)) < 0.006  # three deviations of 2^16 throws
        for axis in (0, 1):
            assert abs(one.mean(axis).std() - np.sqrt(rate * (1 - rate) / shape[axis])) < 0.2 / np.sqrt(shape[axis])
        for other in masks[:i]:
            assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.012
        for shift in (1, 2, 1024):
            assert abs(np.corrcoef(one.ravel()[shift:], one.ravel()[:-shift])[0, 1]) < 0.012


def test_a_saved_training_goes_on_with_other_masks_and_a_repeated_one_with_the_same(tmp_path: Path) -> None:
    program = converter.build(net(), optimizer="sgd", batch=BATCH, dropout="train", state="stateless")
    assert "random/step" in {tensor.tensor for tensor in program.manifest.state_tensors}

    def losses(session: TrainingSession) -> list[float]:
        return [session.train(X, Y, 0.0) for _ in range(3)]

    with TrainingSession(program.data) as session:
        first = losses(session)
        session.save(tmp_path / "mine.state")
        then = losses(session)
    with TrainingSession(program.data) as session:
        assert losses(session) == first
        session.restore(tmp_path / "mine.state")
        assert losses(session) == then
    assert len({*first, *then}) == 6


@pytest.mark.parametrize("state", ["variables", "split"])
def test_micro_batches_have_masks_of_their_own(state: str) -> None:
    program = converter.build(net(), optimizer="sgd", batch=BATCH, micro_batch=2, dropout="train", state=state)
    same = np.concatenate([X[:2], X[:2]]), np.concatenate([Y[:2], Y[:2]])
    calls = 0
    with TrainingSession(program.data) as session:
        seen = []
        for weight in (np.array([1, 1, 0, 0], np.float32), np.array([0, 0, 1, 1], np.float32), None):
            seen.append(session.train(*same, 0.0, weight))
            calls += 2 if weight is None else 1
            assert session.state()["random/step"] == calls
    assert len(set(seen)) == 3
    with pytest.raises(UsageError, match="dropout='train' counts micro-batches"):
        converter.build(net(), batch=BATCH, micro_batch=2, dropout="train", state="stateless")


def test_features_end_where_masks_begin() -> None:
    update = {"*": 0, "net/dense/*": 1, "net/head/*": 1}
    offered = ("train", "infer", "features")
    program = converter.build(net(), optimizer="sgd", batch=BATCH, update=update, dropout="train", signatures=offered)
    with TrainingSession(program.data) as session:
        features = session.features(X)
        assert features.shape == (BATCH, 4, 4, 4)  # behind the convolution, before the first dropout
        assert len(session.fit(X, Y, epochs=2, learning_rate=1e-30, progress=False)["loss"]) == 2
        assert session.state()["random/step"] == 2


def test_what_becomes_of_each_is_said() -> None:
    for dropout, status in (("train", "trains"), ("off", "left out")):
        program = converter.build(net(), batch=BATCH, dropout=dropout, check=False)
        assert [(n.subject, n.status) for n in program.notes if n.status not in ("a default", "as compiled")] == [
            (n, status) for n in ("maps", "flat", "whole_rows")
        ]
    with pytest.raises(UsageError, match="off or train"):
        converter.build(net(), dropout="on")
    with pytest.raises(UsageError, match="int8"):
        converter.build(net(), batch=BATCH, dropout="train", update="head", frozen="int8", calibration=X)


def test_a_jax_model_marks_its_dropout() -> None:
    w = RNG.standard_normal((5, 2)).astype(np.float32)
    x, y = RNG.standard_normal((8, 5)).astype(np.float32), np.zeros((8, 2), np.float32)
    model = jax_frontend.Model(
        lambda params, x: jax_frontend.dropout(x, 0.5) @ params["w"],
        {"w": w},
        [jax.ShapeDtypeStruct((1, 5), "float32")],
    )
    program = converter.build(model, loss="mse", optimizer="sgd", batch=8, dropout="train")
    with TrainingSession(program.data) as session:
        np.testing.assert_allclose(session.infer(x), x @ w, rtol=1e-5, atol=1e-6)
        expected = np.square((2 * x * mask(0, 0, 0.5, x.shape)) @ w).mean()
        assert session.train(x, y) == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(UsageError, match="a rate is from 0 to 1"):
        jax_frontend.dropout(x, 1.5)


def test_a_model_that_drops_nothing_is_told() -> None:
    plain = jax_frontend.Model(lambda w, x: x @ w, np.eye(3), [jax.ShapeDtypeStruct((1, 3), "float32")])
    with pytest.raises(UsageError, match="drops nothing"):
        converter.build(plain, loss="mse", dropout="train")


def test_shared_axes_are_those_of_the_array_under_vmap() -> None:
    rows = jax.vmap(lambda x: jax_frontend.dropout(x, 0.5, shared=(0,)))
    graph = with_idioms(
        jax_frontend.trace(
            jax_frontend.Model(lambda w, x: rows(x * w), np.ones(()), [jax.ShapeDtypeStruct((1, 4, 5), "float32")]), 2
        )
    )
    (dropped,) = dropouts(graph)
    assert dropped.op.shared == (1,)
