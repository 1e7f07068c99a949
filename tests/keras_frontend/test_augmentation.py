"""`augment="keras"`: the random layers that a model begins with, in the step alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import keras
import numpy as np
import pytest
from keras import layers

import converter
from converter.frontends.keras.augmentation import own_augmentation
from converter.support.errors import UnsupportedError, UsageError
from tests.steps import stepped

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
    return stepped(program, [(X, Y)] * steps, 0.0).losses


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
    nested = keras.Sequential([layers.GaussianNoise(0.0), layers.RandomFlip("vertical", name="late")], name="more")
    with pytest.raises(UsageError, match="late come after layers"):
        converter.build(model_of(nested), batch=1, augment="keras")
    model = model_of(bright, keras.Sequential([layers.RandomFlip("vertical")]))
    found = losses_of(converter.build(model, batch=1, augment="keras", check=False))
    shifts = np.linspace(-2, 2, 41)
    ends = [loss_of(model, np.clip(flipped + by, 0, 10)) for flipped in (X, X[:, ::-1]) for by in shifts]
    assert len(set(np.round(found, 6))) > len(found) / 2
    assert min(ends) - 1e-6 <= min(found) <= max(found) <= max(ends) + 1e-6


PICTURES = np.random.default_rng(1).uniform(0, 255, (3, 8, 7, 3)).astype(np.float32)
#: All layers of Keras that change pictures at random.
LAYERS: dict[str, Callable[[], Any]] = {
    "Equalization": lambda: layers.Equalization(bins=16),
    "Solarization": lambda: layers.Solarization(0.5, 0.5),
    "RandomBrightness": lambda: layers.RandomBrightness(0.3),
    "RandomColorDegeneration": lambda: layers.RandomColorDegeneration(0.5),
    "RandomColorJitter": lambda: layers.RandomColorJitter((0, 255), 0.3, 0.3, (0.3, 0.6), 0.3),
    "RandomContrast": lambda: layers.RandomContrast(0.5),
    "RandomErasing": lambda: layers.RandomErasing(1.0),
    "RandomFlip": lambda: layers.RandomFlip(),
    "RandomGaussianBlur": lambda: layers.RandomGaussianBlur(1.0),
    "RandomGrayscale": lambda: layers.RandomGrayscale(0.5),
    "RandomHue": lambda: layers.RandomHue(0.5),
    "RandomInvert": lambda: layers.RandomInvert(1.0),
    "RandomPosterization": lambda: layers.RandomPosterization(4),
    "RandomRotation": lambda: layers.RandomRotation(0.2, fill_mode="nearest"),
    "RandomSaturation": lambda: layers.RandomSaturation((0.3, 0.6)),
    "RandomSharpness": lambda: layers.RandomSharpness(0.5),
    "RandomShear": lambda: layers.RandomShear(0.2, 0.2),
    "RandomTranslation": lambda: layers.RandomTranslation(0.2, 0.2),
    "RandomZoom": lambda: layers.RandomZoom(0.2),
    "Pipeline": lambda: layers.Pipeline([layers.RandomFlip(), layers.RandomBrightness(0.3)]),
}


@contextmanager
def drawn() -> Iterator[None]:
    """While it lasts, the random numbers of Keras are the same in a trace and outside of it."""
    import keras.src.backend.jax.random as source

    rng = np.random.default_rng(3)

    def uniform(shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None) -> Any:
        return minval + (maxval - minval) * rng.random(shape).astype(np.float32)

    def randint(shape: Any, minval: Any, maxval: Any, dtype: str = "int32", seed: Any = None) -> Any:
        return jax.numpy.asarray(rng.integers(minval, maxval, shape), dtype)

    def normal(shape: Any, dtype: Any = None, seed: Any = None) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    with patch.multiple(source, uniform=uniform, randint=randint, normal=normal):
        yield


def pictures_into(layer: Any) -> Any:
    return keras.Sequential([keras.Input((8, 7, 3)), layer, layers.Flatten(), layers.Dense(2)])


@pytest.mark.parametrize("kind", [*LAYERS, pytest.param("RandAugment", marks=pytest.mark.slow)])
def test_each_does_what_it_does_in_keras(kind: str) -> None:
    layer = LAYERS[kind]() if kind in LAYERS else getattr(layers, kind)()
    own = own_augmentation(pictures_into(layer))
    with drawn():
        expected = np.asarray(layer(PICTURES, training=True))
    with drawn():
        (found,) = converter.function(lambda x: own(x, jax.random.key(0)), PICTURES).run(PICTURES)
    assert np.abs(expected - PICTURES).max() > 1
    np.testing.assert_allclose(found, expected, atol=2e-2)


@pytest.mark.parametrize("container", [None, keras.Sequential, layers.Pipeline])
def test_layers_behind_rescaling_and_normalization(container: Any) -> None:
    """In a step these change what the layers before give; all stay as they are elsewhere."""
    normalization = layers.Normalization()
    normalization.adapt(PICTURES / 255)
    parts = [layers.Rescaling(1 / 255, 0.1), layers.RandomFlip(), normalization, layers.RandomBrightness(0.2, (-3, 3))]
    parts = [container(parts)] if container else parts
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8, 7, 3)), *parts, layers.Rescaling(2.0), layers.Flatten(), layers.Dense(2)])
    model.compile("sgd", "mse")
    y = np.ones((3, 2), np.float32)
    with drawn():
        expected = float(np.square(np.asarray(model(PICTURES, training=True)) - y).mean())
    with drawn():
        program = converter.build(model, batch=3, augment="keras", check=False)
    with converter.runtime.TrainingSession(program.data) as session:
        assert session.train(PICTURES, y, 0.0) == pytest.approx(expected, rel=1e-4)
        np.testing.assert_allclose(session.infer(PICTURES), np.asarray(model(PICTURES, training=False)), rtol=1e-4)
    assert not [note for note in program.notes if note.status == "left out"]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "AugMix": (lambda: layers.AugMix(), "AugMix 'it' cannot be compiled: Keras on JAX chooses its operations once"),
    "CutMix": (lambda: layers.CutMix(), "CutMix 'it' cannot be compiled: .* labels"),
    "MixUp": (lambda: layers.MixUp(), "MixUp 'it' cannot be compiled: .* labels"),
    "RandomElasticTransform": (
        lambda: layers.RandomElasticTransform(),
        "'it' cannot be compiled: the size of",
    ),
    "RandomPerspective": (lambda: layers.RandomPerspective(), "'it' cannot be compiled: it solves a system"),
    "AutoContrast": (lambda: layers.AutoContrast(), "does not begin with random layers"),
    "equalization that is always there": (
        lambda: layers.ContrastLimitedAdaptiveHistogramEqualization(),
        "does not begin with random layers",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_step_does_is_refused_by_name(kind: str) -> None:
    make, why = REFUSED[kind]
    layer = make()
    layer.name = "it"
    with pytest.raises(UsageError, match=why):
        converter.build(pictures_into(layer), "mse", batch=1, augment="keras")


def test_layers_that_always_act_do_so_once() -> None:
    """Behind the random ones, and as in inference."""
    model = model_of(layers.RandomFlip("horizontal"), layers.AutoContrast((0, 1)))
    expected = sorted([loss_of(model, X), loss_of(model, X[:, :, ::-1])])
    found = losses_of(converter.build(model, batch=1, augment="keras", check=False))
    np.testing.assert_allclose(sorted(set(np.round(found, 6))), expected, atol=2e-6)


def test_random_numbers_that_are_drawn_and_not_used_are_no_note() -> None:
    program = converter.build(pictures_into(layers.RandomGrayscale(0.5)), "mse", batch=1, augment="keras", check=False)
    assert not [note for note in program.notes if note.status == "left out"]


class Branching(layers.Layer):
    """Python asks what only a step knows."""

    def call(self, x: Any) -> Any:
        return x if keras.ops.sum(x) > 0 else -x

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype)


def test_a_layer_that_asks_for_a_number_is_named() -> None:
    with pytest.raises(UnsupportedError, match="Branching 'it' cannot be compiled: its Python asks"):
        converter.build(model_of(Branching(name="it")), batch=1)


def test_what_it_cannot_mean_is_refused() -> None:
    after = model_of(layers.RandomFlip(), layers.ReLU(), layers.RandomFlip(name="late"))
    for model, why in ((model_of(), "does not begin with random layers"), (after, "late come after layers")):
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
