"""What operators cost by the table of phones, against instructions of the real library.

They were counted under emulation, LiteRT 2.3.0 on Cortex-A76, less those of a call that does nothing. Shapes are small
and odd on purpose: large ones are what the table was measured on. `scripts/bench/predicted.py` does the same for whole
steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from converter.backend import builtins as tfl
from converter.backend.costs.step_cost import step_cost
from converter.backend.lowering.context import Lowering
from converter.backend.lowering.lower import lower
from converter.backend.targets import target
from converter.ir import TensorType, Value

PHONE = target("litert-2")
#: Images, size, filter, channels before and after: instructions with a constant filter, with one that arrives.
CONVOLUTIONS = {
    (1, 32, 3, 32, 32): (3246650, 3927146),
    (2, 14, 3, 64, 64): (4833284, 5370983),
    (1, 28, 1, 96, 32): (813041, 969592),
    (2, 7, 1, 160, 320): (1713568, 1939779),
    (8, 8, 3, 1, 24): (145360, 194328),
    (8, 4, 3, 8, 48): (209096, 211597),
    (8, 8, 1, 8, 48): (105951, 137171),
    (4, 16, 3, 16, 16): (882812, 1279012),
    (4, 16, 1, 16, 64): (444174, 536468),
}
TRANSPOSED = {(1, 32, 3, 32, 32): 3246178, (8, 8, 3, 48, 24): 1834683, (8, 4, 3, 48, 8): 168539}
DEPTHWISE = {
    (2, 28, 3, 192): 2273683,
    (8, 8, 1, 48): 85822,
    (8, 4, 1, 96): 40183,
    (2, 14, 5, 240): 1713689,
    (8, 8, 3, 48): 210503,
}
PADDED = {
    (1, 28, 28, 64): 141333,
    (8, 14, 14, 96): 370700,
    (24, 8, 8, 8): 208946,
    (4, 8, 8, 32): 45537,
    (8, 28, 28, 16): 718200,
}
ADDED = {
    ((8, 8, 8, 48), (48,)): 34687,
    ((8, 28, 28, 64), (64,)): 520943,
    ((8, 28, 28, 64), (8, 28, 28, 64)): 401805,
    ((256, 256), (256, 1)): 62837,
    ((256, 8), (8,)): 7298,
}
POOLED = {(8, 8, 8, 48): 45679, (8, 28, 28, 64): 692425}
#: Rows, depth, columns, and whether the left operand is transposed.
PRODUCTS = {
    (256, 256, 256, False): 5551048,
    (384, 8, 10, True): 35945,
    (8, 384, 10, False): 39286,
    (48, 512, 8, True): 97763,
    (512, 72, 8, False): 107730,
    (512, 8, 48, False): 108005,
    (8, 64, 64, False): 21554,
}
DENSE = {(256, 256, 256): 5518207, (8, 64, 64): 17737, (64, 72, 16): 29228}


def predicted(emit: Callable[[Lowering], Value]) -> int:
    """The cost of what is emitted."""
    c = Lowering(PHONE, lower)
    c.graph.outputs = {"y": emit(c)}
    return step_cost(c.graph, PHONE)


def filled(c: Lowering, *shape: int) -> Value:
    """A constant."""
    return c.constant(np.ones(shape, np.float32))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_convolutions(shape: tuple[int, ...], constant: bool) -> None:
    n, size, k, i, o = shape

    def emit(c: Lowering) -> Value:
        w = filled(c, o, k, k, i) if constant else c.input("w", TensorType((o, k, k, i)))
        return c(tfl.Conv2D((1, 1), "SAME"), c.input("x", TensorType((n, size, size, i))), w, filled(c, o))

    assert predicted(emit) == pytest.approx(CONVOLUTIONS[shape][not constant], rel=0.15)


@pytest.mark.parametrize("shape", TRANSPOSED)
def test_transposed_convolutions(shape: tuple[int, ...]) -> None:
    n, size, k, i, o = shape

    def emit(c: Lowering) -> Value:
        op = tfl.TransposeConv((n, size, size, o), (1, 1), "SAME")
        return c(op, filled(c, o, k, k, i), c.input("dy", TensorType((n, size, size, i))))

    assert predicted(emit) == pytest.approx(TRANSPOSED[shape], rel=0.15)


@pytest.mark.parametrize("shape", DEPTHWISE)
def test_depthwise_convolutions(shape: tuple[int, ...]) -> None:
    n, size, k, channels = shape

    def emit(c: Lowering) -> Value:
        x = c.input("x", TensorType((n, size, size, channels)))
        return c(tfl.DepthwiseConv2D((1, 1), "SAME"), x, filled(c, 1, k, k, channels), filled(c, channels))

    assert predicted(emit) == pytest.approx(DEPTHWISE[shape], rel=0.15)


@pytest.mark.parametrize("shape", PRODUCTS)
def test_products(shape: tuple[int, int, int, bool]) -> None:
    m, k, n, transposed = shape

    def emit(c: Lowering) -> Value:
        x = c.input("x", TensorType((k, m) if transposed else (m, k)))
        return c(tfl.BatchMatmul(transposed), x, c.input("w", TensorType((k, n))))

    assert predicted(emit) == pytest.approx(PRODUCTS[shape], rel=0.15)


@pytest.mark.parametrize("shape", DENSE)
def test_dense_layers(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    cost = predicted(lambda c: c(tfl.FullyConnected(), c.input("x", TensorType((m, k))), filled(c, n, k)))
    assert cost == pytest.approx(DENSE[shape], rel=0.15)


@pytest.mark.parametrize("shape", PADDED)
def test_paddings(shape: tuple[int, ...]) -> None:
    around = ((0, 0), (1, 1), (1, 1), (0, 0))
    cost = predicted(lambda c: c(tfl.Pad(around), c.input("x", TensorType(shape))))
    assert cost == pytest.approx(PADDED[shape], rel=0.15)


@pytest.mark.parametrize("shapes", ADDED)
def test_sums_with_what_is_repeated(shapes: tuple[tuple[int, ...], ...]) -> None:
    cost = predicted(lambda c: c(tfl.Add(), *(c.input(f"x{i}", TensorType(s)) for i, s in enumerate(shapes))))
    assert cost == pytest.approx(ADDED[shapes], rel=0.15)


@pytest.mark.parametrize("shape", POOLED)
def test_pools(shape: tuple[int, ...]) -> None:
    pool = tfl.MaxPool2D((2, 2), (2, 2), "VALID")
    assert predicted(lambda c: c(pool, c.input("x", TensorType(shape)))) == pytest.approx(POOLED[shape], rel=0.15)
