"""The official on-device path: tf.GradientTape, TFLiteConverter with Flex operators, TensorFlow Lite's interpreter.

A tf.Module whose `train` takes gradients with a tape and assigns variables, saved as a SavedModel and converted with
builtins + SELECT_TF_OPS and resource variables, as TensorFlow's guide has it. Only `train` is exported, which is the
smallest file and memory that this path can have. The conversion has a process of its own, so that nothing of the
converter is in the measured one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import task


def prepare(args: argparse.Namespace) -> str:
    """Imports TensorFlow, whose kernels Flex calls."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.constant(0.0)
    return f"tensorflow {tf.__version__}"


def load(job: task.Task, x: np.ndarray, y: np.ndarray, args: argparse.Namespace) -> Callable[[], float]:
    """Return the step of the converted program."""
    import tensorflow as tf
    from measured import LEARNING_RATE

    rate = np.float32(LEARNING_RATE)
    interpreter = tf.lite.Interpreter(model_path=str(_converted(job, args.scheme)), num_threads=args.threads)
    train = interpreter.get_signature_runner("train")
    return lambda: float(train(x=x, y=y, learning_rate=rate)["loss"])


def _converted(job: task.Task, scheme: str) -> Path:
    """Return the program's file."""
    file = job.file.with_name(f"{scheme}.flex.tflite")
    again = [sys.executable, __file__, str(job.file), scheme, str(file)]
    done = subprocess.run(again, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        last_words = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise RuntimeError(f"conversion failed:\n{last_words}")
    return file


def convert(job: task.Task, scheme: str) -> bytes:
    """Return the .tflite of a task."""
    import tensorflow as tf
    import tensorflow_nets as nets

    chosen = job.trained[scheme]
    x, y = job.data()

    class Trainer(tf.Module):
        """What is saved: the weights and their training step."""

        def __init__(self) -> None:
            super().__init__()
            arrays = {name: nets.arranged(name, array) for name, array in job.weights()}
            self.weights = {n: tf.Variable(a, trainable=n in chosen) for n, a in arrays.items() if n in chosen}
            self.frozen = {n: a for n, a in arrays.items() if n not in chosen}

        @tf.function(
            input_signature=[
                tf.TensorSpec(x.shape, tf.float32 if x.dtype == np.float32 else tf.int32, name="x"),
                tf.TensorSpec(y.shape, tf.int32, name="y"),
                tf.TensorSpec((), tf.float32, name="learning_rate"),
            ]
        )
        def train(self, x: Any, y: Any, learning_rate: Any) -> dict[str, Any]:
            values = [self.weights[name] for name in chosen]
            frozen = {name: tf.constant(array) for name, array in self.frozen.items()}
            # Nothing but the trained variables is watched, so the tape stops at the earliest of them.
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(values)
                loss = nets.loss(job.kind, job.sizes, {**self.weights, **frozen}, x, y)
            for value, gradient in zip(values, tape.gradient(loss, values), strict=True):
                value.assign_sub(learning_rate * tf.convert_to_tensor(gradient))
            return {"loss": loss}

    trainer = Trainer()
    with tempfile.TemporaryDirectory() as saved:
        tf.saved_model.save(trainer, saved, signatures={"train": trainer.train.get_concrete_function()})
        converter = tf.lite.TFLiteConverter.from_saved_model(saved)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        converter.experimental_enable_resource_variables = True
        return converter.convert()


if __name__ == "__main__":
    if len(sys.argv) == 4 and not sys.argv[2].startswith("--"):
        _, source, scheme, target = sys.argv
        Path(target).write_bytes(convert(task.Task.read(Path(source)), scheme))
    else:
        task.run("flex", prepare, load)
