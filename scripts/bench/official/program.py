"""The peer's program: Keras MobileNetV2 trained by tf.GradientTape, converted with Flex operators.

This is the path of TensorFlow's on-device training guide: a tf.Module whose `train` takes gradients with a tape and
assigns variables, saved as a SavedModel and converted with builtins + SELECT_TF_OPS and resource variables. Only
`train` is exported, which is the smallest file and memory that this path can have.

Runs in `.venv-official` (TensorFlow 2.18.1) and in a process of its own: see measure.py.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MODES = ("full", "sparse", "head")

# PockEngine's scheme for MobileNetV2: the first 1x1 convolution and the biases of the last 7 blocks, and the head. The
# convolutions have no bias of their own; the beta of the batch normalization that follows stands in its place.
_SPARSE = re.compile(r"block_(1[0-6])_(expand/kernel|(expand|depthwise|project)_BN/beta)$")


@dataclass(frozen=True)
class Shape:
    """What is built: the same words as in the result's `model` part."""

    alpha: float = 1.0
    size: int = 224
    batch: int = 8
    classes: int = 10
    seed: int = 0


def short_path(variable: Any) -> str:
    """`layer/weight` of a Keras variable, whatever its model is called."""
    return "/".join(variable.path.split("/")[-2:])


def is_trained(path: str, mode: str) -> bool:
    """Whether the mode trains the variable `layer/weight`; moving statistics are not asked for."""
    if mode == "full" or path.startswith("predictions/"):
        return True
    return mode == "sparse" and _SPARSE.search(path) is not None


def data(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """The batch that both sides train on."""
    rng = np.random.default_rng(shape.seed)
    x = rng.standard_normal((shape.batch, shape.size, shape.size, 3), dtype=np.float32)
    return x, rng.integers(0, shape.classes, shape.batch).astype(np.int32)


def network(shape: Shape, weights: Path | None) -> Any:
    """MobileNetV2 with logits, seeded; `weights` is an .npz by `layer/weight`, to start equal to another framework."""
    import keras

    keras.utils.set_random_seed(shape.seed)
    model = keras.applications.MobileNetV2(
        input_shape=(shape.size, shape.size, 3),
        alpha=shape.alpha,
        weights=None,
        classes=shape.classes,
        classifier_activation=None,
    )
    if weights is not None:
        with np.load(weights, allow_pickle=False) as stored:
            for variable in model.variables:
                # Seeds of random generators are variables too, and no weights.
                if short_path(variable) in stored:
                    variable.assign(stored[short_path(variable)])
    return model


def trained_variables(model: Any, mode: str) -> list[Any]:
    """The variables that the mode trains, in the model's order."""
    return [v for v in model.trainable_variables if is_trained(short_path(v), mode)]


def convert(shape: Shape, mode: str, weights: Path | None = None) -> tuple[bytes, int]:
    """The .tflite of one mode and the number of parameters that it trains."""
    import tensorflow as tf

    model = network(shape, weights)
    trained = trained_variables(model, mode)
    values = [v.value for v in trained]

    class Trainer(tf.Module):
        """What is saved: the network and its training step."""

        def __init__(self) -> None:
            self.model = model
            # Keras 3 saves its own Variable objects, which the converter does not recognise: the file then holds no
            # initial values (READ_VARIABLE fails) and frozen weights stay variables. Tracked as tf.Variable they do.
            self.values = [v.value for v in model.variables]

        @tf.function(
            input_signature=[
                tf.TensorSpec((shape.batch, shape.size, shape.size, 3), tf.float32, name="x"),
                tf.TensorSpec((shape.batch,), tf.int32, name="y"),
                tf.TensorSpec((), tf.float32, name="learning_rate"),
            ]
        )
        def train(self, x: Any, y: Any, learning_rate: Any) -> dict[str, Any]:
            # Nothing but the trained variables is watched, so the tape stops at the earliest of them.
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(values)
                logits = self.model(x, training=False)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
            for value, gradient in zip(values, tape.gradient(loss, values), strict=True):
                value.assign_sub(learning_rate * gradient)
            return {"loss": loss}

    trainer = Trainer()
    with tempfile.TemporaryDirectory() as saved:
        tf.saved_model.save(trainer, saved, signatures={"train": trainer.train.get_concrete_function()})
        converter = tf.lite.TFLiteConverter.from_saved_model(saved)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        converter.experimental_enable_resource_variables = True
        return converter.convert(), sum(int(np.prod(v.shape)) for v in trained)
