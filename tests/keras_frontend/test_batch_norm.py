"""Batch normalization in training mode: Keras' own step, short batches included, and its moving averages after it."""

from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import converter
from converter.runtime import TrainingSession
from converter.support.errors import UnsupportedError, UsageError
from jax_frontend import Model

BATCH, STEPS, RATE = 6, 10, 0.1
RNG = np.random.default_rng(0)
X = (2 * RNG.standard_normal((BATCH, 6, 6, 3)) + 1).astype(np.float32)
Y = RNG.integers(0, 3, BATCH).astype(np.int32)


def net(frozen: bool = False) -> Any:
    """Behind a convolution, a depthwise one and a dense layer; `frozen` freezes the first two layers."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 3)),
            layers.Conv2D(4, 3, name="conv", trainable=not frozen),
            layers.BatchNormalization(momentum=0.9, name="first", trainable=not frozen),
            layers.ReLU(),
            layers.DepthwiseConv2D(3, name="depthwise"),
            layers.BatchNormalization(scale=False, name="second"),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(5, name="dense"),
            layers.BatchNormalization(momentum=0.5, name="third"),
            layers.Dense(3, activation="softmax", name="head"),
        ],
        name="net",
    )
    for i, weight in enumerate(model.non_trainable_weights):
        weight.assign(np.random.default_rng(i).uniform(0.5, 2, weight.shape))
    model.compile(keras.optimizers.SGD(RATE), "sparse_categorical_crossentropy")
    return model


def assert_as_in(model: Any, session: TrainingSession, names: list[str]) -> None:
    found = session.parameters()
    for weight in model.weights:
        if any(name in weight.path for name in names):
            np.testing.assert_allclose(found[weight.path], weight.numpy(), rtol=1e-4, atol=1e-5, err_msg=weight.path)


def test_ten_steps_are_those_of_keras(tmp_path: Path) -> None:
    model = net()
    program = converter.build(model, batch=BATCH, batch_norm="train")
    assert [n.subject for n in program.notes if n.status == "trains"] == ["first, second, third"]
    with TrainingSession(program.data) as session:
        for step in range(STEPS):
            rows = BATCH if step % 3 else 4
            expected = float(model.train_on_batch(X[:rows], Y[:rows]))
            assert session.train(X[:rows], Y[:rows], RATE) == pytest.approx(expected, rel=1e-4)
        assert_as_in(model, session, [""])
        given = np.asarray(model(X, training=False))
        np.testing.assert_allclose(session.infer(X), given, rtol=1e-4, atol=1e-5)
        expected = float(-np.log(given[np.arange(BATCH), Y]).mean())
        assert session.evaluate(X, Y)["loss"] == pytest.approx(expected, rel=1e-4)
        session.save(tmp_path / "mine.state")
        before = session.infer(X)
        session.reset()
        assert not np.array_equal(session.infer(X), before)
        session.restore(tmp_path / "mine.state")
        np.testing.assert_array_equal(session.infer(X), before)


#: What multiplies each channel before a layer, which is not what the layer divides by.
SCALES: dict[str, Any] = {
    "rms": lambda: [layers.RMSNormalization()],
    "rms, frozen": lambda: [layers.Dense(3), layers.RMSNormalization(trainable=False)],
    "no shift": lambda: [layers.Dense(3, activation="tanh"), layers.LayerNormalization(center=False)],
    "one number": lambda: [layers.Rescaling(0.5)],
    "minus": lambda: [layers.Dense(3, activation="tanh"), layers.Rescaling(-1)],
}


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("kind", SCALES)
def test_statistics_are_those_of_what_a_scale_before_the_layer_gives(kind: str, axis: int) -> None:
    keras.utils.set_random_seed(0)
    x, y = (RNG.standard_normal((BATCH, 5, 3)).astype(np.float32) for _ in range(2))
    before = SCALES[kind]()
    model = keras.Sequential([keras.Input((5, 3)), *before, layers.BatchNormalization(axis), layers.Dense(3)])
    for weight in model.weights:
        weight.assign(weight + 0.3 * RNG.random(weight.shape))
    model.compile(keras.optimizers.SGD(RATE), "mse")
    program = converter.build(model, batch=BATCH, batch_norm="train", signatures=("train", "infer", "infer_1"))
    with TrainingSession(program.data) as session:
        for _ in range(3):
            assert session.train(x, y) == pytest.approx(float(model.train_on_batch(x, y)), rel=1e-4)
        assert_as_in(model, session, ["batch_normalization", "dense"])
        np.testing.assert_allclose(session.infer(x[:1]), np.asarray(model(x[:1])), rtol=1e-4, atol=1e-5)


def masked_net(kind: str) -> Any:
    """Two batch normalizations behind a mask, the second before what ends the sequence."""
    keras.utils.set_random_seed(0)
    if kind == "rows":  # a mask of whole rows
        inputs = keras.Input((3,))
        hidden = layers.Masking()(inputs)
    elif kind == "values":
        inputs = keras.Input((5, 3))
        hidden = layers.Masking()(inputs)
    else:
        inputs = keras.Input((5,), dtype="int32")
        hidden = layers.Embedding(9, 4, mask_zero=True)(inputs)
    axis = 1 if kind == "other axis" else -1
    hidden = layers.BatchNormalization(axis=axis, momentum=0.7, name="first")(layers.Dense(4)(hidden))
    hidden = layers.BatchNormalization(momentum=0.5, name="second")(layers.Dense(4, activation="tanh")(hidden))
    if kind in ("lstm", "flat"):
        hidden = layers.LSTM(3)(hidden) if kind == "lstm" else layers.Flatten()(hidden)
    model = keras.Model(inputs, layers.Dense(2, name="head")(hidden))
    model.compile(keras.optimizers.SGD(RATE), "mse")
    return model


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "state"),
    [("rows", "split"), ("values", "variables"), ("other axis", "stateless"), ("lstm", "split"), ("flat", "variables")],
)
def test_statistics_are_of_the_places_that_a_mask_leaves(kind: str, state: str) -> None:
    there = np.arange(5) < np.array([5, 1, 3, 2, 4, 0])[:, None]
    values = RNG.standard_normal((BATCH, 5, 3)).astype(np.float32) * there[..., None]
    ids = (RNG.integers(1, 9, (BATCH, 5)) * there).astype(np.int32)
    x = {"values": values, "rows": values[:, 1]}.get(kind, ids)
    model = masked_net(kind)
    y = RNG.standard_normal((BATCH, *model.output_shape[1:])).astype(np.float32)
    program = converter.build(model, batch=BATCH, batch_norm="train", state=state)
    with TrainingSession(program.data) as session:
        for step in range(4):
            rows = BATCH if step % 2 else 4
            expected = float(model.train_on_batch(x[:rows], y[:rows]))
            assert session.train(x[:rows], y[:rows], RATE) == pytest.approx(expected, rel=1e-4)
        assert_as_in(model, session, [""])
        assert session.evaluate(x, y)["loss"] == pytest.approx(model.evaluate(x, y, verbose=0), rel=1e-4)


@pytest.mark.quick
def test_rows_of_weight_0_do_not_count_and_the_others_count_alike() -> None:
    weight = np.array([1, 0, 2, 1, 0, 0.5], np.float32)
    seen = weight > 0
    states = []
    for rows, state in ((slice(None), "variables"), (seen, "stateless"), (slice(None), "split")):
        program = converter.build(net(), batch=BATCH, batch_norm="train", state=state, check=False)
        with TrainingSession(program.data) as session:
            session.train(X[rows], Y[rows], RATE, weight[rows])
            states.append(session.state())
            mean = session.parameters()["net/first/moving_mean"]
    for name, array in states[0].items():
        for state in states[1:]:
            np.testing.assert_allclose(array, state[name], rtol=1e-5, atol=1e-6)
    model = net()
    x = np.asarray(model.layers[0](X[seen])).mean((0, 1, 2))
    started = model.get_layer("first").moving_mean.numpy()
    np.testing.assert_allclose(mean, 0.9 * started + 0.1 * x, rtol=1e-5)


def test_an_accelerator_gives_the_statistics_of_the_batch_and_the_cpu_moves_the_averages() -> None:
    program = converter.build(net(), batch=BATCH, batch_norm="train", state="split", loss_scale=4.0, check=False)
    averages = {t.tensor for t in program.manifest.state_tensors if "moving" in t.tensor}
    gradients, apply = program.manifest.signatures["gradients"], program.manifest.signatures["apply"]
    assert len(averages) == 6
    assert not averages & {spec.name for spec in (*gradients.inputs, *gradients.outputs)}
    assert averages <= {spec.name for spec in apply.giving("state")}
    model = net()
    with TrainingSession(program.data) as session:
        for _ in range(STEPS):
            expected = float(model.train_on_batch(X, Y))
            assert session.train(X, Y, RATE) == pytest.approx(expected, rel=1e-4)
        assert_as_in(model, session, [""])


def test_a_frozen_layer_of_a_class_of_ones_own_keeps_its_statistics() -> None:
    class OwnNorm(keras.layers.BatchNormalization):
        pass

    inputs = keras.Input((8,))
    hidden = keras.layers.BatchNormalization(name="free")(OwnNorm(name="own")(keras.layers.Dense(4)(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    model.get_layer("own").trainable = False
    program = converter.build(model, batch=BATCH, batch_norm="train", check=False)
    said = {note.subject: note.status for note in program.notes if "batch normalization" in note.why}
    assert said == {"free": "trains", "own": "fixed"}


def test_what_the_scheme_freezes_keeps_its_statistics() -> None:
    model, oracle = net(), net(frozen=True)
    oracle.set_weights(model.get_weights())
    update = {"*": 1, "net/conv/*": 0, "net/first/*": 0}
    program = converter.build(model, batch=BATCH, batch_norm="train", update=update)
    said = {note.subject: note.status for note in program.notes if "batch normalization" in note.why}
    assert said == {"second, third": "trains", "first": "fixed"}
    with TrainingSession(program.data) as session:
        for _ in range(3):
            expected = float(oracle.train_on_batch(X, Y))
            assert session.train(X, Y, RATE) == pytest.approx(expected, rel=1e-4)
        assert "net/first/moving_mean" not in session.parameters()
        assert_as_in(oracle, session, ["depthwise", "second", "dense", "third", "head"])


def test_the_export_takes_the_moving_averages_along(tmp_path: Path) -> None:
    program = converter.build(net(), batch=BATCH, batch_norm="train", check=False)
    with TrainingSession(program.data) as session:
        session.train(X, Y, RATE)
        program.export_inference(tmp_path / "plain.tflite", session.state())
        expected = session.infer(X)
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(tmp_path / "plain.tflite")).get_signature_runner("infer")
    (found,) = runner(x=X).values()
    np.testing.assert_array_equal(found, expected)


def test_what_does_not_go_together_is_refused() -> None:
    for options, reason in (
        ({"micro_batch": 2}, "statistics are those of the whole batch"),
        ({"frozen": "int8", "calibration": X}, "int8"),
        ({"update": {"*conv*/kernel": converter.LoRA(2)}}, "LoRA"),
    ):
        with pytest.raises(UsageError, match=reason):
            converter.build(net(), batch=BATCH, batch_norm="train", **options)
    with pytest.raises(UsageError, match="`features`"):
        converter.build(
            net(),
            batch=BATCH,
            batch_norm="train",
            update={"*": 1, "net/conv/*": 0, "net/first/*": 0},
            signatures=("train", "features"),
        )
    with pytest.raises(UsageError, match="fixed or train"):
        converter.build(net(), batch=BATCH, batch_norm="batch")
    plain = Model(lambda w, x: x @ w, np.ones((3, 2), np.float32), [jax.ShapeDtypeStruct((1, 3), "float32")])
    with pytest.raises(UsageError, match="this model has none"):
        converter.build(plain, loss="mse", batch_norm="train")


def test_layers_that_cannot_be_trained_so_are_named() -> None:
    inputs = keras.Input((4,))
    shared = layers.BatchNormalization(name="shared")
    twice = keras.Model(inputs, layers.Dense(2)(shared(shared(inputs))))
    renorm = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(renorm=True, name="re"), layers.Dense(2)])
    for model, reason in ((twice, "shared: .*more than once"), (renorm, "re: .*renorm")):
        with pytest.raises(UnsupportedError, match=reason):
            converter.build(model, loss="mse", batch_norm="train")
        converter.build(model, loss="mse", check=False)
