"""Preprocessing layers inside a model: each computes what Keras computes, or is refused by name."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import converter
from converter.support.errors import UnsupportedError

ROWS = 4
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 13, (ROWS, 3)).astype(np.int32)
VALUES = RNG.standard_normal((ROWS, 3)).astype(np.float32)
PICTURES = (255 * RNG.random((ROWS, 8, 8, 3))).astype(np.float32)
VOCABULARY = [2, 5, 7, 11]


@keras.saving.register_keras_serializable()
class AsNumbers(layers.Layer):
    """float32 of anything."""

    def call(self, x: Any) -> Any:
        return keras.ops.cast(x, "float32")


class ByNumpy(layers.Layer):
    """Leaves JAX."""

    def call(self, x: Any) -> Any:
        return keras.ops.convert_to_tensor(np.sort(np.asarray(x)))

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype)


def model_of(layer: Any, x: np.ndarray) -> Any:
    keras.utils.set_random_seed(0)
    inputs = keras.Input(x.shape[1:], dtype=str(x.dtype))
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(AsNumbers()(layer(inputs)))))
    model.compile("sgd", "mse")
    return model


def adapted(layer: Any, x: np.ndarray) -> Any:
    layer.adapt(x)
    return layer


LOOKUPS = {
    "int": {},
    "int64, masked": {"mask_token": 0, "num_oov_indices": 3},
    "one hot": {"output_mode": "one_hot"},
    "multi hot": {"output_mode": "multi_hot", "mask_token": 0, "max_tokens": 9, "pad_to_max_tokens": True},
    "count": {"output_mode": "count", "num_oov_indices": 2},
    "weighed": {"output_mode": "tf_idf", "idf_weights": [0.1, 0.2, 0.3, 0.4]},
    "inverse": {"invert": True},
}
LAYERS: list[tuple[Any, np.ndarray]] = [
    (layers.Discretization([-0.5, 0.0, 0.5]), VALUES),
    (layers.CategoryEncoding(13, output_mode="count"), IDS),
    (adapted(layers.Normalization(), VALUES), VALUES),
    (layers.Rescaling(1 / 127.5, -1), PICTURES.astype(np.uint8)),
    (layers.Resizing(5, 6, interpolation="bicubic"), PICTURES),
    (layers.CenterCrop(5, 4), PICTURES),
    (adapted(layers.IntegerLookup(), IDS), IDS),
]


def infers_alike(model: Any, source: Any, x: np.ndarray) -> None:
    with converter.runtime.TrainingSession(converter.build(source, batch=ROWS, check=False).data) as session:
        np.testing.assert_allclose(session.infer(x), np.asarray(model(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", LOOKUPS.values(), ids=LOOKUPS)
def test_integers_are_looked_up_as_in_keras(options: dict[str, Any]) -> None:
    model = model_of(layers.IntegerLookup(vocabulary=VOCABULARY, **options), IDS)
    infers_alike(model, model, IDS)


@pytest.mark.parametrize(("layer", "x"), LAYERS, ids=[type(layer).__name__ for layer, _ in LAYERS])
def test_each_computes_what_keras_computes(layer: Any, x: np.ndarray) -> None:
    model = model_of(layer, x)
    infers_alike(model, model, x)


def test_a_vocabulary_in_a_file(tmp_path: Path) -> None:
    model = model_of(adapted(layers.IntegerLookup(), IDS), IDS)
    model.save(tmp_path / "lookup.keras")
    infers_alike(model, tmp_path / "lookup.keras", IDS)


@pytest.mark.parametrize(
    ("layer", "x", "why"),
    [
        (layers.Hashing(5, name="it"), IDS, "Hashing 'it': it hashes by text"),
        (layers.IntegerLookup(vocabulary=VOCABULARY, num_oov_indices=0, name="it"), IDS, "'it': num_oov_indices=0"),
        (layers.IntegerLookup(vocabulary=[1 << 40], name="it"), IDS, "'it': its vocabulary has numbers that are not"),
        (ByNumpy(name="it"), VALUES, "ByNumpy 'it' cannot be compiled: it hands what it is given to NumPy"),
    ],
    ids=["hashing", "no place for others", "int64", "numpy"],
)
def test_what_cannot_be_compiled_is_named(layer: Any, x: np.ndarray, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why) as caught:
        converter.build(model_of(layer, x), batch=ROWS)
    (site,) = caught.value.sites
    assert (site.layer, bool(site.advice)) == ("it", True)


def test_layers_of_text_are_all_named() -> None:
    text = keras.Input((1,), dtype="string")
    words = layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=4, name="words")(text)
    kind = layers.StringLookup(vocabulary=["a", "b"], output_mode="multi_hot", name="kind")(text)
    crossed = layers.HashedCrossing(5, name="crossed")((text, text))
    parts = [AsNumbers()(part) for part in (words, kind, crossed)]
    model = keras.Model(text, layers.Dense(2)(layers.Concatenate()(parts)))
    with pytest.raises(UnsupportedError) as caught:
        converter.build(model, "mse", batch=ROWS)
    assert {site.layer for site in caught.value.sites} == {"words", "kind", "crossed"}
