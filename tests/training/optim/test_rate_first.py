"""The learning rate on the loss' cotangent in place of every gradient: where that is the same, and where it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.ir import Builder, TensorType, ops
from converter.passes.autodiff import is_linear
from converter.program.file import read_program
from converter.program.layers import Layers

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 5)).astype(np.float32)
Y = RNG.standard_normal((6, 4)).astype(np.float32)
WEIGHTS = {
    "w": (0.5 * RNG.standard_normal((5, 8))).astype(np.float32),
    "b": (0.1 * RNG.standard_normal(8)).astype(np.float32),
    "v": (0.5 * RNG.standard_normal((8, 4))).astype(np.float32),
}
HALVED = {"w": True, "b": False, "v": False}


@jax.custom_vjp
def clipping(x: Any) -> Any:
    return x


clipping.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -0.01, 0.01),))


def apply(params: Any, x: Any, between: Callable = jnp.tanh) -> Any:
    return between(x @ params["w"] + params["b"]) @ params["v"]


def rows(output: Any, y: Any) -> Any:
    return ((output - y) ** 2).mean(-1)


#: Optimizer, what stands between the layers, and whether gradients are multiplied one by one.
CASES: dict[str, tuple[Any, Callable, bool]] = {
    "plain": (optax.sgd(1.0), jnp.tanh, False),
    "relu": (optax.sgd(1.0), jax.nn.relu, False),
    "per layer": (optax.chain(optax.sgd(1.0), optax.masked(optax.scale(0.5), HALVED)), jnp.tanh, False),
    "clipped on the way": (optax.sgd(1.0), lambda x: jnp.tanh(clipping(x)), True),
    "clipped": (optax.chain(optax.clip(0.01), optax.sgd(1.0)), jnp.tanh, True),
    "clipped together": (optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(1.0)), jnp.tanh, True),
    "decayed": (optax.chain(optax.add_decayed_weights(0.1), optax.sgd(1.0)), jnp.tanh, True),
    "momentum": (optax.sgd(1.0, momentum=0.9), jnp.tanh, True),
    "signs": (optax.sign_sgd(1.0), jnp.tanh, True),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rate", [0.0, 0.05, 3.0])
def test_steps_are_those_of_optax(case: str, rate: float) -> None:
    optimizer, between, one_by_one = CASES[case]
    model = jax_frontend.Model(
        lambda params, x: apply(params, x, between), WEIGHTS, [jax.ShapeDtypeStruct((1, 5), jnp.float32)]
    )
    program = converter.build(model, loss=rows, optimizer=optimizer, update="full", batch=6, signatures=("train",))
    train = Layers(read_program(program.data)).entry("train")
    (given,) = (index for index, name in train.inputs.items() if name == "learning_rate")
    readers = [place for place in train.places if given in place.operator.inputs]
    assert any(place.origin.phase == "update" for place in readers) == one_by_one

    # Two rates are no rate: what is given multiplies them.
    given_rate = "learning_rate" if program.manifest.running_rate is None else "rate_scale"
    params, state = WEIGHTS, optimizer.init(WEIGHTS)
    with converter.runtime.TrainingSession(program.data) as session:
        for _ in range(3):
            value, gradients = jax.value_and_grad(lambda p: rows(apply(p, X, between), Y).mean())(params)
            updates, state = optimizer.update(gradients, state, params)
            params = jax.tree.map(lambda p, u: p + rate * u, params, updates)
            assert session.train(X, Y, **{given_rate: rate}) == pytest.approx(float(value), rel=1e-5)
        found = session.parameters()
    for name, array in params.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=2e-6 * max(1.0, float(np.abs(array).max())))


@pytest.mark.parametrize(
    ("linear", "made"),
    [
        (True, lambda b, s, x: b(ops.Sub(), b(ops.Mul(), x, s), b(ops.Neg(), s))),
        (True, lambda b, s, x: b(ops.Div(), s, x)),
        (True, lambda b, s, x: b(ops.Select(), b(ops.Greater(), x, 0.0), s, b.constant(np.zeros(3, np.float32)))),
        (True, lambda b, s, x: b(ops.ReluGrad(), x, s)),
        (True, lambda b, s, x: b(ops.Concat(0), s, b.constant(np.zeros(2, np.float32)))),
        (True, lambda b, s, x: b(ops.Pad(((1, 2),)), s)),
        (False, lambda b, s, x: b(ops.Pad(((1, 2),), 1.0), s)),
        (False, lambda b, s, x: b(ops.Concat(0), s, x)),
        (False, lambda b, s, x: b(ops.ReluGrad(), s, x)),
        (False, lambda b, s, x: b(ops.Select(), b(ops.Greater(), s, 0.0), x, s)),
        (False, lambda b, s, x: b(ops.Select(), b(ops.Greater(), x, 0.0), s, x)),
        (False, lambda b, s, x: b(ops.Div(), x, s)),
        (False, lambda b, s, x: b(ops.Add(), s, x)),
        (False, lambda b, s, x: b(ops.Mul(), s, s)),
        (False, lambda b, s, x: b(ops.Maximum(), s, 0.0)),
        (False, lambda b, s, x: b(ops.Neg(), x)),
    ],
)  # fmt: skip
def test_what_is_linear(linear: bool, made: Callable) -> None:
    b = Builder()
    source, x = b.input("s", TensorType((3,))), b.input("x", TensorType((3,)))
    assert is_linear(b.graph, source, [made(b, source, x)]) == linear
