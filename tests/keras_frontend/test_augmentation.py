"""`augment="keras"`: the random layers that a model begins with, in the step alone."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import converter
from converter.support.errors import UsageError

X = np.random.default_rng(0).random((1, 6, 6, 2)).astype(np.float32)
Y = np.zeros((1, 2), np.float32)


def model_of(*random: Any, functional: bool = False) -> Any:
    keras.utils.set_random_seed(0)
    if not functional:
        model = keras.Sequential([keras.Input((6, 6, 2)), *random, layers.Flatten(), layers.Dense(2)])
    else:
        x = inputs = keras.Input((6, 6, 2))
        for layer in random:
            x = layer(x)
        model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))
    model.compile("sgd", "mse")
    return model


def losses_of(program: converter.Program, steps: int = 24) -> list[float]:
    """Of steps at rate 0, which differ by the random numbers alone."""
    with converter.runtime.TrainingSession(program.data) as session:
        return [session.train(X, Y, learning_rate=0.0) for _ in range(steps)]


def loss_of(model: Any, x: np.ndarray) -> float:
    return float(np.square(np.asarray(model(x, training=False))).mean())


@pytest.mark.parametrize("functional", [False, True])
def test_pictures_are_flipped_in_some_steps(functional: bool, tmp_path: Path) -> None:
    model = model_of(layers.RandomFlip("horizontal"), functional=functional)
    model.save(tmp_path / "flips.keras")
    for source in (model, tmp_path / "flips.keras"):
        program = converter.build(source, batch=1, augment="keras", check=False)
        expected = sorted([loss_of(model, X), loss_of(model, X[:, :, ::-1])])
        found = losses_of(program)
        np.testing.assert_allclose(sorted(set(np.round(found, 6))), expected, atol=2e-6)
        with converter.runtime.TrainingSession(program.data) as session:
            np.testing.assert_allclose(session.infer(X), np.asarray(model(X, training=False)), atol=1e-5)
    (note,) = [note for note in program.notes if "random_flip" in note.subject + note.why]
    assert note.status == "trains"


def test_layers_in_a_row_and_in_a_model() -> None:
    bright = layers.RandomBrightness(0.2, value_range=(0, 10))
    nested = keras.Sequential([layers.RandomFlip("vertical"), layers.GaussianNoise(0.0)], name="more")
    with pytest.raises(UsageError, match="does not begin with"):
        converter.build(model_of(nested), batch=1, augment="keras")
    model = model_of(bright, keras.Sequential([layers.RandomFlip("vertical")]))
    found = losses_of(converter.build(model, batch=1, augment="keras", check=False))
    shifts = np.linspace(-2, 2, 41)
    ends = [loss_of(model, np.clip(flipped + by, 0, 10)) for flipped in (X, X[:, ::-1]) for by in shifts]
    assert len(set(np.round(found, 6))) > len(found) / 2
    assert min(ends) - 1e-6 <= min(found) <= max(found) <= max(ends) + 1e-6


@pytest.mark.parametrize(
    "layer",
    [
        *(layers.RandomRotation(0.2), layers.RandomTranslation(0.2, 0.2), layers.RandomZoom(0.2)),
        *(layers.RandomContrast(0.5), layers.RandomErasing(1.0)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_each_changes_with_the_step(layer: Any) -> None:
    found = losses_of(converter.build(model_of(layer), batch=1, augment="keras", check=False), 6)
    assert len(set(found)) > 3
    assert np.isfinite(found).all()


def test_what_it_cannot_mean_is_refused() -> None:
    behind = model_of(layers.RandomFlip(), layers.Rescaling(2.0), layers.RandomFlip(name="late"))
    for model, why in ((model_of(), "does not begin with random layers"), (behind, "late stand behind layers")):
        with pytest.raises(UsageError, match=why):
            converter.build(model, batch=1, augment="keras")


def test_what_is_left_out_says_how_to_have_it() -> None:
    program = converter.build(model_of(layers.RandomFlip()), batch=1, check=False)
    (note,) = [note for note in program.notes if note.status == "left out"]
    assert "augment='keras'" in note.why


def test_a_layer_that_it_does_not_mean_is_not_said_to_be_had_by_it() -> None:
    model = model_of(layers.RandomCrop(6, 6))
    notes = converter.build(model, batch=1, check=False).notes
    assert not any("augment='keras'" in note.why for note in notes)


def test_plans_and_models_of_open_shapes_take_it() -> None:
    model = model_of(layers.RandomFlip())
    assert converter.compare_schemes(model, ["full"], batch=1, augment="keras")
    x = image = keras.Input((None, None, 2))
    pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(2, 3)(layers.RandomFlip()(x)))
    opened = keras.Model(image, layers.Dense(2)(pooled))
    assert converter.build(opened, loss="mse", batch=1, augment="keras", inputs=[X], check=False)
