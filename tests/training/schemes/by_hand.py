"""Models with adapters written by hand in JAX, trained from the first A of the program that is compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax

import converter
import jax_frontend
from converter import LoRA
from converter.program.file import read_program
from converter.program.manifest import FROZEN
from converter.runtime import TrainingSession
from tests.models.oracle import flat, jax_model

BATCH, STEPS = 4, 10
#: Drawn by NumPy below: each draw of Keras' own is compiled.
ZEROS = {"kernel_initializer": "zeros"}
ADAM = optax.adam(1.0, eps=1e-5)


def transformer() -> keras.Model:
    x = inputs = keras.Input((6, 16), name="x")
    x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(2, 8, name="attention", **ZEROS)(x, x)])
    x = keras.layers.LayerNormalization(name="norm")(x)
    x = keras.layers.Dense(24, activation="gelu", name="up", **ZEROS)(x)
    x = keras.layers.EinsumDense("abc,cde->abde", (6, 4, 5), bias_axes="de", name="einsum", **ZEROS)(x)
    return keras.Model(inputs, keras.layers.Dense(3, name="head", **ZEROS)(keras.layers.Flatten()(x)))


def convolutional() -> keras.Model:
    x = inputs = keras.Input((9, 8, 3), name="x")
    x = keras.layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False, name="first", **ZEROS)(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization(name="norm")(x))
    x = keras.layers.Conv2D(12, 1, activation="relu", name="pointwise", **ZEROS)(x)
    x = keras.layers.Conv1D(6, 3, name="rows", **ZEROS)(keras.layers.Reshape((20, 12))(x))
    return keras.Model(inputs, keras.layers.Dense(3, name="head", **ZEROS)(keras.layers.Flatten()(x)))


def tied(params: Any, x: Any) -> Any:
    """A weight that is used both ways round, one from the left, and one matrix for each of two heads."""
    hidden = jnp.tanh(x @ params["tied"]) @ params["tied"].T
    mixed = jnp.einsum("ij,bjk->bik", params["left"], hidden.reshape(-1, 6, 2))
    each = jnp.einsum("bih,hio->bho", mixed, params["heads"])
    return each.reshape(-1, 8) @ params["head"]


def tied_model() -> jax_frontend.Model:
    rng = np.random.default_rng(3)
    shapes = {"tied": (12, 10), "left": (5, 6), "heads": (2, 5, 4), "head": (8, 3)}
    params = {name: rng.normal(size=shape).astype("f") / 2 for name, shape in shapes.items()}
    return jax_frontend.Model(tied, params, [jax.ShapeDtypeStruct((1, 12), "float32")])


def scaled(params: Any, x: Any) -> Any:
    """Weights times numbers of their outputs, which train, of their inputs, and one that is folded into its weight."""
    hidden = jnp.tanh(x @ (params["outputs"] * params["gain"]))
    hidden = jnp.tanh(hidden @ (jnp.linspace(0.5, 1.5, 10)[:, None] * params["inputs"]))
    hidden = jnp.tanh((0.7 * hidden.reshape(-1, 8, 2) @ params["number"]) * 0.4)
    mixed = jnp.einsum("ij,bjk->bik", params["left"] * jnp.linspace(-1, 1, 5)[:, None], hidden)
    mixed = jnp.einsum("ij,bjk->bik", params["left_inputs"] * jnp.linspace(1, 2, 5), jnp.tanh(mixed))
    return mixed.reshape(-1, 24) @ params["head"] * 0.5


def scaled_model() -> jax_frontend.Model:
    rng = np.random.default_rng(4)
    shapes = {"outputs": (12, 10), "inputs": (10, 16), "number": (2, 6), "left": (5, 8), "left_inputs": (4, 5)}
    params = {name: rng.normal(size=shape).astype("f") / 2 for name, shape in (shapes | {"head": (24, 3)}).items()}
    params["gain"] = np.linspace(0.5, 2, 10, dtype="f")
    return jax_frontend.Model(scaled, params, [jax.ShapeDtypeStruct((1, 12), "float32")])


def dense(a: Any, b: Any) -> Any:
    return a @ b


@dataclass(frozen=True)
class Case:
    """A model, its adapted weights and, written by hand, what their factors add to each.

    `dora`: the axes of inputs of those weights whose columns' lengths train.
    """

    model: Callable[[], Any]
    shape: tuple[int, ...]
    changes: dict[str, Callable[[Any, Any], Any]]
    rules: dict[str, Any]
    optimizer: optax.GradientTransformation
    rate: float
    dora: dict[str, tuple[int, ...]] = field(default_factory=dict)


CASES = {
    "transformer": Case(
        transformer,
        (6, 16),
        {f"attention/{name}/kernel": lambda a, b: (a @ b).reshape(16, 2, 8) for name in ("query", "key", "value")}
        | {
            "attention/attention_output/kernel": lambda a, b: (a @ b).reshape(2, 8, 16),
            "up/kernel": dense,
            "einsum/kernel": lambda a, b: (a @ b).reshape(24, 4, 5),
        },
        {"*": LoRA(3, 6), "*/bias": "bias", "head/*": 1},
        ADAM,
        0.02,
    ),
    "convolutional": Case(
        convolutional,
        (9, 8, 3),
        {
            "first/kernel": lambda a, b: jnp.einsum("hwir,ro->hwio", a, b),
            "pointwise/kernel": lambda a, b: jnp.einsum("hwir,ro->hwio", a, b),
            "rows/kernel": lambda a, b: jnp.einsum("wir,ro->wio", a.reshape(3, 12, 2), b),
        },
        {"*/kernel": LoRA(2, 3), "head/*": 1},
        optax.sgd(1.0),
        0.05,
    ),
    "only b trains": Case(
        convolutional,
        (9, 8, 3),
        {
            "pointwise/kernel": lambda a, b: jnp.einsum("hwir,ro->hwio", a, b),
            "rows/kernel": lambda a, b: jnp.einsum("wir,ro->wio", a.reshape(3, 12, 2), b),
        },
        {"[pr]*/kernel": LoRA(2, 3, train_a=False)},
        ADAM,
        0.02,
    ),
    "tied": Case(
        tied_model,
        (12,),
        {"tied": dense, "left": lambda a, b: (a @ b).T, "heads": lambda a, b: jnp.einsum("hir,hro->hio", a, b)},
        {"*": LoRA(2, 5), "head": 1},
        ADAM,
        0.02,
    ),
}

CASES["scaled"] = Case(
    scaled_model,
    (12,),
    dict.fromkeys(("outputs", "inputs", "number"), dense)
    | dict.fromkeys(("left", "left_inputs"), lambda a, b: (a @ b).T),
    {"*": LoRA(1, 3), "gain": 1, "head": 1},
    ADAM,
    0.02,
)
CASES |= {
    "transformer, DoRA": replace(
        CASES["transformer"],
        rules={"*": LoRA(3, 6, dora=True), "*/bias": "bias", "head/*": 1},
        dora=dict.fromkeys(CASES["transformer"].changes, (0,)) | {"attention/attention_output/kernel": (0, 1)},
    ),
    "convolutional, DoRA": replace(
        CASES["convolutional"],
        rules={"*/kernel": LoRA(2, 3, dora=True), "first/kernel": LoRA(2, 3), "head/*": 1},
        dora={"pointwise/kernel": (0, 1, 2), "rows/kernel": (0, 1)},
    ),
    "only b trains, DoRA": replace(
        CASES["only b trains"],
        rules={"[pr]*/kernel": LoRA(2, 3, train_a=False, dora=True)},
        dora={"pointwise/kernel": (0, 1, 2), "rows/kernel": (0, 1)},
    ),
    "from the left, DoRA": replace(
        CASES["tied"],
        changes={"left": CASES["tied"].changes["left"]},
        rules={"left": LoRA(2, 5, dora=True), "head": 1},
        dora={"left": (1,)},
    ),
}


def drawn(rng: np.random.Generator, weight: np.ndarray) -> np.ndarray:
    """A kernel at random, a vector a little off what it begins as."""
    if weight.ndim == 1:
        return weight + rng.uniform(-0.1, 0.1, weight.shape)
    return rng.normal(size=weight.shape) / np.sqrt(np.prod(weight.shape[:-1]))


@cache
def model(name: str) -> Any:
    made = CASES[name].model()
    rng = np.random.default_rng(0)
    for layer in made.layers if isinstance(made, keras.Model) else ():
        layer.set_weights([drawn(rng, w) for w in layer.get_weights()])
    return made


@cache
def program(name: str, state: str = "variables", **options: Any) -> converter.Program:
    case = CASES[name]
    return compiled(name, optimizer=case.optimizer, update=case.rules, state=state, **options)


def compiled(name: str, **options: Any) -> converter.Program:
    return converter.build(model(name), batch=BATCH, signatures=("train", "infer"), **options)


def data(name: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(BATCH, *CASES[name].shape)).astype("f"), rng.integers(0, 3, BATCH).astype(np.int32)


class ByHand:
    """Training of A and B in JAX and optax, from the program's own first A."""

    def __init__(self, name: str) -> None:
        self.case, made = CASES[name], jax_model(model(name))
        self.apply = made.apply
        self.frozen, self.unflatten = flat(made.params)
        with TrainingSession(program(name).data) as session:
            self.trained = {key: jnp.asarray(value) for key, value in session.parameters().items()}
        file = read_program(program(name).data)
        drawn = [name for name in file.metadata if name.startswith(FROZEN) and name.endswith("/lora_a")]
        self.drawn = {name.removeprefix(FROZEN): np.frombuffer(file.metadata[name], "f") for name in drawn}
        self.scale = next(rule.scale for rule in self.case.rules.values() if isinstance(rule, LoRA))

    def weights(self, trained: Any) -> dict[str, Any]:
        whole = dict(self.frozen) | {k: v for k, v in trained.items() if "/lora_" not in k}
        for name, change in self.case.changes.items():
            b = trained[f"{name}/lora_b"]
            a = trained.get(f"{name}/lora_a")
            if a is None:
                a = self.drawn[f"{name}/lora_a"].reshape(-1, *self.frozen[name].shape[-2:-1], b.shape[0])
                a = a.reshape(1, *a.shape) if self.frozen[name].ndim == 4 else a
            whole[name] = whole[name] + self.scale * change(a, b)
            if axes := self.case.dora.get(name):
                lengths = jax.lax.stop_gradient(jnp.sqrt(jnp.square(whole[name]).sum(axes, keepdims=True)))
                whole[name] = whole[name] / lengths * trained[f"{name}/lora_magnitude"].reshape(lengths.shape)
        return whole

    def loss(self, trained: Any, x: Any, y: Any) -> Any:
        logits = self.apply(self.unflatten(self.weights(trained)), x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def train(self, name: str) -> list[float]:
        slots, losses = self.case.optimizer.init(self.trained), []

        @jax.jit
        def step(trained: Any, slots: Any, x: Any, y: Any) -> Any:
            value, gradients = jax.value_and_grad(self.loss)(trained, x, y)
            updates, slots = self.case.optimizer.update(gradients, slots, trained)
            return value, jax.tree.map(lambda p, u: p + self.case.rate * u, trained, updates), slots

        for i in range(STEPS):
            value, self.trained, slots = step(self.trained, slots, *data(name, i))
            losses.append(float(value))
        return losses


@cache
def by_hand(name: str) -> tuple[list[float], ByHand]:
    oracle = ByHand(name)
    return oracle.train(name), oracle


def close(found: dict[str, np.ndarray], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, atol=1e-4 * np.abs(array).max(), err_msg=name)
