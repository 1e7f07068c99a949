"""`.keras` files: what is good loads, what is not is refused before anything of it is loaded."""

import json
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras import layers

from converter.frontends import keras as keras_frontend
from converter.frontends.keras.importer import load
from converter.ir import evaluate
from converter.support.errors import NumericError, PocketuneError, UnsupportedError, UsageError
from tests.keras_frontend.models import KINDS, functional, predict, randomized, samples, sequential, subclassed


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    randomized(functional()).save(path)
    return path


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_model(*_: Any, **__: Any) -> None:
        raise AssertionError("Keras was asked to load it")

    monkeypatch.setattr(keras.saving, "load_model", load_model)


def rewritten(source: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of an archive whose members were changed."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target


def with_config(source: Path, target: Path, change: Callable[[Any], None]) -> Path:
    def apply(members: dict[str, bytes]) -> None:
        config = json.loads(members["config.json"])
        change(config)
        members["config.json"] = json.dumps(config).encode()

    return rewritten(source, target, apply)


# -- what loads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["functional", "sequential", "sequential built late", "subclassed", "nested"])
def test_a_file_is_the_model_that_was_saved(kind: str, tmp_path: Path) -> None:
    build, specs = KINDS[kind]
    model = randomized(build())
    model.save(tmp_path / "model.keras")
    graph = keras_frontend.trace(str(tmp_path / "model.keras"), 3)
    # Keras itself drops the outermost name of some models when it loads them.
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert {p.name for p in graph.parameters.values()} == {v.path for v in loaded.weights}
    if kind == "functional":
        assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    arrays = samples(specs)
    np.testing.assert_allclose(evaluate(graph, arrays)[0]["output"], predict(model, arrays)[0], rtol=2e-5, atol=2e-5)


def test_no_first_weights_are_made_for_a_file(tmp_path: Path) -> None:
    """JAX would compile a function for each shape of them. What a file has no value for begins as in Keras."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.GaussianNoise(0.1)(layers.Dense(3, kernel_initializer="zeros")(inputs)))
    randomized(model).save(tmp_path / "model.keras")

    def of_no_use(config: Any) -> None:
        dense = next(layer for layer in config["config"]["layers"] if layer["class_name"] == "Dense")["config"]
        dense["kernel_initializer"] |= {"class_name": "Constant", "config": {"value": [[1] * 10**4] * 20}}

    loaded = load(with_config(tmp_path / "model.keras", tmp_path / "changed.keras", of_no_use))
    assert [v.shape for v in loaded.variables] == [v.shape for v in model.variables]
    for found, expected in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert all(np.isfinite(v).all() for v in loaded.variables)


def test_trainable_is_kept(tmp_path: Path) -> None:
    model = functional()
    model.get_layer("stem").trainable = False
    model.save(tmp_path / "model.keras")
    graph = keras_frontend.trace(tmp_path / "model.keras", 1)
    assert {p.name for p in graph.parameters.values() if p.trainable} == {v.path for v in model.trainable_variables}


def test_a_loss_of_the_persons_own_does_not_matter(tmp_path: Path) -> None:
    def own_loss(y: Any, z: Any) -> Any:
        return (y - z) ** 2

    model = sequential()
    model.compile("adam", own_loss)
    model.save(tmp_path / "model.keras")
    assert keras_frontend.trace(tmp_path / "model.keras", 1).outputs


# -- what is no model file ---------------------------------------------------------------------------------------------


def test_a_missing_file_suggests_its_neighbour(saved: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file: .*modell\.keras\. Did you mean 'model\.keras'"):
        keras_frontend.trace(saved.with_name("modell.keras"), 1)


def test_directories(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory, and no SavedModel"):
        keras_frontend.trace(tmp_path, 1)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("name", ["model.h5", "model.hdf5", "h5_inside.keras"])
def test_legacy_hdf5_is_refused(name: str, tmp_path: Path, nothing_is_loaded: None) -> None:
    sequential().save(tmp_path / "model.h5")
    path = (tmp_path / "model.h5").rename(tmp_path / name)
    with pytest.raises(UsageError, match=r'a legacy HDF5 model.*model\.save\("model\.keras"\)'):
        keras_frontend.trace(path, 1)


class Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploited"),)


@pytest.mark.parametrize("name", ["model.pkl", "model.pickle", "model.joblib", "pickle_inside.keras", "model.pt"])
def test_pickles_are_refused_unread(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps(Exploit()))
    with pytest.raises(UsageError, match="pickle"):
        keras_frontend.trace(tmp_path / name, 1)
    assert not (tmp_path / "exploited").exists()


def test_another_suffix(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    path.write_bytes(saved.read_bytes())
    with pytest.raises(UsageError, match=r"no \.keras suffix"):
        keras_frontend.trace(path, 1)


# -- damaged archives --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file(saved: Path, tmp_path: Path, kept: float, nothing_is_loaded: None) -> None:
    content = saved.read_bytes()
    path = tmp_path / "model.keras"
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(UsageError, match=r"model\.keras is no \.keras archive, or it is truncated.*copy it again"):
        keras_frontend.trace(path, 1)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_give_an_error_for_people(saved: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(saved.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # The directory at the end and the headers are small: half of the damage is done there.
        low = data.draw(st.sampled_from([0, max(0, len(content) - 400)]))
        content[data.draw(st.integers(low, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.keras"
    path.write_bytes(content)
    with suppress(PocketuneError):  # what was hit may also be padding
        keras_frontend.check_archive(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("config.json"), "lacks config.json"),
        (lambda m: m.pop("model.weights.h5"), "lacks config.json or model.weights.h5"),
        (lambda m: m.update({"config.json": b"{not json"}), "config.json is not valid"),
        (lambda m: m.update({"config.json": b"\xff\xfe"}), "config.json is not valid"),
        (lambda m: m.update({"config.json": b"[" * 100_000}), "config.json is not valid"),
        (lambda m: m.update({"config.json": b"[]"}), "describes no model"),
        (lambda m: m.update({"../evil": b""}), "points outside"),
        (lambda m: m.update({"/etc/evil": b""}), "points outside"),
        (lambda m: m.update({"model.weights.h5": b"no weights"}), "cannot load"),
        (lambda m: m.update({"model.weights.h5": m["model.weights.h5"][:2000]}), "cannot load"),
    ],
)
def test_an_archive_with_the_wrong_members(
    saved: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], None], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        keras_frontend.trace(rewritten(saved, tmp_path / "model.keras", change), 1)


def test_a_decompression_bomb(saved: Path, tmp_path: Path, nothing_is_loaded: None) -> None:
    path = tmp_path / "model.keras"
    path.write_bytes(saved.read_bytes())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("assets/zeros", bytes(20 << 20))
    with pytest.raises(UsageError, match="decompression bomb"):
        keras_frontend.trace(path, 1)


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    model = sequential()
    model.get_layer("head").bias.assign(np.full(5, np.nan))
    model.save(tmp_path / "model.keras")
    with pytest.raises(NumericError, match=r"head/bias: 5 elements"):
        keras_frontend.trace(tmp_path / "model.keras", 1)


@keras.saving.register_keras_serializable("tests")
def bent(x: Any) -> Any:
    return keras.ops.maximum(x, 0.5 * x)


@pytest.mark.parametrize(
    "activation", ["gelu", keras.activations.silu, keras.ops.relu, keras.layers.LeakyReLU(0.1), bent]
)
def test_functions_of_keras_and_registered_ones_are_let_through(activation: Any, tmp_path: Path) -> None:
    model = randomized(keras.Sequential([keras.Input((4,)), layers.Dense(3, activation=activation)]))
    model.save(tmp_path / "model.keras")
    arrays = samples([((4,), "float32")])
    found = evaluate(keras_frontend.trace(tmp_path / "model.keras", 3), arrays)[0]["output"]
    np.testing.assert_allclose(found, predict(model, arrays)[0], rtol=2e-5, atol=2e-6)


def test_operations_of_keras_are_let_through(tmp_path: Path) -> None:
    inputs = keras.Input((4, 3))
    x = keras.ops.concatenate([keras.ops.mean(inputs, axis=1), inputs[:, 0] + 1.0], axis=-1)
    keras.Model(inputs, keras.ops.softmax(layers.Dense(2)(x))).save(tmp_path / "model.keras")
    assert keras_frontend.trace(tmp_path / "model.keras", 1).outputs


# -- archives that are programs ----------------------------------------------------------------------------------------


def lambda_layer(name: str = "twice") -> Any:
    return layers.Lambda(lambda x: 2 * x, name=name)


def lambda_in_a_nested_model() -> Any:
    return keras.Sequential([keras.Input((4,)), keras.Sequential([keras.Input((4,)), lambda_layer()], name="inner")])


def lambda_in_a_wrapper() -> Any:
    return keras.Sequential([keras.Input((4, 3)), layers.TimeDistributed(lambda_layer())])


def lambda_as_an_activation() -> Any:
    return keras.Sequential([keras.Input((4,)), layers.Dense(2, activation=lambda x: x, name="twice")])


@pytest.mark.parametrize(
    "build",
    [
        lambda: keras.Sequential([keras.Input((4,)), lambda_layer()]),
        lambda_in_a_nested_model,
        lambda_in_a_wrapper,
        lambda_as_an_activation,
    ],
    ids=["layer", "nested", "wrapped", "activation"],
)
def test_a_lambda_is_refused_wherever_it_is(build: Callable[[], Any], tmp_path: Path, nothing_is_loaded: None) -> None:
    path = tmp_path / "model.keras"
    build().save(path)
    with pytest.raises(UnsupportedError, match=r"layer 'twice': a (Lambda layer holds|lambda is compiled) Python code"):
        keras_frontend.trace(path, 1)


def test_all_refusals_are_reported_at_once(tmp_path: Path, nothing_is_loaded: None) -> None:
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((4,)), lambda_layer("one"), layers.Dense(2), lambda_layer("two")]).save(path)
    with pytest.raises(UnsupportedError, match=r"(?s)layer 'one'.*layer 'two'"):
        keras_frontend.trace(path, 1)


SAVED_MODEL = {"module": "keras.layers", "class_name": "TFSMLayer", "config": {"name": "evil", "filepath": "/tmp/x"}}


def put(layer: dict[str, Any]) -> Callable[[Any], None]:
    return lambda config: config["config"]["layers"].append(layer)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (SAVED_MODEL, "layer 'evil': a TFSMLayer runs a TensorFlow SavedModel"),
        (SAVED_MODEL | {"registered_name": "tests>Subclassed"}, "layer 'evil': a TFSMLayer"),
        (SAVED_MODEL | {"module": None}, "layer 'evil': a TFSMLayer"),
        ({"module": "os", "class_name": "function", "config": "system"}, "os.system is not defined by Keras"),
        ({"module": "mine", "class_name": "Own", "config": {"name": "own"}}, "layer 'own': mine.Own is not defined"),
        (
            {"module": None, "class_name": "Own", "config": {"name": "own"}, "registered_name": "me>Own"},
            "me>Own is not defined by Keras and not registered",
        ),
        (
            {"module": "keras.utils", "class_name": "function", "config": "get_file"},
            r"keras\.utils\.get_file is no part of a Keras model",
        ),
        (
            {"module": "keras.src.saving.saving_api", "class_name": "function", "config": "load_model"},
            "load_model is no part of a Keras model",
        ),
        ({"module": "keraslike.layers", "class_name": "Dense", "config": {}}, "keraslike.layers.Dense is not defined"),
        ({"module": ["os"], "class_name": "Dense", "config": {}}, r"names its module as \['os'\]"),
    ],
)
def test_code_from_elsewhere_is_refused(
    layer: dict[str, Any], message: str, saved: Path, tmp_path: Path, nothing_is_loaded: None
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        keras_frontend.trace(with_config(saved, tmp_path / "model.keras", put(layer)), 1)


def test_a_refused_layer_is_found_at_any_depth(saved: Path, tmp_path: Path, nothing_is_loaded: None) -> None:
    nested: Any = SAVED_MODEL
    for _ in range(300):
        nested = {"deeper": [nested]}
    with pytest.raises(UnsupportedError, match="TFSMLayer"):
        keras_frontend.trace(with_config(saved, tmp_path / "model.keras", put(nested)), 1)


class Unregistered(keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense = layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def test_a_class_of_the_persons_own_must_be_registered(tmp_path: Path) -> None:
    model = Unregistered(name="own")
    model(np.zeros((1, 3), np.float32))
    model.save(tmp_path / "own.keras")
    with pytest.raises(UnsupportedError, match=r"Unregistered is not defined by Keras.*register_keras_serializable"):
        keras_frontend.trace(tmp_path / "own.keras", 1)
    registered = subclassed()
    registered.save(tmp_path / "registered.keras")
    assert keras_frontend.trace(tmp_path / "registered.keras", 1).outputs
