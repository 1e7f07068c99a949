"""TensorFlow's step: a graph of its own ops (tf.function), or compiled by XLA with --xla.

With --fold the frozen weights are constants of the graph: TensorFlow then folds and fuses what is frozen, which is
faster and takes more memory.
"""

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
    """Return the traced step."""
    import tensorflow as tf
    import tensorflow_nets as nets
    from measured import LEARNING_RATE

    arrays = {name: nets.arranged(name, array) for name, array in job.weights()}
    variables = {name: tf.Variable(arrays.pop(name), name=name) for name in job.trained[args.scheme]}
    # A tensor is captured by the graph, an array becomes a constant within it.
    frozen = arrays if args.fold else {name: tf.constant(array) for name, array in arrays.items()}
    trained = list(variables.values())
    del arrays
    inputs = tf.constant(x), tf.constant(y)

    @tf.function(jit_compile=args.xla, autograph=False)
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained)
            weights = variables | {name: tf.convert_to_tensor(array) for name, array in frozen.items()}
            value = nets.loss(job.kind, job.sizes, weights, x, y)
        for variable, gradient in zip(trained, tape.gradient(value, trained), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(LEARNING_RATE * gradient.values, gradient.indices))
            else:
                tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=LEARNING_RATE, delta=gradient)
        return value

    return lambda: float(train(*inputs))


if __name__ == "__main__":
    task.run("tensorflow", prepare, load, "--xla", "--fold")
