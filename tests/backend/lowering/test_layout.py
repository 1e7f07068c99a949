"""The matrix of a first trained layer is kept as few rows meet it: right against jax, shown as the user knows it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.backend.lowering.weight_layout import better_transposed
from converter.backend.targets import target
from converter.ir import Builder, Graph, Parameter, TensorType, ops
from converter.runtime import TrainingSession

RNG = np.random.default_rng(0)


def dense(rows: int, inputs: int, outputs: int) -> Graph:
    """x @ w, and y @ v behind it; both train."""
    b = Builder()
    x, w, v = (
        b.input(name, TensorType(shape))
        for name, shape in (("x", (rows, inputs)), ("w", (inputs, outputs)), ("v", (outputs, outputs)))
    )
    b.graph.inputs.remove(w)
    b.graph.inputs.remove(v)
    b.graph.parameters = {p: Parameter(p.name, np.zeros(p.shape, np.float32)) for p in (w, v)}
    b.graph.outputs = {"y": b(ops.MatMul(), b(ops.Relu(), b(ops.MatMul(), x, w)), v)}
    return b.graph


@pytest.mark.parametrize(
    ("machine", "rows", "inputs", "outputs", "names"),
    [
        ("litert-2", 8, 1280, 1000, {"w"}),  # counted: 3.3 M instructions for 4.8 M; v's cotangent goes on to w
        ("litert-2", 256, 512, 8000, set()),
        ("litert-2/x86-64", 8, 2048, 1000, {"w"}),  # measured: 0.55 ms for 1.05 ms
        ("litert-2/x86-64", 256, 512, 8000, set()),  # 19.4 ms; 27.3 ms the other way round
        ("gpu", 8, 1280, 1000, set()),
    ],
)
def test_where_it_pays(machine: str, rows: int, inputs: int, outputs: int, names: set[str]) -> None:
    assert better_transposed(dense(rows, inputs, outputs), target(machine)) == names


def test_it_trains_and_is_shown_as_ever() -> None:
    shapes = {"first": (64, 256), "head": (256, 200)}
    params = {n: RNG.standard_normal(s).astype(np.float32) / 9 for n, s in shapes.items()}
    x, y = RNG.standard_normal((4, 64)).astype(np.float32), np.array([3, 0, 39, 3], np.int32)

    def apply(params: dict, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ params["first"]) @ params["head"]

    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 64), np.float32)])
    program = converter.build(
        model, "sparse_categorical_crossentropy", optimizer=optax.sgd(1.0, momentum=0.9), update={"head": 1.0}, batch=4,
        signatures=("train", "infer", "infer_1"),
    )  # fmt: skip
    assert {t.shape for t in program.manifest.state_tensors if t.tensor == "head"} == {(200, 256)}
    session = TrainingSession(program.data)
    optimizer, head = optax.sgd(0.1, momentum=0.9), {"head": params["head"]}
    state = optimizer.init(head)
    for _ in range(5):

        def loss(head: dict) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(apply(params | head, x), y).mean()

        expected, gradient = jax.value_and_grad(loss)(head)
        change, state = optimizer.update(gradient, state)
        head = optax.apply_updates(head, change)
        np.testing.assert_allclose(session.train(x, y, learning_rate=0.1), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(session.parameters()["head"], head["head"], atol=1e-5)
    for rows in (4, 1):
        np.testing.assert_allclose(session.infer(x[:rows]), apply(params | head, x[:rows]), atol=1e-5)
