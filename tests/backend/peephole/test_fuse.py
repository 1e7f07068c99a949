"""Biases and activations that the kernels have for nothing, against numpy in the stock interpreter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from converter.backend import builtins as tfl
from converter.backend.peephole.fuse import fuse
from converter.ir import Builder, TensorType, Value, verify
from converter.ir.scales import of_weight
from tests.backend.stock import file, run

ROWS, IN, OUT = 6, 8, 4
RNG = np.random.default_rng(0)
WEIGHT, BIAS = RNG.standard_normal((OUT, IN)).astype(np.float32), RNG.standard_normal(OUT).astype(np.float32)


def _int8(b: Builder, x: Value) -> Value:
    of, stored = of_weight(WEIGHT, axis=0)
    return b(tfl.DynamicRange((None, of), tfl.FullyConnected()), x, b.quantized(stored, of, "w"))


KERNELS: dict[str, Callable[[Builder, Value], Value]] = {
    "float32": lambda b, x: b(tfl.FullyConnected(), x, b.constant(WEIGHT)),
    "int8 weights": _int8,
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("shape", "read", "left"),
    [
        ((ROWS, OUT), False, ["FULLY_CONNECTED"]),
        ((2, 3, OUT), False, ["FULLY_CONNECTED", "RESHAPE"]),
        ((2, 3, OUT), True, ["FULLY_CONNECTED", "RESHAPE", "ADD"]),
        ((6, 2, 2), False, ["FULLY_CONNECTED", "RESHAPE", "ADD"]),
    ],
    ids=["rows", "images of rows", "read by others", "other channels"],
)
def test_a_dense_layer_has_its_bias_and_activation(kernel: str, shape: tuple, read: bool, left: list[str]) -> None:
    """Behind a reshape, too, that leaves the channels as they are, where nothing else reads what lies between."""
    b = Builder()
    product = KERNELS[kernel](b, b.input("x", TensorType((ROWS, IN))))
    rows = product if product.shape == shape else b(tfl.Reshape(shape), product)
    bias = BIAS[: shape[-1]]
    b.graph.outputs["y"] = b(tfl.Relu(), b(tfl.Add(), b.constant(bias), rows))
    if read:
        b.graph.outputs["rows"] = rows
    after = verify(fuse(b.graph), "fuse")
    assert [node.op.code for node in after.nodes] == left
    x = RNG.standard_normal((ROWS, IN)).astype(np.float32)
    found = run(file(after), {"x": x}, xnnpack=True)["y"]
    wanted = np.maximum((x @ WEIGHT.T).reshape(shape) + bias, 0)
    np.testing.assert_allclose(found, wanted, atol=0.2 if kernel == "int8 weights" else 1e-5)


def test_a_bias_with_more_axes_than_the_rows_keeps_them() -> None:
    b = Builder()
    rows = b(tfl.Reshape((2, 3, OUT)), KERNELS["float32"](b, b.input("x", TensorType((ROWS, IN)))))
    b.graph.outputs["y"] = b(tfl.Add(), rows, b.constant(BIAS.reshape(1, 1, 1, OUT)))
    after = verify(fuse(b.graph), "fuse")
    assert [node.op.code for node in after.nodes] == ["FULLY_CONNECTED", "RESHAPE"]
    assert after.outputs["y"].shape == (1, 2, 3, OUT)
