"""A model that is taken away is no larger than what TensorFlow Lite's own converter makes of it."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from keras import layers

import converter
from converter.program.flatbuffer.operators import OperatorFile
from converter.runtime.export.plain_file import PlainFile
from tests.cli.test_export import results

#: In a process of its own, since Keras has one backend.
CONVERT = """
import sys, keras, tensorflow as tf
model = keras.saving.load_model(sys.argv[1])
row = keras.InputSpec(shape=(1, *model.input_shape[1:]), dtype="float32")
model.export(sys.argv[2], input_signature=[row], verbose=False)
open(sys.argv[3], "wb").write(tf.lite.TFLiteConverter.from_saved_model(sys.argv[2]).convert())
"""


def net() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3), name="x"),
            layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv"),
            layers.BatchNormalization(name="conv_norm"),
            layers.ReLU(),
            layers.DepthwiseConv2D(3, padding="same", strides=2, use_bias=False, name="depthwise"),
            layers.BatchNormalization(name="depthwise_norm"),
            layers.ReLU(6.0),
            layers.Conv2D(12, 1, use_bias=False, name="wide"),
            layers.BatchNormalization(name="wide_norm"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(6, activation="relu", name="hidden"),
            layers.Dense(3, activation="softmax", name="head"),
        ]
    )
    rng = np.random.default_rng(0)
    for weight in model.weights:  # statistics and biases that are not those of a new model
        weight.assign(
            np.abs(weight) + 0.3 * np.abs(rng.standard_normal(weight.shape)) - 0.4 * ("kernel" in weight.path)
        )
    return model


@pytest.mark.parametrize("update", ["full", "head"])
def test_what_follows_by_channel_is_in_the_filters(update: str, tmp_path: Path) -> None:
    model = net()
    built = converter.build(model, update=update, batch=2, loss="sparse_categorical_crossentropy")
    x = np.random.default_rng(1).standard_normal((2, 8, 8, 3)).astype(np.float32)
    fast, exact = tmp_path / "fast.tflite", tmp_path / "exact.tflite"
    built.export_inference(fast, exact=False)
    built.export_inference(exact)
    ((_, operators),) = OperatorFile(fast.read_bytes()).subgraphs()
    kinds = Counter(operator.kind for operator in operators)
    assert kinds == {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 1, "MEAN": 1, "FULLY_CONNECTED": 2, "SOFTMAX": 1}
    assert fast.stat().st_size < exact.stat().st_size
    (found,) = Interpreter(str(fast)).get_signature_runner("infer")(x=x).values()
    np.testing.assert_allclose(found, model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"update": "last-3"}, {"batch_norm": "train"}], ids=str)
def test_what_the_weights_alone_decide_is_computed_at_export(options: dict[str, Any], tmp_path: Path) -> None:
    built = converter.build(net(), batch=2, loss="sparse_categorical_crossentropy", **options)
    x = np.random.default_rng(1).standard_normal((2, 8, 8, 3)).astype(np.float32)
    with converter.runtime.TrainingSession(built.data) as session:
        for _ in range(3):
            session.train(x, np.array([0, 2]), 0.01)
        session.save(tmp_path / "mine.state")
    plain = built.export_inference(tmp_path / "plain.tflite", tmp_path / "mine.state")
    for xnnpack in (True, False):
        with converter.runtime.TrainingSession(built.data, xnnpack=xnnpack) as session:
            session.restore(tmp_path / "mine.state")
            np.testing.assert_array_equal(results(plain, x, xnnpack), session.infer(x))
    file = PlainFile(plain.read_bytes())
    computed = {int(i) for operator in file.graph.operators for i in operator.outputs} | {*file.graph.inputs}
    idle = {file.kind(operator) for operator in file.graph.operators if computed.isdisjoint(operator.inputs)}
    # A variance that is state goes through a square root, whose last bit is the runtime's.
    assert idle == {"RESHAPE"} if "batch_norm" not in options else "SQRT" in idle


@pytest.mark.slow
def test_it_is_no_larger_than_the_converters_own(tmp_path: Path) -> None:
    model, theirs, ours = net(), tmp_path / "theirs.tflite", tmp_path / "ours.tflite"
    model.save(tmp_path / "model.keras")
    command = [sys.executable, "-c", CONVERT, *map(str, (tmp_path / "model.keras", tmp_path / "saved", theirs))]
    settings = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    converted = subprocess.run(command, check=False, capture_output=True, text=True, env=settings)
    assert converted.returncode == 0, converted.stderr[-2000:]
    built = converter.build(model, batch=1, loss="sparse_categorical_crossentropy")
    built.export_inference(ours, exact=False)
    assert ours.stat().st_size <= theirs.stat().st_size
