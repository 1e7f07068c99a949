"""Training by jax.value_and_grad and optax: what a compiled program must equal."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jax_frontend
from converter import Program
from converter.frontends import keras as keras_frontend
from converter.runtime import TrainingSession


def jax_model(model: Any) -> jax_frontend.Model:
    """A Keras model as a JAX function, on Keras' own JAX backend; a JAX model as it is."""
    return model if isinstance(model, jax_frontend.Model) else keras_frontend.to_jax_model(model)


def flat(params: Any) -> tuple[dict[str, np.ndarray], Callable[[Mapping[str, Any]], Any]]:
    """Parameters by path, and the way back."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    names = [
        "/".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path) for path, _ in leaves
    ]
    return (
        {name: np.asarray(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)},
        lambda named: jax.tree_util.tree_unflatten(structure, [named[name] for name in names]),
    )


class Oracle:
    """Trains the chosen fractions of a model's parameters: the first input channels of a kernel [..., in, out]."""

    def __init__(self, model: Any, fractions: Mapping[str, float], optimizer: optax.GradientTransformation) -> None:
        self.model, self.optimizer = jax_model(model), optimizer
        self.whole, self.unflatten = flat(self.model.params)
        self.cut = {
            name: round(fraction * self.whole[name].shape[-2]) if 0 < fraction < 1 else None
            for name, fraction in fractions.items()
            if fraction
        }
        self.trained = {
            name: jnp.asarray(self.whole[name] if k is None else self.whole[name][..., :k, :])
            for name, k in self.cut.items()
        }
        self.slots = optimizer.init(self.trained)
        self._step = jax.jit(self._one_step)

    def merged(self, trained: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters in full."""
        return {name: jnp.asarray(array) for name, array in self.whole.items()} | {
            name: part
            if self.cut[name] is None
            else jnp.asarray(self.whole[name]).at[..., : self.cut[name], :].set(part)
            for name, part in trained.items()
        }

    def logits(self, trained: Mapping[str, Any], x: Any) -> Any:
        return self.model.apply(self.unflatten(self.merged(trained)), x)

    def _one_step(self, trained: Any, slots: Any, x: Any, y: Any, weight: Any, learning_rate: Any) -> Any:
        def loss(trained: Any) -> Any:
            rows = optax.softmax_cross_entropy_with_integer_labels(self.logits(trained, x), y)
            return (rows.reshape(len(rows), -1).mean(1) * weight).sum() / weight.sum()

        value, gradients = jax.value_and_grad(loss)(trained)
        updates, slots = self.optimizer.update(gradients, slots, trained)
        trained = jax.tree_util.tree_map(lambda p, u: p + learning_rate * u, trained, updates)
        return value, trained, slots

    def train(self, x: np.ndarray, y: np.ndarray, learning_rate: float, weight: np.ndarray) -> float:
        """One step; returns the loss before it."""
        value, self.trained, self.slots = self._step(self.trained, self.slots, x, y, weight, learning_rate)
        return float(value)

    def parameters(self) -> dict[str, np.ndarray]:
        """The trained parameters in full, in the model's layout."""
        merged = self.merged(self.trained)
        return {name: np.asarray(merged[name]) for name in self.trained}


def assert_trains_as_in_jax(
    program: Program, model: Any, rule: optax.GradientTransformation, x: np.ndarray, y: np.ndarray
) -> None:
    """Four steps of a program have JAX's losses, and leave its parameters."""
    oracle = Oracle(model, {row.parameter: row.fraction for row in program.table}, rule)
    with TrainingSession(program.data) as session:
        for _ in range(4):
            wanted = oracle.train(x, y, 0.1, np.ones(len(y), np.float32))
            assert session.train(x, y, learning_rate=0.1) == pytest.approx(wanted, rel=1e-5)
        found = session.parameters()
    for name, array in oracle.parameters().items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-5 * np.abs(array).max())
