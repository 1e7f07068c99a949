"""Of each pattern that an engine refuses or computes wrongly, operators that are of it, and what they are given."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from converter.backend import builtins as tfl
from converter.ir import FLOAT32, INT4, UNSCALED, Builder, TensorType, Value

_random = np.random.default_rng(0)
#: Patterns that an engine has no other form of.
REFUSED = {"constant-int32-large", "absent"}
#: Those that are wrong in a browser, and on Hexagon.
BROWSER, HALF = (
    {"gather-constant-indices", "one-hot-2d-indices"},
    {
        "activation-of-product", "logistic", "mask-of-huge", "exp", "softmax", "gelu", "constant-below-half",
        "pad-last-axis", "transpose-conv-same", "truth-values", "absent", "lookup-of-integers",
    },
)  # fmt: skip
#: Of a float16 below 1.
LAST_BIT = 2.0**-11


def floats(*shape: int) -> np.ndarray:
    """Normal numbers."""
    return _random.standard_normal(shape, np.float32)


def ints(*shape: int, high: int = 9) -> np.ndarray:
    """Whole numbers from 0."""
    return _random.integers(0, high, shape).astype(np.int32)


ZEROS, AROUND = np.zeros(4, np.float32), ((0, 0), (1, 1), (1, 1), (0, 0))
FLAGS, ROW = floats(2, 3, 4) > 0, floats(4)
LARGE, PLACES = np.array([2**24 + 1], np.int32), np.array([8, 0, 8, 3, 1], np.int32)
LOWEST = np.array([-inf], np.float32)
HALVES = (0, 16), (16, 0)
FILTER, WIDE, BIAS, POINT = floats(4, 3, 3, 4), floats(6, 5), floats(6), floats(1, 1, 1, 8)
TABLE, DEEP = ints(6, 8, high=16) - 8, floats(3, 40000)


def rank_above_4(b: Builder, x: Value, row: Value) -> Value:
    """Elementwise with a broadcast, a slice, a transposition, a sum and a concatenation of five axes."""
    wide = b(tfl.Mul(), b(tfl.Reshape((2, 3, 2, 2, 8)), x), b(tfl.Reshape((2, 3, 1, 1, 8)), row))
    transposed = b(tfl.Transpose((4, 1, 3, 0, 2)), wide)
    part = b(tfl.Slice((1, 0, 0, 0, 1), (5, 3, 2, 2, 1)), transposed)
    padded = b(tfl.Pad(((0, 0), (1, 0), (0, 0), (0, 0), (0, 0))), part)
    joined = b(tfl.Concatenation(2), padded, b(tfl.ReverseV2((2,)), padded))
    return b(tfl.Sum((0, 2, 4)), joined)


def scattered(b: Builder, indices: Value, rows: Value, channels: Value) -> Value:
    """Rows that are added up, taken at places that are written as whole numbers."""
    places = b(tfl.ScatterNd((9,)), channels, np.array([1, 2, 3], np.int32))
    return b(tfl.Gather(), b(tfl.ScatterNd((9, 4)), indices, rows), places)


def contracted(b: Builder, x: Value) -> Value:
    """A product with a matrix of integers of four bits, and one with the same of eight bits, the other way round."""
    four, eight = (b(tfl.CastWeight(), b.constant(TABLE.astype(dtype))) for dtype in (INT4, np.int8))
    there = b(tfl.BatchMatmul(), x, four)
    return b(tfl.Concatenation(1), there, b(tfl.BatchMatmul(False, True), there, eight))


def looked_up(b: Builder, ids: Value) -> Value:
    """Rows of integers of four bits, less those of eight bits turned round."""
    four, eight = (b.quantized(table, UNSCALED) for table in (TABLE.astype(INT4), TABLE[::-1].astype(np.int8)))
    return b(tfl.Sub(), b(tfl.EmbeddingLookup(), ids, four), b(tfl.EmbeddingLookup(), ids, eight))


def gelu_and_its_share(b: Builder, x: Value) -> Value:
    """The normal distribution, as the gradient of GELU has it, less GELU."""
    y = b(tfl.Gelu(), x)
    share = b(tfl.Div(), b(tfl.Add(), y, np.float32([5e-21])), b(tfl.Add(), x, np.float32([1e-20])))
    return b(tfl.Sub(), share, y)


def halves(*shape: int) -> np.ndarray:
    """Numbers that float16 has, and their halves too."""
    return np.rint(4 * floats(*shape)) / 4


def truth_values(b: Builder, x: Value, y: Value) -> Value:
    """Truth values that are compared, chosen, sliced and turned around."""
    one, other = (b(tfl.Greater(), v, np.float32([0])) for v in (x, y))
    chosen = b(tfl.SelectV2(), b(tfl.Equal(), one, other), one, b(tfl.NotEqual(), one, other))
    part = b(tfl.ReverseV2((1,)), b(tfl.Slice((1, 0), (2, 4)), chosen))
    return b(tfl.Cast(FLOAT32), part)


def powers(b: Builder, x: Value, y: Value, t: Value) -> Value:
    """Powers of a known base and exponent, and a decay by the number of a step."""
    fifth, root, inverse = (b(tfl.Pow(), x, np.float32([n])) for n in (5, 0.5, -2))
    decay = b(tfl.Pow(), b.constant(np.float32([0.999])), t)
    grown = b(tfl.Mul(), b(tfl.Pow(), b.constant(np.float32([1.5])), y), decay)
    return b(tfl.Add(), b(tfl.Add(), fifth, root), b(tfl.Add(), inverse, grown))


def whole_numbers(b: Builder, x: Value, y: Value) -> Value:
    """What has no kernel of int32, added up."""
    quotient, rest = b(tfl.FloorDiv(), x, y), b(tfl.FloorMod(), x, y)
    signs = b(tfl.Add(), b(tfl.Sign(), x), b(tfl.Abs(), y))
    return b(tfl.Add(), b(tfl.Add(), b(tfl.Mul(), quotient, np.int32([100])), b(tfl.Neg(), rest)), signs)


def moved_integers(b: Builder, x: Value, i: Value) -> Value:
    """Large integers that are turned, looked up and chosen."""
    transposed = b(tfl.Transpose((1, 0)), x)
    looked = b(tfl.Gather(1), transposed, b(tfl.Minimum(), b(tfl.Maximum(), i, np.int32([0])), np.int32([1])))
    return b(tfl.SelectV2(), b(tfl.Less(), looked, np.int32([0])), looked, transposed)


def moved_truth(b: Builder, x: Value, i: Value) -> Value:
    """Truth values that are turned, padded, looked up and chosen."""
    transposed = b(tfl.Transpose((1, 0)), b(tfl.Pad(((0, 0), (1, 0))), b(tfl.Greater(), x, np.float32([0]))))
    looked = b(tfl.Gather(), transposed, b(tfl.Minimum(), b(tfl.Maximum(), i, np.int32([0])), np.int32([4])))
    first, second = b(tfl.Unpack(0), looked)
    return b(tfl.Cast(FLOAT32), b(tfl.SelectV2(), first, second, first))


#: By pattern: the operators, and what they are given.
CASES: dict[str, tuple[Callable[..., Value], tuple[np.ndarray, ...]]] = {
    "rank-above-4": (rank_above_4, (floats(2, 12, 8), floats(2, 3, 8))),
    "constant-rows": (lambda b, x: b(tfl.Add(), x, b.constant(FLAGS.astype(np.float32))), (floats(2, 3, 4),)),
    "constant-int32-first": (lambda b, x: b(tfl.Sub(), np.array([[5, 7, 9]], np.int32), x), (ints(1, 3),)),
    "constant-int32-rank": (lambda b, x: b(tfl.Add(), x, np.array([5, 7, 9], np.int32)), (ints(2, 3),)),
    "constant-int32-large": (lambda b, x: b(tfl.Less(), x, b.constant(LARGE)), (LARGE - np.int32([2, 1, 0]),)),
    "select-condition-rank": (
        lambda b, c, x, y: b(tfl.SelectV2(), c, x, y),
        (np.array([True, False, False, True]), floats(2, 3, 4), floats(2, 3, 4)),
    ),
    "select-value-shape": (lambda b, c, x: b(tfl.SelectV2(), c, x, b.constant(ROW)), (FLAGS, floats(2, 3, 4))),
    "constant-infinite": (
        lambda b, c, x: b(tfl.Softmax(), b(tfl.SelectV2(), c, x, b.constant(LOWEST))),
        (np.arange(16).reshape(2, 8) % 8 > 4, floats(2, 8)),
    ),
    "identical-operands": (
        lambda b, x: b(tfl.SelectV2(), b(tfl.NotEqual(), x, x), x, b(tfl.Maximum(), x, x)),
        (floats(2, 3, 4),),
    ),
    "sine": (
        lambda b, x: b(tfl.Add(), b(tfl.Sin(), x), b(tfl.Mul(), b(tfl.Cos(), x), np.float32([2]))),
        (9 * floats(8, 64),),
    ),
    "matmul-constant-transposed": (lambda b, x: b(tfl.BatchMatmul(False, True), x, b.constant(WIDE)), (floats(4, 5),)),
    "matmul-constant-first": (lambda b, x: b(tfl.BatchMatmul(), b.constant(WIDE), x), (floats(5, 3),)),
    "matmul-unequal-batch": (lambda b, x, w: b(tfl.BatchMatmul(True), x, w), (floats(2, 5, 4), floats(5, 6))),
    "matmul-wide": (
        lambda b, x, w: b(
            tfl.Concatenation(1),
            b(tfl.BatchMatmul(), x, w),
            b(tfl.FullyConnected(), x, b.constant(DEEP), np.ones(3, np.float32)),
        ),
        (floats(12, 40000) / 200, floats(40000, 4)),
    ),
    "fully-connected-runtime": (
        lambda b, x, w: b(tfl.FullyConnected("RELU"), x, w, b.constant(BIAS)),
        (floats(4, 5), floats(6, 5)),
    ),
    "cast-of-integers": (contracted, (np.sign(floats(4, 6)),)),
    "cast-of-floats": (
        lambda b, x: b(tfl.Mul(), x, b(tfl.Reshape((1, 6, 8)), b(tfl.CastWeight(), b.constant(np.float16(TABLE))))),
        (floats(1, 6, 8),),
    ),
    "lookup-of-one-scale": (looked_up, (ints(5, high=6),)),
    "cumsum-first-axis": (lambda b, x: b(tfl.CumSum(0), x), (floats(5, 3),)),
    "cumsum-reverse": (lambda b, x: b(tfl.CumSum(1, reverse=True), x), (floats(5, 3),)),
    "zeros": (lambda b, x: b(tfl.Add(), x, b(tfl.Zeros(TensorType((3, 4))))), (floats(3, 4),)),
    "argmax-last-axis": (lambda b, x: b(tfl.ArgMax(1), x), (-abs(floats(8, 3)),)),
    "pad-below-rank-4": (lambda b, x: b(tfl.Pad(((1, 0), (0, 2), (1, 1))), x), (floats(3, 4, 5),)),
    "space-to-depth": (
        lambda b, x: b(tfl.DepthToSpace(3), b(tfl.SpaceToDepth(3), b(tfl.Neg(), x))),
        (floats(2, 6, 9, 4),),
    ),
    "broadcast-to": (lambda b, x: b(tfl.BroadcastTo((2, 3, 4)), x), (floats(2, 1, 4),)),
    "gather-2d-indices": (lambda b, x, i: b(tfl.Gather(), x, i), (floats(9, 4), ints(2, 3))),
    "gather-constant-indices": (lambda b, x: b(tfl.Gather(1), x, b.constant(PLACES)), (floats(2, 9, 4),)),
    "one-hot-2d-indices": (lambda b, i: b(tfl.OneHot(9), i), (ints(2, 3),)),
    "scatter-nd": (scattered, (ints(6, 1), floats(6, 4), np.array([[7], [0], [3]], np.int32))),
    "reverse-last-axis": (lambda b, x: b(tfl.ReverseV2((3,)), x), (floats(2, 3, 4, 5),)),
    "softmax-vector": (lambda b, x: b(tfl.Softmax(), x), (floats(5),)),
    "runtime-bias": (
        lambda b, x, w, bias: b(tfl.Conv2D(activation="RELU6"), x, w, bias),
        (floats(2, 6, 6, 4), FILTER, ROW),
    ),
    "depthwise-multiplier": (
        lambda b, x: b(tfl.DepthwiseConv2D(), x, b.constant(POINT), b.constant(POINT.reshape(8))),
        (floats(2, 6, 6, 4),),
    ),
    "transpose-conv-padding": (
        lambda b, w, x: b(tfl.TransposeConv((2, 11, 12, 4), (2, 2), "SAME"), w, x),
        (FILTER, floats(2, 6, 6, 4)),
    ),
    "pad-average-pool": (
        lambda b, x: b(tfl.AveragePool2D((3, 3)), b(tfl.Pad(AROUND), b(tfl.Neg(), x))),
        (floats(2, 8, 8, 4),),
    ),
    "pad-merged": (
        lambda b, x: b(tfl.MaxPool2D((3, 3)), b(tfl.Pad(AROUND), b(tfl.Neg(), x))),
        (abs(floats(2, 8, 8, 4)) + 0.1,),
    ),
    "activation-of-product": (
        lambda b, x, w, bias: b(tfl.Tanh(), b(tfl.Add(), b(tfl.BatchMatmul(), x, w), bias)),
        (np.sign(floats(8, 5)), np.rint(4 * floats(5, 6)) / 8, np.rint(4 * floats(6)) / 8),  # exact in float16
    ),
    "logistic": (lambda b, x: b(tfl.Logistic(), x), (3 * floats(8, 64),)),
    "mask-of-huge": (
        lambda b, x: b(tfl.Mul("RELU_N1_TO_1"), x, np.float32([1e30])),
        (np.float32([[0, 1e-5, 1e-3, 1, -1e-5]]),),
    ),
    "exp": (lambda b, x: b(tfl.Exp(), x), (np.float32([[0, -1, -20, -90, -1000, -1e4, -60000]]),)),
    "softmax": (lambda b, x: b(tfl.Softmax(2.0), x), (20 * np.eye(4, dtype=np.float32),)),
    "gelu": (gelu_and_its_share, (np.float32(np.float16(np.clip(floats(8, 16) ** 3, -1, 1))),)),
    "constant-below-half": (
        lambda b, x: b(tfl.Maximum(), b(tfl.Log(), b(tfl.Add(), x, np.float32([1e-8]))), np.float32([-10])),
        (np.float32([[0, 0.5, 1, 2]]),),
    ),
    "pad-last-axis": (
        lambda b, x, y: b(
            tfl.Add(), *(b(tfl.Pad(((0, 0), (0, 0), p)), b(tfl.Neg(), v)) for v, p in ((x, HALVES[0]), (y, HALVES[1])))
        ),
        (halves(2, 5, 16), halves(2, 5, 16)),
    ),
    "transpose-conv-same": (
        lambda b, w, x: b(tfl.TransposeConv((2, 10, 10, 4), (2, 2), "SAME"), w, x),
        (np.sign(floats(4, 2, 2, 4)), np.sign(floats(2, 5, 5, 4))),
    ),
    "truth-values": (truth_values, (floats(3, 4), floats(3, 4))),
    "lookup-of-integers": (looked_up, (ints(5, high=6),)),
    "absent": (lambda b, x, y: b(tfl.Atan2(), x, y), (floats(3, 4), floats(3, 4))),
}


def products_that_copy(b: Builder, x: Value, y: Value, w: Value, row: Value) -> Value:
    """Of stacked matrices, of all rows by one, and of a column by a row."""
    made = [
        b(tfl.BatchMatmul(True, False), x, y),
        b(tfl.BatchMatmul(), x, w),
        b(tfl.BatchMatmul(True, False), row, row),
    ]
    return b(tfl.Concatenation(0), *(b(tfl.Reshape((v.type.size,)), v) for v in made))


#: Those of microcontrollers.
MICRO: dict[str, tuple[Callable[..., Value], tuple[np.ndarray, ...]]] = {
    "absent-power": (powers, (np.abs(floats(3, 4)) + np.float32(0.5), floats(3, 4), np.float32([7]))),
    "absent-sign": (
        lambda b, x: b(tfl.Sign(), x),
        (np.float32([[0, 2e-38, -2e-38, 1e-33, -1e-30, 1e-5, -0.5, 3, -1e30, inf]]),),
    ),
    "absent-one-hot": (lambda b, i: b(tfl.OneHot(4), i), (np.array([[0, 3, -1], [4, 2, 2**31 - 1]], np.int32),)),
    "absent-clamp": (lambda b, x: b(tfl.ReluN1To1(), x), (floats(3, 4) * 3,)),
    "absent-tile": (lambda b, x: b(tfl.Tile((2, 1, 12)), x), (floats(2, 3, 1),)),
    "joined-of-many": (lambda b, *v: b(tfl.Concatenation(1), *v), tuple(floats(2, k % 3 + 1) for k in range(23))),
    "gather-unchecked": (lambda b, x, i: b(tfl.Gather(1), x, i), (floats(3, 9, 4), ints(2, 3))),
    "arithmetic-of-integers": (
        whole_numbers,
        (np.array([[7, -7, 6, -6, 0, 1]], np.int32), np.array([[3, 3, -4, -3, 5, -9]], np.int32)),
    ),
    "moved-integers": (moved_integers, (LARGE.reshape(1, -1) * np.int32([[1], [-1]]), np.array([1, 0], np.int32))),
    "moved-truth-values": (moved_truth, (floats(3, 4), np.array([2, 0], np.int32))),
    "product-that-copies": (products_that_copy, (floats(2, 3, 4), floats(2, 3, 5), floats(4, 6), floats(1, 4))),
}
CASES |= MICRO

#: The same of Hexagon, for what other engines have to avoid as well.
ON_HEXAGON: dict[str, tuple[Callable[..., Value], tuple[np.ndarray, ...]]] = {
    "sine": (lambda b, x: b(tfl.Cos(), x), (np.float32(np.float16(100 * floats(8, 16))),)),
    "broadcast-to": (
        lambda b, x: b(tfl.Mul(), b(tfl.BroadcastTo((2, 3, 4)), x), np.float32([0.5])),
        (halves(2, 1, 4),),
    ),
    "cumsum-reverse": (lambda b, x: b(tfl.CumSum(1, reverse=True), x), (np.sign(floats(5, 3)),)),
    "one-hot-2d-indices": (lambda b, i: b(tfl.OneHot(9), i), (ints(2, 3, 4),)),
    "cast-of-integers": CASES["cast-of-integers"],
}
