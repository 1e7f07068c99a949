"""Masks without a clamp are those with one, to the last bit; the factor goes where it is free."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from converter.backend import builtins as tfl
from converter.backend.lowering.lower import lower
from converter.backend.peephole.fuse import fuse
from converter.backend.peephole.masks import BOOST, without_clamps
from converter.backend.stages import to_builtins
from converter.backend.targets import target
from converter.ir import UNSCALED, Builder, Graph, Node, Op, Origin, TensorType, Value, ops
from converter.passes import merge_common_subexpressions
from tests.backend.stock import file, run

ARM64 = target("litert-2")
BACKWARD = Origin("layer", "", "backward")
SHAPE = (2, 64, 64, 16)
RNG = np.random.default_rng(0)
#: What is barely positive or barely 6, and what is neither; the first is the smallest number that a mask is exact for.
EDGES = [1 / BOOST, 0.0, 1e-7, 3.0, np.nextafter(np.float32(6), np.float32(0)), 6.0]
Cotangent = Callable[[Builder, Value], Value]


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def weight(b: Builder, *shape: int) -> Value:
    """One that trains: it arrives at run time."""
    return b.input("w", TensorType(shape))


def reduced(b: Builder, dz: Value) -> Value:
    """[N,1,1,C], which only repeats."""
    return b(ops.Mul(), b(ops.Mean((1, 2), True), dz), np.float32([0.25]))


#: What makes the cotangent of the larger one.
MADE: dict[str, Cotangent] = {
    "a frozen 1x1 convolution": lambda b, dz: b(ops.Conv2D(), dz, b.constant(array(16, 1, 1, 16))),
    "a frozen depthwise convolution": lambda b, dz: b(
        ops.DepthwiseConv2D(padding=((1, 1), (1, 1))), dz, b.constant(array(1, 3, 3, 16))
    ),
    "a cotangent of a strided one": lambda b, dz: b(
        ops.DepthwiseInputGrad((2, 2), ((0, 1), (0, 1)), size=SHAPE[1:3]),
        b(ops.Slice((0, 0, 0, 0), (2, 32, 32, 16)), dz),
        b.constant(array(1, 3, 3, 16)),
    ),
    "a 1x1 convolution that trains": lambda b, dz: b(ops.Conv2D(), dz, weight(b, 16, 1, 1, 16)),
    "a frozen product in int8": lambda b, dz: b(
        ops.Int8MatMul(UNSCALED, adj_y=False),
        b(ops.Mul(), dz, b.constant(np.abs(array(16)))),
        b.quantized(RNG.integers(-127, 128, (16, 16), np.int8), UNSCALED),
    ),
    "a mean": reduced,
}


def masked(made: Cotangent, kinds: list[type[Op]]) -> Graph:
    """A chain of cotangents, each masked by a y of its own."""
    b = Builder()
    dx = b.input("dz", TensorType(SHAPE))
    with b.at(BACKWARD):
        for i, kind in enumerate(kinds):
            dx = b.broadcast_to(made(b, dx), SHAPE) if i == 0 else b(ops.Conv2D(), dx, b.constant(array(16, 1, 1, 16)))
            dx = b(kind(), b.input(f"y{i}", TensorType(SHAPE)), dx)
    b.graph.outputs = {"dx": dx}
    return b.graph


def clamps(graph: Graph) -> int:
    return sum(getattr(node.op, "activation", "NONE") == "RELU_N1_TO_1" for node in graph.nodes)


def scales(graph: Graph, node: Node) -> bool:
    return isinstance(node.op, tfl.Mul) and not graph.constants.keys().isdisjoint(node.inputs)


def feed(graph: Graph) -> dict[str, np.ndarray]:
    tile = np.resize(np.array(EDGES, np.float32), SHAPE)
    return {v.name: tile if v.name.startswith("y") else array(*v.shape) for v in graph.inputs}


@pytest.mark.parametrize("machine", ["litert-2", "litert-2/x86-64", "tflite-2.16"])
@pytest.mark.parametrize("kind", [ops.ReluGrad, ops.Relu6Grad])
@pytest.mark.parametrize("made", MADE)
def test_cotangents_are_the_same_to_the_last_bit(made: str, kind: type[Op], machine: str) -> None:
    """Two masks in a row: each brings a factor of its own.

    XNNPACK quantizes the rows of negated numbers as it does those of the numbers, but for one in 100,000 whose zero
    point lies between two integers and is rounded to the other one.
    """
    graph, to = masked(MADE[made], [kind, kind]), target(machine)
    before = fuse(lower(graph, to))
    after = without_clamps(before, to)
    assert clamps(before) == 2
    assert clamps(after) == 0
    given = feed(before)
    expected = run(file(before), given, xnnpack=True)["dx"]
    assert 0 < np.count_nonzero(expected) < 0.9 * expected.size
    found = run(file(after), given, xnnpack=True)["dx"]
    if made == "a frozen product in int8" and kind is ops.Relu6Grad and to.is_newest:
        assert (found != expected).any(-1).mean() < 1e-3
        np.testing.assert_allclose(found, expected, rtol=0, atol=0.01 * np.abs(expected).max())
    else:
        np.testing.assert_array_equal(found, expected)


def test_no_pass_is_added_for_the_factor() -> None:
    """It is in the constants: no MUL is by a number any more, and the file is no larger."""
    before = fuse(lower(masked(MADE["a frozen 1x1 convolution"], [ops.Relu6Grad, ops.Relu6Grad]), ARM64))
    after = without_clamps(before, ARM64)
    count = [sum(scales(graph, node) for node in graph.nodes) for graph in (before, after)]
    assert count == [2, 0]
    assert len(after.nodes) == len(before.nodes)
    assert len(file(after)) < len(file(before)) + 512


def test_it_stays_where_the_factor_would_cost_as_much() -> None:
    """A cotangent that others read, too, a filter that the forward pass reads, a number too large for it."""
    b = Builder()
    dz, y = b.input("dz", TensorType(SHAPE)), b.input("y0", TensorType(SHAPE))
    w = b.constant(array(16, 1, 1, 16))
    with b.at(BACKWARD):
        dy = b(ops.Conv2D(), dz, w)
        b.graph.outputs = {"dx": b(ops.ReluGrad(), y, dy), "dy": b(ops.Neg(), dy)}
        assert clamps(without_clamps(fuse(lower(b.graph, ARM64)), ARM64)) == 1
        b.graph.outputs = {"dx": b(ops.ReluGrad(), y, b(ops.Mul(), dz, np.full(16, 2.0**70, np.float32)))}
        assert clamps(without_clamps(fuse(lower(b.graph, ARM64)), ARM64)) == 1
        dx = b(ops.ReluGrad(), y, b(ops.Conv2D(), dz, w))
    b.graph.outputs = {"dx": dx, "y": b(ops.Conv2D(), y, w)}
    assert clamps(without_clamps(fuse(lower(b.graph, ARM64)), ARM64)) == 1


def test_parts_of_the_batch_share_what_is_scaled() -> None:
    """One filter, frozen or trained, that several cotangents meet: it is scaled once."""
    for frozen, muls in ((True, 2), (False, 3)):
        b = Builder()
        w = b.constant(array(16, 1, 1, 16)) if frozen else weight(b, 16, 1, 1, 16)
        with b.at(BACKWARD):
            parts = [b.input(name, TensorType(SHAPE)) for name in ("dz", "dv", "y0", "y1")]
            made = [b(ops.ReluGrad(), y, b(ops.Conv2D(), dz, w)) for dz, y in zip(parts[:2], parts[2:], strict=True)]
        b.graph.outputs = {f"dx{i}": dx for i, dx in enumerate(made)}
        before = fuse(merge_common_subexpressions(lower(b.graph, ARM64)))
        after = without_clamps(before, ARM64)
        assert [clamps(before), clamps(after)] == [2, 0]
        assert sum(isinstance(node.op, tfl.Mul) for node in after.nodes) == muls
        assert len(file(after)) < len(file(before)) + 1024
        given = feed(before)
        expected, found = (run(file(graph), given, xnnpack=True) for graph in (before, after))
        for name, dx in expected.items():
            np.testing.assert_array_equal(found[name], dx)


@pytest.mark.parametrize(("machine", "left"), [("litert-2", 0), ("litert-2/x86-64", 0), ("gpu", 1)])
def test_only_float32_has_room_for_it(machine: str, left: int) -> None:
    graph = masked(MADE["a frozen 1x1 convolution"], [ops.Relu6Grad])
    assert clamps(to_builtins(graph, target(machine))) == left
