"""What a model does in training alone is computed as Keras does, or said; nothing is dropped in silence."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, regularizers

import converter
from converter.support.notes import Note
from tests.steps import stepped

BATCH, STEPS, RATE = 4, 10, 0.1
RNG = np.random.default_rng(0)


class Own(layers.Layer):
    def call(self, x: Any, training: bool = False) -> Any:
        return 2 * x if training else x


class Deaf(layers.Layer):
    def call(self, x: Any, training: bool = False) -> Any:
        return 2 * x


class OwnSteps(keras.Model):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return 10 * super().compute_loss(*args, **kwargs)

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class OwnLoss(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.sum(x))
        return x


def model_of(*middle: Any, shape: tuple[int, ...] = (6, 6, 3)) -> Any:
    return keras.Sequential([keras.Input(shape), *middle, layers.Flatten(), layers.Dense(3, name="head")], name="net")


def notes(model: Any) -> list[Note]:
    program = converter.build(model, loss="mse", optimizer="sgd", batch=2, check=False)
    return [note for note in program.notes if note.status != "a default"]  # the rate of sgd


@pytest.mark.parametrize(
    ("layer", "status", "why"),
    [
        (layers.Dropout(0.5, name="it"), "left out", "Dropout(rate=0.5)"),
        (layers.SpatialDropout2D(0.25, name="it"), "left out", "SpatialDropout2D(rate=0.25)"),
        (layers.GaussianNoise(0.1, name="it"), "left out", "GaussianNoise(stddev=0.1)"),
        (layers.GaussianDropout(0.1, name="it"), "left out", "GaussianDropout(rate=0.1)"),
        (layers.RandomFlip(name="it"), "left out", "RandomFlip"),
        (layers.RandomRotation(0.1, name="it"), "left out", "RandomRotation"),
        (layers.BatchNormalization(name="it"), "fixed", "moving statistics"),
        (layers.ActivityRegularization(l2=0.1, name="it"), "in the loss", "activity regularizer L1L2"),
        (layers.Dense(3, activity_regularizer="l2", name="it"), "in the loss", "activity regularizer L2"),
        (layers.Dense(3, kernel_regularizer="l2", name="it"), "in the loss", "L2 (l2 0.01)"),
        (layers.Dense(3, bias_regularizer=regularizers.L1L2(0.1, 0.2), name="it"), "in the loss", "(l1 0.1, l2 0.2)"),
        (layers.Dense(3, kernel_regularizer="orthogonal_regularizer", name="it"), "left out", "OrthogonalRegularizer"),
        (
            layers.Dense(3, kernel_constraint="max_norm", name="it"),
            "as compiled",
            "constraint MaxNorm(max_value=2, axis=0)",
        ),
        (layers.SpectralNormalization(layers.Dense(3), name="it"), "left out", "divides the weight by its norm"),
        (layers.Dense(3, dtype="mixed_float16", name="it"), "in float32", "mixed_float16: the program computes in"),
        (Own(name="it"), "left out", "what Own.call does for training=True"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, layers.Layer) else None,
)
def test_each_is_named_with_its_layer(layer: Any, status: str, why: str) -> None:
    (note,) = notes(model_of(layer))
    assert "it" in note.subject
    assert note.status == status
    assert why in note.why


@pytest.mark.parametrize(
    "layer", [layers.Dropout(0.0), layers.ReLU(), layers.Dense(3), layers.LayerNormalization(), Deaf()]
)
def test_nothing_is_said_of_what_is_the_same_in_training(layer: Any) -> None:
    assert not notes(model_of(layer))


def test_steps_of_ones_own_are_named() -> None:
    inputs = keras.Input((6,))
    said = notes(OwnSteps(inputs, layers.Dense(3)(inputs), name="mine"))
    assert [(n.subject, n.why.partition(":")[0]) for n in said] == [
        ("mine", "OwnSteps.compute_loss"),
        ("mine", "OwnSteps.train_step"),
    ]


def test_kernels_that_keras_froze_are_named() -> None:
    adapted, quantized = model_of(), model_of(layers.Dense(3, name="it"))
    adapted.get_layer("head").enable_lora(2)
    quantized.get_layer("it").quantize("int8")
    assert [(n.subject, n.status, "enable_lora" in n.why) for n in notes(adapted)] == [("head", "fixed", True)]
    assert [(n.subject, n.status, "(int8)" in n.why) for n in notes(quantized)] == [("it", "fixed", True)]


def test_what_recurrent_and_attention_layers_drop_is_named() -> None:
    inputs = keras.Input((4, 6))
    x = layers.MultiHeadAttention(2, 3, dropout=0.2, name="attention")(inputs, inputs)
    x = layers.LSTM(3, dropout=0.1, recurrent_dropout=0.3, name="memory")(x)
    said = [(n.subject, n.why.partition(":")[0]) for n in notes(keras.Model(inputs, layers.Dense(2)(x)))]
    assert "attention" in said[0][0]
    assert said[0][1] == "Dropout(rate=0.2)"
    assert said[1:] == [("memory", "dropout(rate=0.1)"), ("memory", "recurrent_dropout(rate=0.3)")]


def test_a_loss_that_a_layer_adds_is_said() -> None:
    (note,) = notes(model_of(OwnLoss()))
    assert note.status == "left out"
    assert "1 losses of its own (add_loss)" in note.why


def test_layers_of_which_the_same_is_said_stand_together() -> None:
    said = notes(model_of(*[layers.Dropout(0.5, name=f"drop{i}") for i in range(5)]))
    assert len(said) == 1
    assert said[0].subject.endswith("and 2 more")


@pytest.mark.quick
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_regularizers_train_as_in_keras(micro_batch: int | None) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 3)),
            layers.Conv2D(4, 3, kernel_regularizer=regularizers.L2(0.03), activity_regularizer="l1", name="conv"),
            layers.BatchNormalization(gamma_regularizer=regularizers.L2(0.02), trainable=False),
            layers.ActivityRegularization(0.002, 0.003),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(
                5,
                kernel_regularizer=regularizers.L1L2(0.001, 0.01),
                bias_regularizer="l1",
                name="hidden",
                bias_initializer="ones",
            ),
            layers.Dense(3, activation="softmax", kernel_regularizer="l1", activity_regularizer=regularizers.L2(0.3)),
        ]
    )
    x = RNG.standard_normal((BATCH, 6, 6, 3)).astype(np.float32)
    y = RNG.integers(0, 3, BATCH).astype(np.int32)
    model.compile(keras.optimizers.SGD(RATE), "sparse_categorical_crossentropy")
    program = converter.build(model, batch=BATCH, micro_batch=micro_batch)
    # Of all rows and of a part: not by Model.evaluate, which on a busy machine once gave another loss of the same rows.
    evaluated = {rows: float(model.compute_loss(y=y[:rows], y_pred=model(x[:rows]))) for rows in (BATCH, 3)}
    expected = [float(model.train_on_batch(x, y)) for _ in range(STEPS)]
    with converter.runtime.TrainingSession(program.data) as session:
        for rows, loss in evaluated.items():
            assert session.evaluate(x[:rows], y[:rows])["loss"] == pytest.approx(loss, rel=1e-5)
        found = [session.train(x, y, learning_rate=RATE) for _ in range(STEPS)]
        np.testing.assert_allclose(found, expected, rtol=5e-5)
        for weight in model.trainable_weights:
            np.testing.assert_allclose(session.parameters()[weight.path], weight.numpy(), rtol=1e-3, atol=1e-5)


@keras.saving.register_keras_serializable("tests")
class Twice(layers.Layer):
    """A layer of layers, which calls one of them twice: both count."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inner = layers.Dense(4, activity_regularizer=regularizers.L2(0.1))

    def build(self, shape: Any) -> None:
        self.inner.build(shape)

    def call(self, x: Any) -> Any:
        return self.inner(self.inner(x))


class Subclassed(keras.Model):
    """Calls a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.last = layers.Dense(4, activity_regularizer=regularizers.L1(0.1)), layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.last(self.shared(x) + self.shared(2 * x))


def shared_model(how: str) -> keras.Model:
    """A regularized layer that is used twice: directly, in a model that is used twice, in a layer, in a subclass."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    shared = layers.Dense(4, activity_regularizer=regularizers.L2(0.1))
    if how == "subclass":
        model = Subclassed()
        model(np.zeros((1, 4), np.float32))
        return model
    if how == "in a layer":
        return keras.Model(inputs, layers.Dense(1)(Twice()(inputs)))
    if how == "in a model":
        inside = keras.Input((4,))
        shared = keras.Model(inside, shared(inside))
    return keras.Model(inputs, layers.Dense(1)(layers.Add()([shared(inputs), shared(2 * inputs)])))


@pytest.mark.parametrize("how", ["directly", "in a model", "in a layer", "subclass"])
def test_of_the_uses_of_a_shared_layer_those_count_that_count_in_keras(how: str) -> None:
    model = shared_model(how)
    x, y = RNG.standard_normal((BATCH, 4)).astype(np.float32), np.zeros((BATCH, 1), np.float32)
    model.compile(keras.optimizers.SGD(RATE), "mse")
    program = converter.build(model, batch=BATCH, check=False)
    assert not any("add_loss" in note.why for note in program.notes)
    expected = [float(model.train_on_batch(x, y)) for _ in range(3)]
    np.testing.assert_allclose(stepped(program, [(x, y)] * 3).losses, expected, rtol=1e-5)


def test_what_is_frozen_pays_no_penalty() -> None:
    model = model_of(layers.Dense(3, kernel_regularizer="l2", name="first"))
    x, y = RNG.standard_normal((2, 6, 6, 3)).astype(np.float32), np.zeros((2, 3), np.float32)
    program = converter.build(model, loss="mse", optimizer="sgd", update="head", batch=2)
    with converter.runtime.TrainingSession(program.data) as session:
        plain = float(np.square(np.asarray(model(x, training=False))).mean())
        assert session.evaluate(x, y)["loss"] == pytest.approx(plain, rel=1e-5)


def test_what_a_call_assigns_is_said() -> None:
    """A counter of one's own and the state of a recurrent layer; moving statistics are no such thing."""

    class Count(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.calls = self.add_weight(shape=(), trainable=False, initializer="zeros", name="calls")

        def call(self, x: Any) -> Any:
            self.calls.assign_add(1.0)
            return x * (1 + self.calls)

    model = keras.Sequential([keras.Input((3,)), Count(name="count"), keras.layers.Dense(2)])
    said = {note.subject: note.why for note in converter.build(model, batch=2, check=False).notes}
    assert any("assigns to it" in why for subject, why in said.items() if subject.endswith("count/calls"))
    recurrent = keras.Sequential(
        [keras.Input((5, 3), batch_size=2), keras.layers.LSTM(4, stateful=True), keras.layers.Dense(2)]
    )
    notes = converter.build(recurrent, batch=2, check=False).notes
    assert any("assigns to it" in note.why for note in notes)
    plain = keras.Sequential(
        [keras.Input((5, 3)), keras.layers.LSTM(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    )
    assert not any("assigns to it" in note.why for note in converter.build(plain, loss="mse", batch=2).notes)
