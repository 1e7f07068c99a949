"""JAX's step: one jitted function, the trained weights donated. Its losses are the ones that all others must have."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import task

# The workloads are described by the project's own frontend.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


def prepare(args: argparse.Namespace) -> str:
    """Imports JAX and starts its CPU."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import workloads  # noqa: F401

    jax.devices()
    return f"jax {jax.__version__}"


def load(job: task.Task, x: np.ndarray, y: np.ndarray, args: argparse.Namespace) -> Callable[[], float]:
    """Return the compiled step."""
    import jax
    import jax.numpy as jnp
    from measured import LEARNING_RATE
    from workloads import workload

    net = workload(job.name, **job.options)
    treedef = jax.tree_util.tree_structure(net.model.params)
    order = list(net.weights)
    apply = net.model.apply
    chosen = job.trained[args.scheme]
    # Copies, so that the donated buffers are JAX's own.
    trained = {name: jnp.array(net.weights[name]) for name in chosen}
    frozen = {name: jnp.array(array) for name, array in net.weights.items() if name not in trained}
    inputs = jnp.array(x), jnp.array(y)
    del net

    def loss(trained: Any, frozen: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        weights = trained | frozen
        params = jax.tree_util.tree_unflatten(treedef, [weights[name] for name in order])
        likelihood = jax.nn.log_softmax(apply(params, x))
        return -jnp.take_along_axis(likelihood, y[..., None], axis=-1).mean()

    def train(trained: Any, frozen: Any, x: jax.Array, y: jax.Array, rate: float) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(trained, frozen, x, y)
        return jax.tree_util.tree_map(lambda w, g: w - rate * g, trained, gradients), value

    compiled = jax.jit(train, donate_argnums=0)

    def step() -> float:
        nonlocal trained
        trained, value = compiled(trained, frozen, *inputs, LEARNING_RATE)
        jax.block_until_ready(trained)
        return float(value)

    return step


if __name__ == "__main__":
    task.run("jax", prepare, load)
