"""TensorFlow's step: a graph of its own ops (tf.function), or compiled by XLA with --xla."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import task


def prepare(args: argparse.Namespace) -> str:
    """Imports TensorFlow and makes its thread pools."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    tf.constant(0.0)
    return f"tensorflow {tf.__version__}"


def load(job: task.Task, x: np.ndarray, y: np.ndarray, args: argparse.Namespace) -> Callable[[], float]:
    """The traced step."""
    import tensorflow as tf
    import tensorflow_nets as nets
    from measured import LEARNING_RATE

    chosen = set(job.trained[args.scheme])
    arrays = {name: nets.arranged(name, array) for name, array in job.weights()}
    # What is frozen is captured by the graph: a constant within it would be held twice.
    weights = {
        name: tf.Variable(array, name=name) if name in chosen else tf.constant(array) for name, array in arrays.items()
    }
    del arrays
    trained = [weights[name] for name in job.trained[args.scheme]]
    inputs = tf.constant(x), tf.constant(y)

    @tf.function(jit_compile=args.xla, autograph=False)
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained)
            value = nets.loss(job.kind, job.sizes, weights, x, y)
        for variable, gradient in zip(trained, tape.gradient(value, trained), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(LEARNING_RATE * gradient.values, gradient.indices))
            else:
                tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=LEARNING_RATE, delta=gradient)
        return value

    return lambda: float(train(*inputs))


if __name__ == "__main__":
    task.run("tensorflow", prepare, load, "--xla")
