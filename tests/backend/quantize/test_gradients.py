"""The way back of the gradient through int8 weights, against jax.grad with the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from converter.backend.lowering.lower import lower
from converter.backend.peephole.fuse import fuse
from converter.backend.targets import tables, target
from converter.ir import Builder, Graph, Op, TensorType, Value, evaluate, ops, verify
from converter.ir.scales import of_weight
from converter.passes import eliminate_dead_code
from converter.passes.autodiff import differentiate
from tests.backend.stock import file, run
from tests.models.execution import execution

PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D", "TRANSPOSE_CONV")
#: Input, weight [O, ...], strides and padding of a convolution; none for a dense layer.
LAYERS = [
    ((3, 5, 24), (16, 24), None),
    ((2, 7, 8, 24), (16, 1, 1, 24), ((1, 1), ((0, 0), (0, 0)))),
    ((2, 8, 7, 24), (16, 1, 1, 24), ((2, 2), ((0, 0), (0, 0)))),
    ((2, 7, 8, 24), (16, 3, 3, 24), ((1, 1), ((1, 1), (1, 1)))),
    ((2, 8, 8, 24), (16, 3, 3, 24), ((2, 2), ((0, 1), (0, 1)))),
    ((2, 9, 8, 24), (16, 3, 3, 24), ((2, 2), ((1, 1), (1, 1)))),
]


def case(x: tuple[int, ...], w: tuple[int, ...], window: Any) -> tuple[Graph, Callable]:
    """A graph of the layer and of its input's cotangent, and the layer in JAX."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(w) * np.exp(0.3 * rng.standard_normal((w[0], *(1,) * (len(w) - 1))))
    of, stored = of_weight(weight.astype(np.float32), 0)
    b = Builder()
    value = b.input("x", TensorType(x))
    op: Op = ops.Int8MatMul(of) if window is None else ops.Int8Conv2D(*window, of=of)
    y = b(op, value, b.quantized(stored, of))
    seed = b.input("dy", y.type)
    loss: Value = b(ops.Sum(tuple(range(len(y.shape)))), b(ops.Mul(), y, seed))
    graph, gradients = differentiate(b.graph, loss, [value])
    graph.outputs = {"y": y, "dx": gradients[value]}

    def layer(x: jax.Array) -> jax.Array:
        real = of.real(stored).astype(np.float32)
        if window is None:
            return x @ real.T
        return jax.lax.conv_general_dilated(x, real, *window, dimension_numbers=("NHWC", "OHWI", "NHWC"))

    return verify(eliminate_dead_code(graph)), layer


@pytest.mark.parametrize("name", [name for name in sorted(tables()) if target(name).keeps("variables")])
@pytest.mark.parametrize(("x", "w", "window"), LAYERS)
def test_gradient_of_the_input(x: tuple[int, ...], w: tuple[int, ...], window: Any, name: str) -> None:
    graph, layer = case(x, w, window)
    rng = np.random.default_rng(1)
    feed = {"x": rng.standard_normal(x).astype(np.float32)}
    y, back = jax.vjp(layer, feed["x"])
    feed["dy"] = rng.standard_normal(y.shape).astype(np.float32)
    expected = {"y": np.asarray(y), "dx": np.asarray(back(feed["dy"])[0])}
    lowered = fuse(lower(graph, target(name)))
    for meant in (evaluate(graph, feed)[0], evaluate(verify(lowered), feed)[0]):
        for output, array in expected.items():
            np.testing.assert_allclose(meant[output], array, rtol=1e-4, atol=1e-4)
    model = file(lowered)
    products = [step for step in execution(model) if step.kind in PRODUCTS]
    assert len(products) == 2
    assert all(step.delegated for step in products)
    for xnnpack in (True, False):
        found = run(model, feed, xnnpack)
        for output, array in expected.items():
            error = np.linalg.norm(found[output] - array) / np.linalg.norm(array)
            assert error < 0.03, (output, xnnpack, error)
