"""Random valid applications of every semantic op: attributes, operands, and what is known of them.

Those in the tables of `tests/cases.py` that have no attributes need nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from converter.ir import BOOL, FLOAT32, INT32, Builder, Graph, Op, TensorType, ops
from converter.ir.quantization import Quantization
from tests.cases import BINARY, POSITIVE, UNARY

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Application:
    """An op and its operands.

    Attributes:
        op: the op.
        operands: arrays.
        constants: numbers of the operands that are known when the program is built, and what integers stand for.
        smooth: whether the derivative exists around the operands, so that differences approach it.
        tolerance: how far the kernels may be off, relative to the largest number: int8 kernels round activations.
    """

    op: Op
    operands: list[np.ndarray]
    constants: dict[int, Quantization | None] | None = None
    smooth: bool = True
    tolerance: float = 2e-5


Draw = Callable[["Numbers"], Application]
APPLICATIONS: dict[type[Op], Draw] = {}


def applies(*kinds: type[Op]) -> Callable[[Callable[[Numbers, type[Op]], Application]], None]:
    """Registers what draws applications of ops."""

    def register(draw: Callable[[Numbers, type[Op]], Application]) -> None:
        for kind in kinds:
            APPLICATIONS[kind] = lambda numbers, kind=kind: draw(numbers, kind)

    return register


class Numbers:
    """Random shapes and arrays. Floats have no ties, and none is near a kink."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def whole(self, low: int, high: int) -> int:
        """From low to high."""
        return int(self.rng.integers(low, high + 1))

    def flag(self) -> bool:
        return bool(self.rng.integers(2))

    def shape(self, least: int = 0, most: int = 5) -> Shape:
        """Of `least` to `most` axes, many of size 1."""
        return tuple(int(d) for d in self.rng.choice([1, 2, 3, 4], self.whole(least, most), p=[0.3, 0.3, 0.25, 0.15]))

    def pair(self) -> tuple[Shape, Shape]:
        """Two shapes that broadcast."""
        whole = self.shape()
        narrow = tuple(1 if self.flag() else d for d in whole)[self.whole(0, len(whole)) :]
        return (whole, narrow) if self.flag() else (narrow, whole)

    def axes(self, rank: int) -> Shape:
        """At least one."""
        return tuple(int(a) for a in self.rng.permutation(rank)[: self.whole(1, rank)])

    def floats(self, *shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
        size = int(np.prod(shape))
        # No eighth of a step is met: kinks of functions (zero, halves, whole numbers) are at such of -2 to 2.
        steps = (self.rng.permutation(size) + self.rng.uniform(0.15, 0.22)) / max(size, 1)
        return (low + (high - low) * steps).astype(np.float32).reshape(shape)

    def whole_numbers(self, *shape: int, low: int = -9, high: int = 9) -> np.ndarray:
        return np.asarray(self.rng.integers(low, high + 1, shape), np.int32)

    def bools(self, *shape: int) -> np.ndarray:
        return np.asarray(self.rng.integers(0, 2, shape), bool)

    def of(self, dtype: np.dtype, *shape: int) -> np.ndarray:
        return {FLOAT32: self.floats, INT32: self.whole_numbers, BOOL: self.bools}[dtype](*shape)

    def any(self, *shape: int) -> np.ndarray:
        """Of any type."""
        return self.of((FLOAT32, INT32, BOOL)[self.whole(0, 2)], *shape)

    def number(self, *shape: int) -> np.ndarray:
        return self.of((FLOAT32, INT32)[self.whole(0, 1)], *shape)


def graph_of(application: Application) -> Graph:
    """The application as a graph with the outputs `y0`, `y1`, ..."""
    b, known = Builder(), application.constants or {}
    values = []
    for k, array in enumerate(application.operands):
        if known.get(k) is not None:
            values.append(b.quantized(array, known[k]))
        else:
            is_known = k in known
            values.append(b.constant(array) if is_known else b.input(f"x{k}", TensorType(array.shape, array.dtype)))
    outputs = b.node(application.op, *values).outputs
    b.graph.outputs = {f"y{k}": value for k, value in enumerate(outputs)}
    return b.graph


@applies(*map(type, UNARY))
def _unary(n: Numbers, kind: type[Op]) -> Application:
    return Application(kind(), [n.floats(*n.shape())])


@applies(*map(type, POSITIVE))
def _of_positive(n: Numbers, kind: type[Op]) -> Application:
    return Application(kind(), [n.floats(*n.shape(), low=0.3)])


@applies(ops.Gelu)
def _gelu(n: Numbers, kind: type[Op]) -> Application:
    return Application(ops.Gelu(n.flag()), [n.floats(*n.shape())])


@applies(ops.LeakyRelu)
def _leaky(n: Numbers, kind: type[Op]) -> Application:
    return Application(ops.LeakyRelu(float(n.rng.uniform(0.01, 0.9))), [n.floats(*n.shape())])


@applies(ops.ReluGrad, ops.Relu6Grad)
def _relu_grad(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1)
    y = np.clip(n.floats(*shape, low=-4, high=9), 0, 6 if kind is ops.Relu6Grad else None)
    return Application(kind(), [y, n.floats(*shape)], smooth=False)


@applies(*map(type, BINARY))
def _of_positive_pairs(n: Numbers, kind: type[Op]) -> Application:
    left, right = n.pair()
    return Application(kind(), [n.floats(*left, low=0.3), n.floats(*right, low=0.5)])


@applies(ops.Add, ops.Sub, ops.Mul, ops.Maximum, ops.Minimum, ops.SquaredDifference)
def _binary(n: Numbers, kind: type[Op]) -> Application:
    left, right = n.pair()
    x = n.number(*left)
    return (
        Application(kind(), [x, n.of(x.dtype, *right)], smooth=False)
        if x.dtype == INT32
        else Application(kind(), [x, n.floats(*right) + np.float32(0.017)])
    )


@applies(ops.BinaryCrossEntropy)
def _binary_cross_entropy(n: Numbers, kind: type[Op]) -> Application:
    left, right = n.pair()
    return Application(kind(), [n.floats(*left), n.floats(*right, low=0.0, high=1.0)])


@applies(ops.Atan2)
def _angle(n: Numbers, kind: type[Op]) -> Application:
    left, right = n.pair()
    return Application(kind(), [n.floats(*left, low=0.2), n.floats(*right)])


@applies(ops.FloorMod)
def _remainder(n: Numbers, kind: type[Op]) -> Application:
    left, right = n.pair()
    x = n.number(*left)
    divisor = n.whole_numbers(*right, low=1) if x.dtype == INT32 else n.floats(*right, low=0.4)
    return Application(kind(), [x, divisor], smooth=False)


@applies(ops.Less, ops.LessEqual, ops.Greater, ops.GreaterEqual, ops.Equal, ops.NotEqual)
def _comparison(n: Numbers, kind: type[Op]) -> Application:
    left, right = n.pair()
    x = n.any(*left) if kind in (ops.Equal, ops.NotEqual) else n.number(*left)
    return Application(kind(), [x, n.of(x.dtype, *right)])


@applies(ops.LogicalAnd, ops.LogicalOr)
def _logical(n: Numbers, kind: type[Op]) -> Application:
    left, right = n.pair()
    return Application(kind(), [n.bools(*left), n.bools(*right)])


@applies(ops.LogicalNot)
def _not(n: Numbers, kind: type[Op]) -> Application:
    return Application(ops.LogicalNot(), [n.bools(*n.shape())])


@applies(ops.BitwiseXor, ops.ShiftRight)
def _bits(n: Numbers, kind: type[Op]) -> Application:
    left, right = n.pair()
    low, high = (0, 31) if kind is ops.ShiftRight else (-(2**31), 2**31 - 1)
    x = n.whole_numbers(*left, low=-(2**31), high=2**31 - 1)
    return Application(kind(), [x, n.whole_numbers(*right, low=low, high=high)])


@applies(ops.Bitcast)
def _bitcast(n: Numbers, kind: type[Op]) -> Application:
    if n.flag():
        return Application(ops.Bitcast(INT32), [n.floats(*n.shape())], smooth=False)
    return Application(ops.Bitcast(FLOAT32), [n.floats(*n.shape()).view(np.int32)])


@applies(ops.Select)
def _select(n: Numbers, kind: type[Op]) -> Application:
    left, right = n.pair()
    x = n.any(*left)
    condition = (left, right)[n.whole(0, 1)]
    return Application(ops.Select(), [n.bools(*condition), x, n.of(x.dtype, *right)])


@applies(ops.Cast)
def _cast(n: Numbers, kind: type[Op]) -> Application:
    return Application(ops.Cast((FLOAT32, INT32)[n.whole(0, 1)]), [n.any(*n.shape())], smooth=False)


@applies(ops.Dropout)
def _dropout(n: Numbers, kind: type[Op]) -> Application:
    return Application(ops.Dropout(0.5), [n.floats(*n.shape())])


@applies(ops.Activity)
def _activity(n: Numbers, kind: type[Op]) -> Application:
    return Application(ops.Activity(0.1, 0.2), [n.floats(*n.shape())])


@applies(ops.Probe)
def _probe(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1)
    return Application(ops.Probe("w", n.whole(0, len(shape) - 1)), [n.floats(*shape)])


@applies(ops.DerivedWhere)
def _derived_where(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1)
    return Application(kind(), [n.floats(*shape), n.bools(*shape)], smooth=False)


@applies(ops.Masked)
def _masked(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1)
    return Application(ops.Masked(), [n.floats(*shape), n.bools(*shape[:-1])])


@applies(ops.Softmax, ops.LogSoftmax, ops.LogSumExp)
def _rows(n: Numbers, kind: type[Op]) -> Application:
    return Application(kind(), [n.floats(*n.shape(1))])


@applies(ops.LayerNorm, ops.RMSNorm, ops.InverseDeviation)
def _norms(n: Numbers, kind: type[Op]) -> Application:
    smooth = kind is not ops.InverseDeviation
    return Application(kind(1e-2), [n.floats(*n.shape(1, 3), n.whole(2, 5))], smooth=smooth)


@applies(ops.SoftmaxCrossEntropy)
def _cross_entropy(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(2, 4)
    return Application(kind(), [n.floats(*shape), n.floats(*shape, low=0.1, high=1)])


@applies(ops.LabelCrossEntropy)
def _label_cross_entropy(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(2, 4)
    op = ops.LabelCrossEntropy(bool(n.whole(0, 1)))
    return Application(op, [n.floats(*shape), n.whole_numbers(*shape[:-1], low=-1, high=shape[-1])])


@applies(ops.Sum, ops.Mean, ops.Max, ops.Min)
def _reduction(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1, 7)
    return Application(kind(n.axes(len(shape)), n.flag()), [n.floats(*shape)])


@applies(ops.ArgMax, ops.CumSum)
def _along(n: Numbers, kind: type[Op]) -> Application:
    shape = n.shape(1)
    axis = n.whole(0, len(shape) - 1)
    return Application(ops.ArgMax(axis) if kind is ops.ArgMax else ops.CumSum(axis, n.flag()), [n.number(*shape)])
