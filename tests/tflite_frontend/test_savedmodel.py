"""SavedModels: TensorFlow's converter makes a file of them; Keras on the same net is the oracle of how it trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pocketune
from converter.frontends import tflite as tflite_frontend
from converter.frontends.tflite import savedmodel
from converter.support.errors import UsageError
from tests.steps import stepped
from tests.tflite_frontend.shipped import shipped

#: Nets as Keras' files and as SavedModels, written by a process with TensorFlow in it.
WRITE = """
import sys, keras
from pathlib import Path
from keras import layers

def net(name, shape, *stack):
    keras.utils.set_random_seed(len(name))
    model = keras.Sequential([keras.Input(shape), *stack], name=name)
    for weight in model.weights:  # biases too, which the converter leaves out where they are zero
        weight.assign(weight + 0.05 * keras.random.normal(weight.shape, seed=1))
    model.save(Path(sys.argv[1]) / f"{name}.keras")
    model.export(Path(sys.argv[1]) / name, verbose=False)

net("image", (12, 12, 3), layers.Conv2D(8, 3, padding="same", activation="relu"), layers.DepthwiseConv2D(3, strides=2),
    layers.LeakyReLU(0.1), layers.Conv2D(12, 1, activation="relu6"), layers.MaxPooling2D(), layers.Flatten(),
    layers.Dense(16, activation="tanh"), layers.Dense(5))
net("separable", (16, 16, 2), layers.ZeroPadding2D(1), layers.DepthwiseConv2D(3), layers.Conv2D(6, 1, activation="elu"),
    layers.PReLU(), layers.AveragePooling2D(2), layers.UpSampling2D(2, interpolation="bilinear"),
    layers.Conv2DTranspose(4, 3, strides=2), layers.GlobalAveragePooling2D(), layers.Dense(5))
net("series", (20, 4), layers.Conv1D(8, 5, activation="relu"), layers.LayerNormalization(),
    layers.Dense(8, activation="gelu"), layers.GlobalMaxPooling1D(), layers.Dense(5))
"""
NETS = {"image": (12, 12, 3), "separable": (16, 16, 2), "series": (20, 4)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("saved")
    environment = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, "-c", WRITE, str(made)], check=True, capture_output=True, env=environment)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_it_trains_as_the_net_that_it_was_written_from(name: str, folder: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, *NETS[name])).astype(np.float32), np.array([0, 1, 2, 4])
    losses = []
    for model in (folder / f"{name}.keras", folder / name):
        program = pocketune.build(
            model, loss="sparse_categorical_crossentropy", optimizer="sgd", batch=4, micro_batch=1, check=False
        )
        losses.append(stepped(program, [(x, y)] * 10, 0.05).losses)
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-5)
    assert losses[0][-1] < losses[0][0]


def test_a_directory_is_converted_once_and_read_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        calls.append(command)
        Path(command[5]).write_bytes(shipped())
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(savedmodel.subprocess, "run", run)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "saved_model.pb").write_bytes(b"")
    for classes in (3, 4):
        program = pocketune.build(tmp_path / "net", classes=classes, update="head", check=False)
        assert program.manifest.name == "net"
    assert [command[4:] for command in calls] == [[str(tmp_path / "net"), calls[0][5]]]
    tflite_frontend.Model(tmp_path / "net", signature="serving", outputs=["kind"]).graph(1)
    assert calls[1][6:] == ["serving"]


def test_what_the_converter_says_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    said = "Traceback\n  much of it\nFlex ops: FlexAsString, FlexStringToNumber\nDetails:\n"
    answer = SimpleNamespace(returncode=1, stderr=said)
    monkeypatch.setattr(savedmodel.subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(
        UsageError, match=r"(?s)does not make a TFLite file of it:\n  Flex ops: FlexAsString.*out of the model"
    ):
        pocketune.build(tmp_path, classes=2)
    monkeypatch.setattr("converter.support.extras.find_spec", lambda name: None)
    savedmodel._converted.cache_clear()
    with pytest.raises(UsageError, match=r"pocketune\[tensorflow\]"):
        tflite_frontend.Model(tmp_path, classes=2).graph(1)
