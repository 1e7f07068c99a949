"""TFLite files as models: the stock interpreter on the file is the oracle of what is read, JAX on it of what trains."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from ai_edge_litert.interpreter import Interpreter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras import layers

import pocketune
from converter.cli import main
from converter.frontends import tflite as tflite_frontend
from converter.ir import evaluate
from converter.support.errors import PocketuneError, UnsupportedError, UsageError
from tests.models.zoo import CASES
from tests.steps import stepped

ROWS = 4


@cache
def exported(name: str) -> bytes:
    """A plain file of a net of the zoo, as an app ships it: for one row at a time."""
    case = CASES[name]
    return plain(case.model(), case.loss)


def plain(model: Any, loss: str) -> bytes:
    program = pocketune.build(model, loss=loss, batch=1, update="head", signatures=("train", "infer"), check=False)
    path = Path(f"/tmp/{hashlib.sha256(program.data).hexdigest()[:16]}.tflite")
    try:
        program.export_inference(path)
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


def by_interpreter(data: bytes, rows: np.ndarray) -> np.ndarray:
    """What the stock interpreter makes of each row, by the file's first output."""
    runtime = Interpreter(model_content=data)
    (given,) = runtime.get_input_details()
    runtime.resize_tensor_input(given["index"], (1, *rows.shape[1:]))
    runtime.allocate_tensors()
    found = []
    for row in rows:
        runtime.set_tensor(given["index"], row[None].astype(given["dtype"]))
        runtime.invoke()
        found.append(runtime.get_tensor(runtime.get_output_details()[0]["index"])[0].copy())
    return np.array(found)


@pytest.mark.parametrize("name", ["lenet", "mobilenetv2-0.35", "flax-cnn", "encoder", "vit"])
def test_it_infers_what_the_file_infers(name: str, tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(exported(name))
    x, _ = CASES[name].batch(ROWS, 1)
    program = pocketune.build(tmp_path / "net.tflite", loss="mse", batch=ROWS, check=False)
    expected = by_interpreter(exported(name), np.asarray(x))
    with pocketune.TrainingSession(program.data) as session:
        found = session.infer(x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.quick
def test_a_fresh_head_trains_as_one_in_jax_on_the_files_features(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(exported("flax-cnn"))
    x, _ = CASES["flax-cnn"].batch(ROWS, 1)
    y = np.arange(ROWS) % 3
    model = tflite_frontend.Model(tmp_path / "net.tflite", classes=3)
    program = pocketune.build(model, update="head", optimizer="sgd", batch=ROWS, check=False)
    graph, _ = model.graph(ROWS)
    names = graph.parameter_names()
    params = {name: jnp.asarray(graph.parameters[names[f"head/{name}"]].model_value) for name in ("kernel", "bias")}
    whole, _ = tflite_frontend.Model(tmp_path / "net.tflite").graph(ROWS)
    (dense,) = [n for n in graph.nodes if len(n.inputs) > 1 and n.inputs[1] is names["head/kernel"]]
    graph.outputs = {"features": dense.inputs[0]}
    features = jnp.asarray(evaluate(graph, [np.asarray(x)])[0]["features"])

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        logits = features @ params["kernel"].T + params["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(y)).mean()

    expected = []
    for _ in range(10):
        value, gradient = jax.value_and_grad(loss)(params)
        expected.append(float(value))
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient)
    found = stepped(program, [(x, y)] * 10, 0.05).losses
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert len(whole.parameters) > len(params)


@pytest.mark.quick
def test_deeper_layers_train_as_in_the_framework_that_made_the_file(tmp_path: Path) -> None:
    keras.utils.set_random_seed(3)
    net = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(6, 3, strides=2, padding="same", activation="relu"),
            layers.DepthwiseConv2D(3, padding="same"),
            layers.LeakyReLU(0.1),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    (tmp_path / "net.tflite").write_bytes(plain(net, "sparse_categorical_crossentropy"))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((ROWS, 8, 8, 2)).astype(np.float32), np.arange(ROWS) % 3
    losses = []
    for model in (net, tmp_path / "net.tflite"):
        program = pocketune.build(
            model, loss="sparse_categorical_crossentropy", optimizer="sgd", batch=ROWS, check=False
        )
        losses.append(stepped(program, [(x, y)] * 10, 0.1).losses)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_what_it_does_not_have_is_said(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(exported("lenet"))
    for options, said in (
        ({"signature": "other"}, "has no signature 'other'"),
        ({"outputs": ["logit"]}, "has no output 'logit'"),
        ({"cut": "nowhere"}, "has no tensor or layer 'nowhere'"),
        ({"classes": 0}, "classes must be a whole number of at least 1"),
    ):
        with pytest.raises(UsageError, match=said):
            tflite_frontend.Model(path, **options).graph(1)
    with pytest.raises(UsageError, match=r"classes puts a fresh last layer on a \.tflite file"):
        pocketune.build(CASES["lenet"].model(), classes=3)
    with pytest.raises(UsageError, match="cannot read"):
        tflite_frontend.Model(tmp_path / "none.tflite").graph(1)
    (tmp_path / "text.tflite").write_text("no file of TFLite at all")
    with pytest.raises(UsageError, match="is no TFLite file"):
        tflite_frontend.Model(tmp_path / "text.tflite").graph(1)


def test_operators_that_are_not_read_are_all_named(tmp_path: Path) -> None:
    program = pocketune.build(CASES["mlp"].model(), batch=2, check=False)
    (tmp_path / "train.tflite").write_bytes(program.data)
    with pytest.raises(UnsupportedError, match="cannot be trained as it is") as refused:
        tflite_frontend.Model(tmp_path / "train.tflite", signature="infer").graph(2)
    assert {site.primitive for site in refused.value.sites} >= {"VAR_HANDLE"}
    assert all(site.source.startswith("train.tflite:") for site in refused.value.sites)


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_damaged_files_are_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes changed, zeros, cut: an error of ours, or another net; never a crash or a hang."""
    whole = bytearray(exported("lenet"))
    tables = len(whole) - 6000 if data.draw(st.booleans()) else 0
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(max(tables, 0), len(whole) - 5))
        whole[at : at + 4] = data.draw(st.sampled_from([b"\xff\xff\xff\x7f", b"\x00" * 4, b"\x01\x00\x00\x80"]))
    path = tmp_path / "bad.tflite"
    path.write_bytes(bytes(whole[: data.draw(st.sampled_from([len(whole), len(whole) // 2]))]))
    try:
        tflite_frontend.Model(path).graph(1)
    except PocketuneError:
        return


def test_schemes_of_it_are_priced(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(exported("lenet"))
    rows = pocketune.compare_schemes(tmp_path / "net.tflite", ["full", "head"], classes=3, batch=2)
    full, head = (row["trained_parameters"] for row in rows)
    assert full > 10 * head > 0


def test_which_part_of_a_file_is_meant_may_be_said_to_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(exported("lenet"))
    layer = next(iter(tflite_frontend.Model(path).graph(1)[0].parameter_names())).rpartition("/")[0]
    options = {"update": "head", "batch": 2, "check": False}
    of_model = pocketune.build(tflite_frontend.Model(path, cut=layer, classes=3), **options)
    assert pocketune.build(path, cut=layer, classes=3, **options).manifest.identity == of_model.manifest.identity
    assert of_model.manifest.optimizer == "adam"
    with pytest.raises(UsageError, match="the Model says classes=2 itself"):
        pocketune.build(tflite_frontend.Model(path, classes=2), classes=3)
    with pytest.raises(UsageError, match=r"cut leaves out what stands behind a tensor of a \.tflite file"):
        pocketune.build(CASES["lenet"].model(), cut=layer)
    with pytest.raises(UsageError, match=r"classes puts .* \.tflite file, and nowhere is none"):
        pocketune.build("nowhere", classes=2)
    with pytest.raises(SystemExit) as done:
        main(["build", str(path), "--cut", layer, "--classes", "3", "--out", str(tmp_path / "a.tflite"), "--quiet"])
    assert done.value.code in (0, None), capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["build", str(path), "--outputs", "a,b", "--out", str(tmp_path / "b.tflite")])
    assert "has no output 'a'" in capsys.readouterr().err


def test_a_program_does_not_replace_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.tflite").write_bytes(exported("lenet"))
    with pytest.raises(SystemExit):
        main(["build", "net.tflite", "--quiet"])
    assert (tmp_path / "net.tflite").read_bytes() == exported("lenet")
    with pytest.raises(SystemExit) as done:
        main(["build", "net.tflite", "--classes", "3", "--update", "head", "--out", "mine.tflite", "--quiet"])
    assert done.value.code in (0, None)
    assert pocketune.TrainingSession(tmp_path / "mine.tflite").manifest.name == "net"
