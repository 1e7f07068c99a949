"""The mask that Keras gives an output is in its loss: against Keras' own training step on JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers, optimizers

import converter
from converter.frontends import keras as keras_frontend
from converter.support.errors import UsageError
from converter.training.losses import named_loss
from tests.steps import stepped

BATCH, PLACES, CLASSES, STEPS = 4, 6, 3, 5
RNG = np.random.default_rng(0)
#: Rows of very different lengths: the mean over places is not the mean over rows.
LENGTHS = np.array([6, 1, 3, 2])
THERE = np.arange(PLACES) < LENGTHS[:, None]
IDS = (RNG.integers(1, 9, (BATCH, PLACES)) * THERE).astype(np.int32)
TAGS = RNG.integers(0, CLASSES, (BATCH, PLACES)).astype(np.int32)
VALUES = RNG.standard_normal((BATCH, PLACES, 2)).astype(np.float32)


def tagger(activation: str | None = "softmax") -> Any:
    keras.utils.set_random_seed(1)
    ids = keras.Input((PLACES,), dtype="int32")
    x = layers.Dense(5, activation="tanh")(layers.Embedding(9, 4, mask_zero=True)(ids))
    return keras.Model(ids, layers.Dense(CLASSES, activation=activation)(x))


def two_outputs() -> Any:
    keras.utils.set_random_seed(1)
    ids = keras.Input((PLACES,), dtype="int32")
    x = layers.Dense(5, activation="tanh")(layers.Embedding(9, 4, mask_zero=True)(ids))
    whole = layers.Dense(2, name="whole")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(ids, [layers.Dense(2, name="values")(x), whole])
    model.compile(optimizers.SGD(0.1), {"values": "mse", "whole": "mae"}, loss_weights={"values": 2.0, "whole": 0.5})
    return model


@pytest.mark.quick
@pytest.mark.parametrize("rows", [BATCH, 2])
def test_a_masked_classifier_trains_as_in_keras(rows: int) -> None:
    model = tagger()
    model.compile(optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    program = converter.build(model, batch=BATCH)
    assert [note.subject for note in program.notes if "mask" in note.why] == ["output"]
    x, y = IDS[:rows], TAGS[:rows]
    expected = [float(model.train_on_batch(x, y)) for _ in range(STEPS)]
    with converter.runtime.TrainingSession(program.data) as session:
        found = [session.train(x, y, learning_rate=0.01) for _ in range(STEPS)]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        answers = np.asarray(model(x))
        np.testing.assert_allclose(session.infer(x), answers, atol=1e-4)
        scores = session.evaluate(x, y)
    assert scores["loss"] == pytest.approx(float(model.evaluate(x, y, verbose=0)), rel=1e-4)
    assert scores["accuracy"] == pytest.approx((answers.argmax(-1) == y)[THERE[:rows]].mean())


def test_only_the_output_that_has_a_mask_is_masked() -> None:
    model = two_outputs()
    y = {"values": VALUES, "whole": VALUES[:, 0]}
    program = converter.build(model, batch=BATCH)
    expected = [float(np.ravel(model.train_on_batch(IDS, y))[0]) for _ in range(STEPS)]
    found = stepped(program, [(IDS, y)] * STEPS, 0.1).losses
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("rows", [BATCH, 10])
def test_metrics_are_of_the_places_that_count_in_all_batches(rows: int) -> None:
    keras.utils.set_random_seed(1)
    ids = keras.Input((PLACES,), dtype="int32")
    x = layers.Dense(5, activation="tanh")(layers.Embedding(9, 4, mask_zero=True)(ids))
    model = keras.Model(ids, layers.Dense(1, activation="sigmoid")(x))
    model.compile("sgd", "binary_crossentropy", metrics=["binary_accuracy", "mae", "mse"])
    x = IDS[np.arange(rows) % BATCH]
    y = np.random.default_rng(3).integers(0, 2, (rows, PLACES, 1)).astype(np.float32)
    expected = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    program = converter.build(model, batch=BATCH)
    with converter.runtime.TrainingSession(program.data) as session:
        found = session.evaluate(x, y, metrics=["binary_accuracy", "mae", "mse", of_places, of_rows])
        whole = np.abs(session.infer(x) - y).mean()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name
    assert found["accuracy"] == found["binary_accuracy"]
    assert (found["of_places"], found["of_rows"]) == pytest.approx((expected["mae"], whole), rel=1e-5)


def of_places(y: np.ndarray, output: np.ndarray) -> np.ndarray:
    return np.abs(output - y).mean(-1)


def of_rows(y: np.ndarray, output: np.ndarray) -> np.ndarray:
    return np.abs(output - y).mean((1, 2))


def test_metrics_of_several_outputs_are_each_of_its_own_places() -> None:
    model = two_outputs()
    model.compile("sgd", "mse", metrics={"values": ["mae"], "whole": ["mae"]})
    y = {"values": VALUES, "whole": VALUES[:, 0]}
    expected = model.evaluate(IDS, y, batch_size=BATCH, verbose=0, return_dict=True)
    with converter.runtime.TrainingSession(converter.build(model, batch=BATCH).data) as session:
        found = session.evaluate(IDS, y, metrics={"values": "mae", "whole": "mae"})
    for name in ("loss", "values_mae", "whole_mae"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5), name


def test_labels_that_a_loss_leaves_out_are_in_no_metric() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((PLACES, 2)), layers.Dense(CLASSES)])
    tags = np.where(THERE, TAGS, -1)
    program = converter.build(
        model, named_loss("sparse_categorical_crossentropy", ignore=-1), "sgd", batch=2, check=False
    )
    with converter.runtime.TrainingSession(program.data) as session:
        found = session.evaluate(VALUES, tags, metrics=["sparse_categorical_accuracy", "top_2"])
    order = np.argsort(-np.asarray(model(VALUES)), -1)
    right = (order == TAGS[..., None])[THERE]
    assert found["accuracy"] == pytest.approx(right[:, 0].mean())
    assert found["sparse_categorical_accuracy"] == pytest.approx(right[:, 0].mean())
    assert found["top_2"] == pytest.approx(right[:, :2].sum(-1).mean())


def test_the_mask_goes_with_the_features() -> None:
    model = tagger(None)  # in one batch, of which the loss is that before the step
    signatures = ("train", "features", "infer")
    program = converter.build(
        model, "sparse_categorical_crossentropy", "sgd", update="head", batch=BATCH, signatures=signatures
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected = float(loss(TAGS, model(IDS)))
    with converter.runtime.TrainingSession(program.data) as session:
        history = session.fit(IDS, TAGS, epochs=1, learning_rate=0.1, progress=False)
    assert history["loss"] == pytest.approx([expected], rel=1e-5)


def test_a_function_of_ones_own_sees_all_places() -> None:
    model = tagger()
    program = converter.build(model, lambda z, y: jnp.mean((z - y) ** 2, (1, 2)), "sgd", batch=BATCH)
    y = np.zeros((BATCH, PLACES, CLASSES), np.float32)
    expected = float(np.square(np.asarray(model(IDS))).mean())
    with converter.runtime.TrainingSession(program.data) as session:
        assert session.evaluate(IDS, y)["loss"] == pytest.approx(expected, rel=1e-5)


def test_micro_batches_are_refused() -> None:
    with pytest.raises(UsageError, match=r"masks its output .* leave micro_batch"):
        converter.build(tagger(), optimizer="sgd", batch=BATCH, micro_batch=2)


def test_in_jax_the_mark_does_nothing() -> None:
    pure = keras_frontend.to_jax_model(tagger())

    @jax.jit
    def total(params: Any) -> jax.Array:
        return jnp.square(pure.apply(params, IDS)).sum()

    assert float(total(pure.params)) == pytest.approx(float(jnp.square(tagger()(IDS)).sum()), rel=1e-5)
    slopes = jax.jit(jax.grad(total))(pure.params)
    assert all(jnp.any(slope != 0) for slope in jax.tree.leaves(slopes))


def test_masked_places_of_zeros_have_no_length_and_a_finite_derivative() -> None:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((PLACES, 2))
    x = layers.ReLU()(layers.UnitNormalization()(layers.Masking()(inputs)))
    x = layers.GlobalMaxPooling1D()(layers.GroupQueryAttention(2, 4, 2)(x, x))
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile(optimizers.SGD(0.05), "mse")
    data, y = VALUES * THERE[..., None], VALUES[:, 0]
    found = stepped(converter.build(model, batch=BATCH, check=False), [(data, y)] * STEPS).losses
    np.testing.assert_allclose(found, [float(model.train_on_batch(data, y)) for _ in range(STEPS)], rtol=1e-4)
