"""Small nets that TensorFlow's converter quantised, in each of its forms.

    python -m tests.tflite_frontend.quantised_nets FOLDER

writes them; a process of its own keeps TensorFlow out of the tests'.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

FORMS = ("int8", "int8_float_io", "uint8_io", "int16x8", "dynamic", "per_tensor")
#: Files of other nets.
OTHERS = ("spectral", "loop", "loop_dynamic")


@cache
def quantised_nets() -> dict[str, bytes]:
    """Return the file of each form. They are made once for this code, this TensorFlow and this machine."""
    made = hashlib.sha256(Path(__file__).read_bytes() + version("tensorflow").encode()).hexdigest()[:16]
    kept = Path(tempfile.gettempdir()) / f"pocketune-quantised-{os.getuid()}-{made}"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the run wait
        if not kept.is_dir():
            folder = tempfile.mkdtemp(dir=kept.parent)
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
            command = [sys.executable, "-m", "tests.tflite_frontend.quantised_nets", folder]
            subprocess.run(command, check=True, capture_output=True, env=environment)
            Path(folder).rename(kept)
    return {form: (kept / f"{form}.tflite").read_bytes() for form in (*FORMS, *OTHERS)}


def _net() -> Any:
    """Return a residual net of convolutions with a dense head: random weights, biases too."""
    import numpy as np
    import tensorflow as tf

    keras, layers = tf.keras, tf.keras.layers
    keras.utils.set_random_seed(0)
    image = keras.Input((12, 12, 3))
    first = layers.Conv2D(8, 3, padding="same", activation="relu", name="conv_1")(image)
    inner = layers.DepthwiseConv2D(3, padding="same", activation="relu6", name="depthwise")(first)
    inner = layers.Conv2D(8, 1, name="pointwise")(inner)
    joined = layers.ReLU()(layers.Add()([inner, first]))
    joined = layers.Conv2D(12, 3, strides=2, padding="same", name="conv_2")(layers.MaxPooling2D()(joined))
    joined = layers.ReLU()(layers.BatchNormalization(name="norm")(joined))
    hidden = layers.Dense(16, activation="relu", name="hidden")(layers.Flatten()(joined))
    net = keras.Model(image, layers.Dense(6, activation="softmax", name="top")(hidden))
    rng = np.random.default_rng(1)
    for weight in net.weights:
        if weight.path.endswith(("bias", "beta")):
            weight.assign(0.1 * rng.standard_normal(weight.shape))
    return net


def _spectral() -> Any:
    """Return a function with a dense layer, a Fourier transform and another dense layer, for the converter."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(2)
    first, last = (rng.standard_normal(shape).astype(np.float32) / 8 for shape in ((64, 64), (33, 6)))

    @tf.function(input_signature=[tf.TensorSpec((1, 64), tf.float32, name="sound")])
    def net(sound: Any) -> Any:
        windowed = tf.matmul(sound, first)
        return tf.nn.softmax(tf.matmul(tf.abs(tf.signal.rfft(windowed)), last))

    return tf.lite.TFLiteConverter.from_concrete_functions([net.get_concrete_function()])


def _loops(folder: Path) -> None:
    """Write a Keras LSTM, whose steps are a loop, in float32 and with int8 weights."""
    import tensorflow as tf

    layers = tf.keras.layers
    net = tf.keras.Sequential([tf.keras.Input((6, 40), batch_size=1), layers.LSTM(16), layers.Dense(3)])
    for name, optimizations in (("loop", []), ("loop_dynamic", [tf.lite.Optimize.DEFAULT])):
        converter = tf.lite.TFLiteConverter.from_keras_model(net)
        converter.optimizations = optimizations
        (folder / f"{name}.tflite").write_bytes(converter.convert())


def main(folder: Path) -> None:
    """Write a file for each form."""
    import numpy as np
    import tensorflow as tf

    (folder / "spectral.tflite").write_bytes(_spectral().convert())
    _loops(folder)
    net = _net()
    samples = np.random.default_rng(0).standard_normal((32, 1, 12, 12, 3)).astype(np.float32)
    int8 = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    int16x8 = [tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8]
    forms = {
        "int8": (int8, tf.int8),
        "int8_float_io": (int8, tf.float32),
        "uint8_io": (int8, tf.uint8),
        "int16x8": (int16x8, tf.int16),
        "dynamic": (None, None),
        "per_tensor": (int8, tf.int8),
    }
    for name, (operators, fed) in forms.items():
        converter = tf.lite.TFLiteConverter.from_keras_model(net)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter._experimental_disable_per_channel = name == "per_tensor"
        if operators is not None:
            converter.representative_dataset = lambda: ([row] for row in samples)
            converter.target_spec.supported_ops = operators
            converter.inference_input_type = converter.inference_output_type = fed
        (folder / f"{name}.tflite").write_bytes(converter.convert())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
