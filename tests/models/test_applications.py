"""Keras applications: gradients are as exact as those of JAX are when the last bit of each weight is flipped.

.venv/bin/python -m pytest -m slow tests/models/test_applications.py -k MobileNet     # all of them take hours
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import converter
from converter.frontends.keras.applications import application, names
from converter.program.file import read_program
from converter.program.parameters import parameters_of
from tests.models.oracle import flat, jax_model

pytestmark = pytest.mark.slow

BATCH, CLASSES = 2, 5
#: The smallest image that a net takes; 32 for the others.
SIZES = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
#: Draws of the last bits, and how many are made where these do not explain a difference: the largest change of few is
#: a rough measure. A tensor's gradient may be off by so much more than that, or than the last bit of its largest
#: number, to which either side rounds.
DRAWS, MANY_DRAWS, FACTOR = 5, 25, 4


class Expected(NamedTuple):
    """What JAX says: the loss, the gradients by name, and by how much the last bits of the weights change each."""

    loss: float
    loss_noise: float
    gradients: dict[str, np.ndarray]
    noise: dict[str, float]


@lru_cache(1)  # the largest take gigabytes
def model(name: str) -> Any:
    keras.utils.set_random_seed(0)
    made = application(name, SIZES.get(name, 32), CLASSES)
    rng = np.random.default_rng(0)
    for variable in made.variables:
        noise = rng.standard_normal(variable.shape, np.float32)
        match variable.path.rpartition("/")[2]:
            case "gamma" | "moving_variance":  # not all alike, as when they are new
                variable.assign(np.exp(0.2 * noise) * np.asarray(variable))
            case "beta" | "bias" | "moving_mean":
                variable.assign(np.asarray(variable) + 0.1 * noise)
    return made


def batch(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    size = SIZES.get(name, 32)
    return 255 * rng.random((BATCH, size, size, 3), np.float32), rng.integers(0, CLASSES, BATCH).astype(np.int32)


@lru_cache(1)  # the largest take gigabytes
def expected(name: str, draws: int) -> Expected:
    found = jax_model(model(name))
    everything, unflatten = flat(found.params)
    weights = {name: array for name, array in everything.items() if np.issubdtype(array.dtype, np.floating)}
    x, y = batch(name)

    @jax.jit
    def value_and_gradients(weights: Mapping[str, Any]) -> Any:
        def loss(weights: Mapping[str, Any]) -> Any:
            logits = found.apply(unflatten({**everything, **weights}), x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(y)).mean()

        return jax.value_and_grad(loss)(weights)

    value, gradients = value_and_gradients(weights)
    gradients = {name: np.asarray(gradient) for name, gradient in gradients.items()}
    noise = {name: float(np.spacing(np.abs(gradient).max())) for name, gradient in gradients.items()}
    loss_noise = float(np.spacing(np.float32(value)))
    for seed in range(draws):
        other, others = value_and_gradients(flipped(weights, np.random.default_rng(seed)))
        loss_noise = max(loss_noise, deviation(other, value))
        noise = {name: max(noise[name], deviation(others[name], gradients[name])) for name in noise}
    return Expected(float(value), loss_noise, gradients, noise)


def flipped(weights: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Each weight becomes one of its two neighbours among the float32 numbers."""
    return {
        name: np.nextafter(w, np.where(rng.random(w.shape) < 0.5, -np.inf, np.inf).astype(np.float32))
        for name, w in weights.items()
    }


def deviation(a: Any, b: Any) -> float:
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())


def gradients(name: str, update: str) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of one step in the stock interpreter: what momentum keeps of the first one, exactly."""
    rule = optax.sgd(1.0, momentum=0.9)
    program = converter.build(model(name), optimizer=rule, update=update, batch=BATCH, signatures=["train"])
    with converter.runtime.TrainingSession(program.data) as session:
        loss = session.train(*batch(name), 1e-9)
        state = session.state()
    tensors = [piece.tensor for spec in program.manifest.parameters for piece in spec.pieces]
    kept = {tensor: [array for slot, array in state.items() if slot.endswith(f"/trace/{tensor}")] for tensor in tensors}
    assert all(len(slots) == 1 for slots in kept.values())
    found = parameters_of(read_program(program.data), {tensor: slot for tensor, (slot,) in kept.items()})
    return loss, {tensor: np.array(array, np.float64) for tensor, array in found.items()}


@pytest.mark.parametrize("update", ["full", "last-3"])
@pytest.mark.parametrize("name", names())
def test_gradients_are_as_exact_as_those_of_jax(name: str, update: str) -> None:
    wanted = expected(name, DRAWS)
    loss, found = gradients(name, update)
    assert abs(loss - wanted.loss) <= max(FACTOR * wanted.loss_noise, 1e-5 * abs(wanted.loss))
    if update == "full":
        assert len(found) == len(model(name).trainable_variables)
    if not_explained(found, wanted):
        wanted = expected(name, MANY_DRAWS)
    assert not not_explained(found, wanted)


def not_explained(found: Mapping[str, np.ndarray], wanted: Expected) -> dict[str, tuple[float, float]]:
    """Return by tensor how far off it is, and the noise, where that is too little."""
    errors = {tensor: deviation(array, wanted.gradients[tensor]) for tensor, array in found.items()}
    return {
        tensor: (error, wanted.noise[tensor])
        for tensor, error in errors.items()
        if error > FACTOR * wanted.noise[tensor]
    }
