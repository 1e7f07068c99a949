"""At least one case for every builtin: the op, its operands, and which of them are constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.builtins import Builtin
from converter.ir import Builder, TensorType

SHAPES = [(3,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 1, 3, 4, 5), (2, 1, 3, 2, 2, 5)]
FLOAT_FUNCTIONS = [
    tfl.Exp, tfl.Sin, tfl.Cos, tfl.Floor, tfl.Ceil, tfl.Round, tfl.Square, tfl.ReluN1To1, tfl.Relu, tfl.Relu6,
    tfl.Tanh, tfl.Logistic, tfl.HardSwish, tfl.Elu, tfl.Gelu, tfl.LeakyRelu, tfl.Softmax, tfl.LogSoftmax,
]  # fmt: skip
BINARY = [
    tfl.Add, tfl.Sub, tfl.Mul, tfl.Div, tfl.Maximum, tfl.Minimum, tfl.SquaredDifference, tfl.FloorMod, tfl.FloorDiv,
    tfl.Equal, tfl.NotEqual, tfl.Less, tfl.LessEqual, tfl.Greater, tfl.GreaterEqual,
]  # fmt: skip
REDUCTIONS = [tfl.Sum, tfl.Mean, tfl.ReduceMax, tfl.ReduceMin, tfl.ReduceProd]
ACTIVATIONS = ["RELU", "RELU_N1_TO_1", "RELU6"]
#: What a session's state tests cover.
STATE = {tfl.VarHandle, tfl.ReadVariable, tfl.AssignVariable, tfl.CallOnce}
#: What tests/backend/quantize covers.
QUANTIZED = {tfl.Quantize, tfl.Dequantize, tfl.DequantizeFloat16, tfl.Wrapped, tfl.EmbeddingLookup}
#: What tests/tflite_frontend/test_quantised.py covers: operators of another file.
CARRIED = {tfl.Carried}

_random = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    """One call of one builtin."""

    op: Builtin
    arrays: tuple[np.ndarray, ...]
    constants: tuple[int, ...] = ()

    def __str__(self) -> str:
        shapes = " ".join(f"{a.dtype.kind}{list(a.shape)}" for a in self.arrays)
        return f"{self.op} {shapes} {self.constants or ''}"


def floats(*shape: int) -> np.ndarray:
    """Normal numbers."""
    return _random.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    """Numbers above 0.1."""
    return np.abs(floats(*shape)) + np.float32(0.1)


def ints(*shape: int, low: int = -5, high: int = 6) -> np.ndarray:
    """Whole numbers from low up to, not including, high."""
    return _random.integers(low, high, size=shape).astype(np.int32)


def bools(*shape: int) -> np.ndarray:
    """Coin tosses."""
    return _random.integers(0, 2, size=shape).astype(bool)


def all_cases() -> Iterator[Case]:
    """Every case."""
    for op, *arrays in (*elementwise(), *reductions(), *movement()):
        yield Case(op, tuple(arrays))
    yield from matrices()
    yield from convolutions()
    for op, *arrays in (*places_and_bits(), *loops()):
        yield Case(op, tuple(arrays))


def elementwise() -> Iterator[tuple[Any, ...]]:
    """Arithmetic, functions, comparisons, selection, on all ranks and with broadcasting."""
    for s in SHAPES:
        ones = (1,) * (len(s) - 1)
        for kind in FLOAT_FUNCTIONS:
            yield kind(), floats(*s) * 4
        yield tfl.Gelu(approximate=True), floats(*s)
        yield tfl.LeakyRelu(0.01), floats(*s)
        yield tfl.Softmax(beta=0.5), floats(*s)
        for kind in (tfl.Log, tfl.Sqrt, tfl.Rsqrt):
            yield kind(), positive(*s)
        for kind in (tfl.Neg, tfl.Abs, tfl.Sign):
            yield kind(), floats(*s)
            yield kind(), ints(*s)
        yield tfl.Pow(), positive(*s), floats(*s)
        yield tfl.Pow(), positive(*s), floats(1)
        for kind in BINARY:
            for other in (s, (1,), s[-1:], (*s[:-1], 1), (*ones, s[-1])):
                yield kind(), floats(*s), floats(*other)
                yield kind(), floats(*other), floats(*s)
            yield kind(), ints(*s), ints(*s, low=1)
            yield kind(), ints(*s), ints(1, low=1)
        for kind, activation in product((tfl.Add, tfl.Sub, tfl.Mul, tfl.Div), ACTIVATIONS):
            yield kind(activation), floats(*s) * 4, floats(*s)
            yield kind(activation), floats(*s) * 4, floats(1)
        yield tfl.AddN(), floats(*s), floats(*s), floats(*s)
        yield tfl.AddN(), ints(*s), ints(*s)
        yield tfl.LogicalNot(), bools(*s)
        for kind in (tfl.LogicalAnd, tfl.LogicalOr, tfl.Equal, tfl.NotEqual):
            yield kind(), bools(*s), bools(*s)
            yield kind(), bools(*s), bools(1)
        for make in (floats, ints):
            for condition, x, y in ((s, s, s), (s, s, (1,)), (s, (1,), (1,)), (s[-1:], s, s), ((*s[:-1], 1), s, (1,))):
                yield tfl.SelectV2(), bools(*condition), make(*x), make(*y)
        for make, dtype in product((floats, ints, bools), (np.float32, np.int32, np.bool_)):
            yield tfl.Cast(dtype), make(*s)


def reductions() -> Iterator[tuple[Any, ...]]:
    """Reductions over one, some and all axes."""
    for s in SHAPES:
        rank = len(s)
        for axes in {(0,), (rank - 1,), (-1,), tuple(range(rank - 1)), tuple(range(rank)), tuple(range(0, rank, 2))}:
            for kind, keep in product(REDUCTIONS, (False, True)):
                if axes and (keep or len(axes) < rank):
                    yield kind(axes, keep), floats(*s)
                    if kind is not tfl.Mean:
                        yield kind(axes, keep), ints(*s)
        for axis in range(rank):
            yield tfl.CumSum(axis), floats(*s)
            yield tfl.CumSum(axis, reverse=True), ints(*s)
            if rank > 1:
                yield tfl.ArgMax(axis), floats(*s)
                yield tfl.ArgMax(axis), ints(*s)


def movement() -> Iterator[tuple[Any, ...]]:
    """Everything that moves data."""
    for s, make in product(SHAPES, (floats, ints, bools)):
        rank = len(s)
        begin = tuple(min(1, d - 1) for d in s)
        yield tfl.Reshape((int(np.prod(s)),)), make(*s)
        yield tfl.Reshape(s), make(*s)
        yield tfl.Sizes(), make(*s)
        yield tfl.Transpose(tuple(range(rank))[::-1]), make(*s)
        yield tfl.BroadcastTo((2, *s)), make(*s) if rank < 6 else make(*s[1:])
        yield tfl.BroadcastTo(s), make(1)
        yield tfl.BroadcastTo(s), make(*s[:-1], 1)
        yield tfl.Slice(begin, tuple(d - b for d, b in zip(s, begin, strict=True))), make(*s)
        yield tfl.StridedSlice(begin, s, (2,) * rank), make(*s)
        yield tfl.StridedSlice((0,) * rank, tuple(d + 3 for d in s), (1,) * (rank - 1) + (2,)), make(*s)
        yield tfl.Tile((2,) * rank), make(*s)
        for axis in range(rank):
            yield tfl.Concatenation(axis), make(*s), make(*s)
            yield tfl.Concatenation(axis), *(make(*s) for _ in range(6))
            yield tfl.ReverseV2((axis,)), make(*s)
            if make is not bools and rank < 6:
                yield tfl.Pack(axis), make(*s), make(*s)
            if rank > 1:
                yield tfl.Unpack(axis), make(*s)
            for shape in ((4,), (2, 2)):
                if rank + len(shape) <= 7:
                    yield tfl.Gather(axis), make(*s), ints(*shape, low=0, high=s[axis])
        yield tfl.ReverseV2(tuple(range(rank))), make(*s)
        if rank < 6:
            yield tfl.Pad(tuple((i % 2, 2) for i in range(rank))), make(*s)
        if make is not bools:
            yield tfl.ScatterNd((6, *s[1:])), ints(5, 1, low=0), make(5, *s[1:])
    for s in SHAPES:
        rank = len(s)
        yield tfl.Dilate((2,) * rank), floats(*s)
        yield tfl.OneHot(4), ints(*s, low=-1)
        if rank < 6:
            yield tfl.PadV2(tuple((i % 2, 2) for i in range(rank)), 3.5), floats(*s)
            yield tfl.PadV2(((1, 0),) * rank, -np.inf), floats(*s)
    for block, make in product((2, 3), (floats, ints)):
        yield tfl.SpaceToDepth(block), make(2, 6, 12, 5)
        yield tfl.DepthToSpace(block), make(2, 3, 4, 36)


def matrices() -> Iterator[Case]:
    """Matrix products with run-time and constant operands; leading axes broadcast."""
    pairs = [
        ((4, 5), (5, 6)), ((2, 4, 5), (5, 6)), ((2, 3, 4, 5), (5, 6)), ((2, 3, 4, 5), (2, 3, 5, 6)),
        ((2, 1, 4, 5), (3, 5, 6)), ((4, 5), (2, 5, 6)), ((2, 2, 2, 4, 5), (5, 6)), ((1, 1), (1, 1)),
    ]  # fmt: skip
    for adj_x, adj_y, (x, w), constants in product((False, True), (False, True), pairs, ((), (0,), (1,))):
        left = np.swapaxes(floats(*x), -1, -2) if adj_x else floats(*x)
        right = np.swapaxes(floats(*w), -1, -2) if adj_y else floats(*w)
        yield Case(tfl.BatchMatmul(adj_x, adj_y), (left.copy(), right.copy()), constants)
    for keep, activation, s in product((False, True), ("NONE", *ACTIVATIONS), SHAPES):
        x, w, bias = floats(*s), floats(7, s[-1]), floats(7)
        for constants in ((), (1,), (1, 2), (2,)):
            yield Case(tfl.FullyConnected(activation, keep), (x, w, bias), constants)
        yield Case(tfl.FullyConnected(activation, keep), (x, w))
        yield Case(tfl.FullyConnected(activation, keep), (x, w), (1,))


def convolutions() -> Iterator[Case]:
    """Convolutions and pools: paddings, strides, dilations, odd and even sizes, frozen and trained weights."""
    windows = [((1, 1), (1, 1), (1, 1)), ((3, 3), (1, 1), (1, 1)), ((3, 3), (2, 2), (1, 1)), ((2, 3), (1, 2), (1, 1)),
               ((5, 4), (3, 2), (1, 1)), ((3, 3), (1, 1), (2, 2)), ((2, 3), (1, 1), (1, 2))]  # fmt: skip
    for padding, (kernel, strides, dilation), size in product(("SAME", "VALID"), windows, ((9, 10), (12, 11))):
        x = floats(2, *size, 3)
        for activation, constants in (("NONE", (1, 2)), ("RELU6", (1, 2)), ("NONE", ()), ("RELU", (2,))):
            attributes = (strides, padding, dilation, activation)
            yield Case(tfl.Conv2D(*attributes), (x, floats(4, *kernel, 3), floats(4)), constants)
            for m in (1, 2):
                arrays = (x, floats(1, *kernel, 3 * m), floats(3 * m))
                yield Case(tfl.DepthwiseConv2D(*attributes), arrays, constants)
            yield Case(tfl.MaxPool2D(kernel, strides, padding, activation), (x,))
            yield Case(tfl.AveragePool2D(kernel, strides, padding, activation), (x,))
        if dilation == (1, 1):
            steps = zip(size, kernel, strides, strict=True)
            narrow = [-(-n // s) if padding == "SAME" else (n - k) // s + 1 for n, k, s in steps]
            arrays = (floats(4, *kernel, 3), floats(2, *narrow, 3), floats(4))
            for constants in ((), (0,)):
                yield Case(tfl.TransposeConv((2, *size, 4), strides, padding), arrays, (*constants, 2))
                yield Case(tfl.TransposeConv((2, *size, 4), strides, padding), arrays[:2], constants)
            made = np.array([2, *size, 4], np.int32)
            yield Case(tfl.TransposeConvOfShape((2, *size, 4), strides, padding), (*arrays, made), (0, 2))


def loops() -> Iterator[tuple[Any, ...]]:
    """A product until it is large enough, with an operand that changes, one that does not, and what they begin with."""
    for s in SHAPES[:5]:
        for dtype in (np.float32, np.int32):
            yield (tfl.Zeros(TensorType(s, dtype)),)
    for operands in ((floats(2, 3), positive(2, 3) + 1), (floats(2, 3) * 100, positive(2, 3))):
        condition, body = Builder(), Builder()
        for graph in (condition, body):
            x, w = (graph.input(name, TensorType(a.shape)) for name, a in zip("xw", operands, strict=True))
            if graph is condition:
                total = graph(tfl.Sum((0, 1), keepdims=True), graph(tfl.Square(), x))
                graph.graph.outputs["goes_on"] = graph(tfl.Less(), graph(tfl.Reshape((1,)), total), np.float32([999]))
            else:
                graph.graph.outputs = {"x": graph(tfl.Add(), graph(tfl.Mul(), x, w), np.float32([1])), "w": w}
        yield tfl.While(condition.graph, body.graph), *operands


def places_and_bits() -> Iterator[tuple[Any, ...]]:
    """Angles, bits, sorting, and what is written to places known at run time."""
    for s in SHAPES:
        yield tfl.Atan2(), floats(*s), floats(*s)
        yield tfl.BitwiseXor(), ints(*s), ints(*s)
        yield tfl.Bitcast(np.int32), floats(*s)
        yield tfl.Bitcast(np.float32), floats(*s).view(np.int32)
        yield tfl.RightShift(), ints(*s, low=-999, high=999), ints(*s, low=0, high=32)
        corner = tuple(min(1, d - 1) for d in s)
        box = tuple(d - c for d, c in zip(s, corner, strict=True))
        for make in (floats, ints, bools):
            yield tfl.DynamicUpdateSlice(), make(*s), make(*box), np.array(corner, np.int32)
        for make in (floats, ints):
            yield tfl.TopKV2(1 + s[-1] // 2), make(*s)
            for segment in (tfl.UnsortedSegmentMax, tfl.UnsortedSegmentMin, tfl.UnsortedSegmentProd):
                yield segment(4), make(5, *s[1:]), ints(5, low=0, high=4)
