"""Small models, their programs (built once a test run), data that they can learn, and optax as the oracle."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import converter
import jax_frontend
from converter.driver.program import Program

BATCH = 8
OPTIMIZERS = {"sgd": optax.sgd(1.0), "adam": optax.adam(1.0)}
#: The same as programs are built with them.
BUILT = {"sgd": optax.sgd(0.1), "adam": optax.adam(0.1)}


@dataclass(frozen=True)
class Example:
    """A model and data for it."""

    apply: Callable[..., Any]
    params: Any
    shape: tuple[int, ...]
    classes: int

    def model(self) -> jax_frontend.Model:
        """Return a model with weights of its own, so that a test that changes them changes no other test's."""
        weights = jax.tree.map(np.copy, self.params)
        return jax_frontend.Model(self.apply, weights, inputs=[jax.ShapeDtypeStruct((1, *self.shape), jnp.float32)])

    def data(self, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Rows whose class is seen from their first elements."""
        x = np.random.default_rng(seed).standard_normal((rows, *self.shape)).astype(np.float32)
        return x, x.reshape(rows, -1)[:, : self.classes].argmax(1).astype(np.int32)

    def loss(self, params: Any, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Any:
        rows = optax.softmax_cross_entropy_with_integer_labels(self.apply(params, x), y)
        return (rows * weight).sum() / weight.sum()


def _mlp() -> Example:
    rng = np.random.default_rng(1)
    params = {
        "layers": [
            {"w": (rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32), "b": np.zeros(b, np.float32)}
            for a, b in ((12, 16), (16, 4))
        ]
    }

    def apply(params: Any, x: Any) -> Any:
        first, second = params["layers"]
        return jax.nn.relu(x @ first["w"] + first["b"]) @ second["w"] + second["b"]

    return Example(apply, params, (12,), 4)


def _cnn() -> Example:
    rng = np.random.default_rng(2)

    def weight(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

    params = {
        "conv1": {"w": weight(3, 3, 2, 4), "b": np.zeros(4, np.float32)},
        "conv2": {"w": weight(3, 3, 4, 8), "b": np.zeros(8, np.float32)},
        "head": {"w": weight(2 * 2 * 8, 3), "b": np.zeros(3, np.float32)},
    }

    def apply(params: Any, x: Any) -> Any:
        for name in ("conv1", "conv2"):
            x = jax.lax.conv_general_dilated(
                x, params[name]["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x + params[name]["b"])
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return x.reshape(x.shape[0], -1) @ params["head"]["w"] + params["head"]["b"]

    return Example(apply, params, (8, 8, 2), 3)


EXAMPLES = {"mlp": _mlp(), "cnn": _cnn()}


@functools.cache
def program(
    name: str = "mlp", state: str = "variables", optimizer: str = "sgd", update: str | float = "full"
) -> Program:
    """The program of an example; `update` is a scheme or the fraction of every weight."""
    rules = {"*": update} if isinstance(update, float) else update
    return converter.build(EXAMPLES[name].model(), optimizer=BUILT[optimizer], update=rules, batch=BATCH, state=state)


def by_name(params: Any) -> dict[str, np.ndarray]:
    """A pytree's leaves by the names that the session gives them."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {
        "/".join(str(getattr(k, "key", getattr(k, "idx", None))) for k in path): np.asarray(v) for path, v in leaves
    }


def train_with_optax(
    example: Example,
    optimizer: str,
    batches: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    learning_rate: float,
    trains: Callable[[str, np.ndarray], np.ndarray] = lambda name, leaf: np.ones_like(leaf),
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and trained weights of the same steps in optax; `trains` masks the elements of a weight that move."""
    rule, params = OPTIMIZERS[optimizer], jax.tree.map(jnp.asarray, example.params)
    slots, losses = rule.init(params), []
    mask = jax.tree.unflatten(
        jax.tree.structure(params), [trains(name, leaf) for name, leaf in by_name(example.params).items()]
    )
    step = jax.jit(jax.value_and_grad(example.loss))
    for x, y, weight in batches:
        loss, gradients = step(params, x, y, weight)
        losses.append(float(loss))
        updates, slots = rule.update(gradients, slots, params)
        params = jax.tree.map(lambda p, u, m: p + learning_rate * u * m, params, updates, mask)
    return losses, by_name(params)
