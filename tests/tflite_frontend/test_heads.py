"""Heads of one's own behind a tensor of a file, and what the author's metadata says to the app."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from ai_edge_litert.interpreter import Interpreter
from keras import layers

import pocketune
from converter.frontends import tflite as tflite_frontend
from converter.support.errors import UsageError
from tests.steps import stepped
from tests.tflite_frontend.shipped import CARD, DEVIATION, LABELS, MEAN, shipped

ROWS = 3
Y = np.array([1, 2, 0])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shipped.tflite"
    path.write_bytes(shipped())
    return path


def rows() -> np.ndarray:
    return np.random.default_rng(1).random((ROWS, 8, 8, 2), np.float32)


def features(file: Path) -> np.ndarray:
    """What the file's own operators make in front of its dense layers, in the stock interpreter."""
    runtime = Interpreter(str(file), experimental_preserve_all_tensors=True)
    runtime.allocate_tensors()
    (number,) = (d["index"] for d in runtime.get_tensor_details() if d["name"] == "net/mean")
    found = []
    for row in rows():
        runtime.set_tensor(runtime.get_input_details()[0]["index"], row[None])
        runtime.invoke()
        found.append(runtime.get_tensor(number).copy())
    return np.concatenate(found)


def apply(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["in"]["w"] + params["in"]["b"]) @ params["out"]["w"]


def params() -> Any:
    rng = np.random.default_rng(2)
    return {
        "in": {"w": jnp.asarray(rng.normal(0, 0.3, (24, 8)), jnp.float32), "b": jnp.zeros(8)},
        "out": {"w": jnp.asarray(rng.normal(0, 0.3, (8, 3)), jnp.float32)},
    }


@pytest.mark.quick
def test_a_head_of_jax_trains_as_in_jax_on_the_files_features(file: Path, tmp_path: Path) -> None:
    model = tflite_frontend.Model(file, cut="net/mean", head=pocketune.Model(apply, params()))
    options = {"loss": "sparse_categorical_crossentropy", "optimizer": "sgd", "batch": ROWS, "check": False}
    program = pocketune.build(model, update={"head/*": 1}, **options)
    x, read, weights = rows(), jnp.asarray(features(file)), params()

    def loss(weights: Any) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(apply(weights, read), jnp.asarray(Y)).mean()

    expected = []
    for _ in range(10):
        value, gradient = jax.value_and_grad(loss)(weights)
        expected.append(float(value))
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)
    with pocketune.TrainingSession(program.data) as session:
        found = [session.train(x, Y, learning_rate=0.1) for _ in range(10)]
        program.export_inference(tmp_path / "new.tflite", session.state())
        inferred = session.infer(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert sorted(p.name for p in program.manifest.parameters) == ["head/in/b", "head/in/w", "head/out/w"]
    runner = Interpreter(str(tmp_path / "new.tflite")).get_signature_runner("serving")
    new = runner(image=x)
    # It stands in the place of the first output behind the cut; the other is the file's.
    np.testing.assert_allclose(new["presence"], inferred, rtol=1e-5, atol=1e-6)
    assert new["kind"].shape == (ROWS, 7)


def test_a_head_of_keras_layers_trains_as_in_keras(file: Path) -> None:
    keras.utils.set_random_seed(4)
    stack = [layers.Dense(8, activation="relu"), layers.BatchNormalization(), layers.Dense(3, activation="softmax")]
    model = tflite_frontend.Model(file, cut="net/mean", head=stack)
    options = {"loss": "sparse_categorical_crossentropy", "optimizer": "sgd", "batch": ROWS, "check": False}
    program = pocketune.build(model, update={"head/*": 1}, batch_norm="train", **options)
    net = keras.Sequential([keras.Input((24,)), *stack])
    net.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    found = stepped(program, [(rows(), Y)] * 5, 0.1).losses
    expected = [float(net.train_on_batch(features(file), Y)) for _ in range(5)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_heads_that_cannot_stand_there_are_refused(file: Path) -> None:
    def two(params: Any, x: jax.Array) -> dict[str, jax.Array]:
        return {"a": x @ params["w"], "b": x}

    wide = pocketune.Model(lambda p, x: x @ p["w"], {"w": jnp.ones((5, 2))}, [jax.ShapeDtypeStruct((1, 5), "float32")])
    for head, said in (
        (pocketune.Model(two, {"w": jnp.ones((24, 2))}), "gives 2 outputs"),
        (wide, r"the head takes \[2, 5\]"),
    ):
        with pytest.raises(UsageError, match=said):
            pocketune.build(tflite_frontend.Model(file, cut="net/mean", head=head), batch=2, loss="mse")
    with pytest.raises(UsageError, match="that it reads, cut=, and no classes="):
        tflite_frontend.Model(file, classes=3, cut="net/mean", head=wide)


def test_the_app_learns_what_the_metadata_says(file: Path, tmp_path: Path) -> None:
    own = tflite_frontend.Model(file, outputs=["kind"])
    made = pocketune.build(own, loss="sparse_categorical_crossentropy", update="head", check=False).manifest
    assert made.labels == tuple(LABELS.decode().split())
    assert made.preprocessing == {"mean": [MEAN], "std": [DEVIATION]}
    card = {name: text for name, (_, text) in CARD.items()}
    assert made.card == card
    fresh = tflite_frontend.Model(file, outputs=["kind"], classes=2)
    for labels, written in ((["me", "you"], b"me\nyou\n"), (None, b"0\n1\n")):
        own = {"preprocessing": {"of": "mine"}, "card": {"license": "MIT", "source": "here"}}
        program = pocketune.build(fresh, update="head", labels=labels, **own, check=False)
        assert program.manifest.labels == (None if labels is None else tuple(labels))
        assert program.manifest.preprocessing == {"of": "mine"}
        assert program.manifest.card == {**card, "license": "MIT", "source": "here"}
        program.export_inference(tmp_path / "new.tflite")
        with zipfile.ZipFile(tmp_path / "new.tflite") as archive:
            assert archive.read("labels.txt") == written


def test_a_head_that_is_for_its_own_rows_is_exported_for_these_and_says_so(file: Path, tmp_path: Path) -> None:
    """A scatter-add along the features has no form for any number of rows."""

    def counted(params: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: jnp.zeros(3).at[jnp.arange(8) % 3].add(row))(x @ params["w"])

    weights = {"w": jnp.asarray(np.random.default_rng(2).normal(0, 0.3, (24, 8)), jnp.float32)}
    model = tflite_frontend.Model(file, cut="net/mean", head=pocketune.Model(counted, weights))
    options = {"loss": "sparse_categorical_crossentropy", "optimizer": "sgd", "batch": ROWS, "check": False}
    program = pocketune.build(model, update={"head/*": 1}, **options)
    assert program.manifest.signatures["infer"].fixed
    assert ("exported model", "takes the file's rows") in {(note.subject, note.status) for note in program.notes}
    runtime = Interpreter(str(program.export_inference(tmp_path / "new.tflite")))
    x, expected = rows(), counted(weights, jnp.asarray(features(file)))
    given = runtime.get_input_details()[0]["index"]
    (made,) = (d["index"] for d in runtime.get_output_details() if d["shape"][-1] == 3)
    runtime.allocate_tensors()
    for row, of_row in zip(x, expected, strict=True):
        runtime.set_tensor(given, row[None])
        runtime.invoke()
        np.testing.assert_allclose(runtime.get_tensor(made)[0], of_row, rtol=1e-4, atol=1e-5)
    runtime.resize_tensor_input(given, x.shape)
    with pytest.raises(RuntimeError):
        runtime.allocate_tensors()
