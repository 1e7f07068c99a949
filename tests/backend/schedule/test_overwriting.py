"""What the runtime computes in place of an operand must not be there for others to read."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter.backend import builtins as tfl
from converter.backend.schedule.overwriting import without_overwriting
from converter.ir import Builder, Graph, TensorType, Value, evaluate
from converter.runtime import TrainingSession
from tests.backend.schedule.eager import overwrite_early
from tests.backend.stock import file, run

ROWS, COLUMNS = 4, 5


def in_two_shapes(late: bool) -> Graph:
    """A difference that is read as it is, and reshaped to be multiplied."""
    b = Builder()
    x, y = (b.input(name, TensorType((ROWS, COLUMNS))) for name in "xy")
    difference = b(tfl.Sub(), b(tfl.Exp(), x), y)
    flat = b(tfl.Reshape((ROWS * COLUMNS,)), difference)

    def scaled() -> Value:
        return b(tfl.Tanh(), b(tfl.Mul(), flat, b.constant([3.0], np.float32)))

    def product() -> Value:
        return b(tfl.BatchMatmul(adj_y=True), difference, y)

    made = [function() for function in ((scaled, product) if late else (product, scaled))]
    b.graph.outputs = {f"{v.shape}": v for v in made}
    return b.graph


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("xnnpack", [True, False])
def test_a_reshaped_value_is_not_written_over(late: bool, xnnpack: bool) -> None:
    graph = without_overwriting(in_two_shapes(late))
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal((ROWS, COLUMNS), np.float32) for name in "xy"}
    wanted, _ = evaluate(graph, feed)
    found = run(file(graph), feed, xnnpack)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_nothing_is_copied_that_one_operator_reads() -> None:
    b = Builder()
    x = b.input("x", TensorType((ROWS, COLUMNS)))
    b.graph.outputs["y"] = b(tfl.Neg(), b(tfl.Reshape((COLUMNS, ROWS)), b(tfl.Exp(), x)))
    assert [n.op for n in without_overwriting(b.graph).nodes] == [n.op for n in b.graph.nodes]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_steps_of_one_row_on_the_runtimes_own_kernels(optimizer: str) -> None:
    """The gradient of a bias is then the cotangent that the product reads, too, reshaped."""
    rng, rate = np.random.default_rng(0), 0.1
    shapes = {"a": (6, 7), "b": (7,), "c": (7, 3), "d": (3,)}
    params = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}

    def apply(p: Any, x: Any) -> Any:
        return jax.nn.sigmoid(x @ p["a"] + p["b"]) @ p["c"] + p["d"]

    def loss(p: Any, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(apply(p, x), y).mean()

    rule = optax.sgd(rate, momentum=0.9 if optimizer == "momentum" else None)
    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 6), np.float32)])
    program = converter.build(model, optimizer=rule, batch=1, check=False)
    wanted: Any = params
    slots = rule.init(wanted)
    with TrainingSession(program.data, xnnpack=False) as session:
        for _ in range(3):
            x, y = rng.standard_normal((1, 6), np.float32), rng.integers(0, 3, 1)
            updates, slots = rule.update(jax.grad(loss)(wanted, x, y), slots, wanted)
            wanted = optax.apply_updates(wanted, updates)
            session.train(x, y)
        for name, array in session.parameters().items():
            np.testing.assert_allclose(array, wanted[name], atol=1e-5)


def windowed(picture: Any, w: Any, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        picture, w, (2, 2), [(1, 1), (1, 1)], dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


#: Of a trained tensor p [2, 8, 6, 4] and a weight w [3, 3, 4, 4], or [3, 3, 1, 4] where channels are apart.
OF_A_TRAINED_TENSOR = {
    "conv": windowed,
    "depthwise": lambda p, w: windowed(p, w[:, :, :1], 4),
    "padded twice": lambda p, w: windowed(p, w) + windowed(p, w * 2),
    "max": lambda p, w: jax.lax.reduce_window(p, -np.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") * w[0, 0, 0],
    "mean": lambda p, w: jax.lax.reduce_window(p, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") * w[0, 0, 0],
    "product": lambda p, w: jax.numpy.swapaxes(p, 1, 3).reshape(2, -1, 8) @ jax.numpy.pad(w[0, 0], ((2, 2), (0, 0))),
    "weight": lambda p, w: windowed(jax.numpy.tanh(w.reshape(1, 9, 4, 4)), p[:1, :3, :3].reshape(3, 3, 4, 1)),
}


@pytest.mark.parametrize("name", OF_A_TRAINED_TENSOR)
def test_a_tensor_is_read_before_its_new_value_is_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """XNNPACK moves the reading of what is padded to the convolution that reads the zeros around it."""
    overwrite_early(monkeypatch)
    rng = np.random.default_rng(1)
    params = {k: rng.standard_normal(s).astype(np.float32) for k, s in {"p": (2, 8, 6, 4), "w": (3, 3, 4, 4)}.items()}

    def apply(p: Any, x: Any) -> Any:
        return (OF_A_TRAINED_TENSOR[name](p["p"], p["w"]) ** 2).sum() * x

    model = jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 1), np.float32)])
    program = converter.build(model, loss=lambda y: y[:, 0], optimizer="sgd", batch=1, check=False)
    one = np.ones((1, 1), np.float32)
    gradients = jax.grad(lambda p: apply(p, one).sum())(params)
    with TrainingSession(program.data) as session:
        session.train(one, learning_rate=0.5)
        for key, array in session.parameters().items():
            np.testing.assert_allclose(array, params[key] - 0.5 * gradients[key], rtol=1e-4, atol=1e-4, err_msg=key)
