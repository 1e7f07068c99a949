"""Matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.op import Cost, Cotangent, Op, ShapeError
from converter.ir.ops.elementwise import Add, Mul
from converter.ir.quantization import INT8, UNSCALED, Quantization
from converter.ir.row_dependence import NO_ROW, Rows, RowsMixed, together
from converter.ir.types import FLOAT32, INT4, TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


def _swap(shape: tuple[int, ...], adjoint: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if adjoint else shape


class Layer(Op):
    """The product of an input and a layer's weight, of which some channels can train and the others be constant."""

    def split(self, b: GraphBuilder, x: Value, w: Value, trained: Value, frozen: Value) -> Value:
        """Return the same product of a weight in two parts, cut along `channel_axis`."""
        raise NotImplementedError(self.name)

    def channel_axis(self, w: TensorType) -> int:
        """Return the axis of the weight along which a fraction of it can train: its input channels."""
        raise NotImplementedError(self.name)

    def input_channels(self, x: TensorType, w: TensorType) -> int:
        """Number of equal parts into which that axis can be cut."""
        raise NotImplementedError(self.name)

    def output_axis(self, w: TensorType) -> int:
        """Return the axis of the weight that runs over the output channels."""
        raise NotImplementedError(self.name)


@dataclass(frozen=True)
class MatMul(Layer):
    """Batched matrix product [..., M, K] x [..., K, N] -> [..., M, N]; `adj_x`, `adj_y` transpose the last two axes.

    Leading axes broadcast; a weight matrix [K, N] may stand against any number of them.
    """

    contracts = in_parts = True
    linear_in = ((0,), (1,))

    adj_x: bool = False
    adj_y: bool = False

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if x.rank < 2 or w.rank < 2 or x.dtype != w.dtype:
            raise ShapeError(f"MatMul: operands {x} and {w}")
        (*left, m, k), (*right, k2, n) = _swap(x.shape, self.adj_x), _swap(w.shape, self.adj_y)
        try:
            batch = np.broadcast_shapes(tuple(left), tuple(right))
        except ValueError:
            batch = None
        if k != k2 or batch is None:
            raise ShapeError(f"{self}: {list(x.shape)} and {list(w.shape)} do not fit")
        return x.with_shape((*batch, m, n))

    def evaluate(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.matmul(x.swapaxes(-1, -2) if self.adj_x else x, w.swapaxes(-1, -2) if self.adj_y else w)

    def vjp(self, b: GraphBuilder, x: Value, w: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def to_x() -> Value:
            if self.adj_x:
                return b.sum_to_shape(b(MatMul(self.adj_y, True), w, dy), x.shape)
            return b.sum_to_shape(b(MatMul(False, not self.adj_y), dy, w), x.shape)

        def to_w() -> Value:
            left, right = x, dy
            if len(w.shape) == 2 and len(x.shape) > 2 and not self.adj_x:
                # A weight shared by all leading axes: one long product instead of a sum of many.
                left = b.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
                right = b.reshape(dy, (prod(dy.shape[:-1]), dy.shape[-1]))
            if self.adj_y:
                return b.sum_to_shape(b(MatMul(True, self.adj_x), right, left), w.shape)
            return b.sum_to_shape(b(MatMul(not self.adj_x, False), left, right), w.shape)

        return to_x, to_w

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        k = inputs[0].shape[-2 if self.adj_x else -1]
        return Cost(2 * k * outputs[0].size, sum(t.nbytes for t in (*inputs, *outputs)))

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        x, w = (
            rows.moved(lambda a, swap=swap: a.swapaxes(-1, -2) if swap else a)  # type: ignore[misc]
            for rows, swap in zip(operands, (self.adj_x, self.adj_y), strict=True)
        )
        return together(x.along((-1,)), w.along((-2,)))

    def split(self, b: GraphBuilder, x: Value, w: Value, trained: Value, frozen: Value) -> Value:
        """Return the product with the weight cut along its contracted axis: narrow trained part plus frozen part."""
        k = trained.shape[-1 if self.adj_y else -2]
        axis = len(x.shape) - (2 if self.adj_x else 1)
        first, rest = split_axis(b, x, axis, k)
        return b(Add(), b(self, first, trained), b(self, rest, frozen))

    def channel_axis(self, w: TensorType) -> int:
        return w.rank - (1 if self.adj_y else 2)

    def input_channels(self, x: TensorType, w: TensorType) -> int:
        return w.shape[self.channel_axis(w)]

    def output_axis(self, w: TensorType) -> int:
        return w.rank - (2 if self.adj_y else 1)


@dataclass(frozen=True)
class Int8MatMul(Op):
    """Rows x [..., I] times a constant int8 matrix w that stands for real numbers: x w', or x w without `adj_y`.

    The runtime's kernels multiply by integers; they know scales of the result's columns only, not along the sum. They
    round the rows by the largest number of each, so `linear_in` says nothing.
    """

    contracts = True

    of: Quantization
    adj_y: bool = True

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if w.quantization != self.of or w.rank != 2 or x.rank < 2:
            raise ShapeError(f"Int8MatMul: operands {x} and {w}")
        return MatMul(adj_y=self.adj_y).infer(x, TensorType(w.shape, x.dtype))

    def evaluate(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return MatMul(adj_y=self.adj_y).evaluate(x, self.of.real(w).astype(x.dtype))

    def vjp(self, b: GraphBuilder, x: Value, w: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def to_x() -> Value:
            """The scales lie along the sum here: they go onto the cotangent, and the same integers have scale 1."""
            if not self.adj_y:
                raise NotImplementedError
            scaled = b(Mul(), dy, b.constant(self.of.scales, dtype=dy.dtype))
            unscaled = b.quantized(b.graph.constants[w], UNSCALED, w.name)
            return b(Int8MatMul(UNSCALED, adj_y=False), scaled, unscaled)

        return to_x, None

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return MatMul(adj_y=self.adj_y).cost(inputs, outputs)


@dataclass(frozen=True)
class CastMatMul(Op):
    """Rows x [..., K] times a constant matrix w as it is stored, int4, int8 or float32: x w, or x w' with `adj_y`.

    Integers become float32 where they are used and are not kept so: one matrix at a time is unpacked. What they stand
    for is a scale for each of one axis, which the rows or the result are multiplied by; or a third operand, scales
    [A, blocks] of w [A, B], each of which is that of B / blocks numbers of a row. Of float32 neither is a copy kept as
    the kernels want it.
    """

    contracts = in_parts = True
    linear_in = ((0,), (2,))

    adj_y: bool = False

    def infer(self, x: TensorType, w: TensorType, *scales: TensorType) -> TensorType:
        if w.dtype not in (INT4, INT8, FLOAT32) or w.quantization is not None or w.rank != 2 or x.rank < 2:
            raise ShapeError(f"CastMatMul: operands {x} and {w}")
        check_scales(w, *scales)
        return MatMul(adj_y=self.adj_y).infer(x, TensorType(w.shape, x.dtype))

    def evaluate(self, x: np.ndarray, w: np.ndarray, *scales: np.ndarray) -> np.ndarray:
        return MatMul(adj_y=self.adj_y).evaluate(x, scaled(w.astype(x.dtype), *scales))

    def vjp(self, b: GraphBuilder, x: Value, *w: Value, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return lambda: b(CastMatMul(not self.adj_y), dy, *w), *(None for _ in w)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return MatMul(adj_y=self.adj_y).cost(inputs[:2], outputs)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        x, *constants = operands
        if any((one.of != NO_ROW).any() for one in constants):  # a part of it would be another constant
            raise RowsMixed
        return MatMul(adj_y=self.adj_y).batch_rows(inputs[:2], x, constants[0])


@dataclass(frozen=True)
class DynamicRangeMatMul(Op):
    """Rows x [..., K] times a constant int4 matrix w [N, K] as it is stored: x w', of integers in both operands.

    The runtime's kernels round each row to int8, by the range of its numbers, and multiply integers: about 0.7% off for
    normal numbers, which `linear_in` does not claim. The derivative is straight-through (Bengio et al., arXiv
    1308.3432): dy w, exact, as if nothing were rounded. K is even, so that rows of w end where bytes do.
    """

    contracts = True

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        if w.dtype != INT4 or w.quantization is not None or w.rank != 2 or x.rank < 2 or w.shape[1] % 2:
            raise ShapeError(f"DynamicRangeMatMul: operands {x} and {w}")
        return MatMul(adj_y=True).infer(x, TensorType(w.shape, x.dtype))

    def evaluate(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return CastMatMul(adj_y=True).evaluate(x, w)

    def vjp(self, b: GraphBuilder, x: Value, w: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return lambda: b(CastMatMul(), dy, w), None

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return MatMul(adj_y=True).cost(inputs, outputs)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return CastMatMul(adj_y=True).batch_rows(inputs, *operands)


#: Numbers of a matrix that are float64 at once.
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class SquaredNorms(Op):
    """Squared length of each slice of a weight along an axis, [n]: of a matrix its rows, or with axis 1 its columns.

    A matrix [A, B] may be integers with scales, [A] or [A, blocks] as `CastMatMul` has them. Nothing flows back. It
    stands for a number that is known once it is known how the weight is rounded: no program computes it.

    Attributes:
        axis: of the slices.
        magnitude: name of the parameter that begins as the roots.
    """

    axis: int
    magnitude: str

    def infer(self, w: TensorType, *scales: TensorType) -> TensorType:
        if not 0 <= self.axis < w.rank or (scales and w.rank != 2):
            raise ShapeError(f"{self}: of {w}")
        if scales and scales[0].rank == 2:
            check_scales(w, *scales)
        return TensorType((w.shape[self.axis],))

    def evaluate(self, w: np.ndarray, *scales: np.ndarray) -> np.ndarray:
        """Return them, summed up in float64, a part of the weight at a time."""
        others = tuple(i for i in range(w.ndim) if i != self.axis)
        sums, step = np.zeros(w.shape[self.axis]), max(1, _AT_ONCE // max(1, w[:1].size))
        for begin in range(0, w.shape[0], step):
            part = slice(begin, begin + step)
            numbers = scaled(w[part].astype(FLOAT32), *(of[part].reshape(len(of[part]), -1) for of in scales))
            squares = np.square(numbers, dtype=np.float64).sum(others)
            if self.axis == 0:
                sums[part] = squares
            else:
                sums += squares
        return sums.astype(FLOAT32)

    def vjp(self, b: GraphBuilder, *operands: Value, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,) * len(operands)


def check_scales(w: TensorType, *scales: TensorType) -> None:
    """Raise ShapeError where these are no scales of the blocks of a matrix; there are none or one of them."""
    if scales:
        (of,) = scales
        whole = of.rank == 2 and of.shape[0] == w.shape[0] and w.shape[1] % of.shape[1] == 0
        if not whole or of.dtype not in (FLOAT32, np.dtype(np.float16)) or w.dtype == FLOAT32:
            raise ShapeError(f"no scales of blocks of {w}: {of}")


def scaled(rows: np.ndarray, *scales: np.ndarray) -> np.ndarray:
    """Return float32 rows [..., B] times the scales of their blocks, [..., blocks], if there are any."""
    for of in scales:
        blocks = rows.reshape(*of.shape, -1) * of.astype(rows.dtype)[..., None]
        rows = blocks.reshape(rows.shape)
    return rows


def split_axis(b: GraphBuilder, x: Value, axis: int, k: int) -> tuple[Value, Value]:
    """Return the first k elements of `x` along an axis, and the others."""
    from converter.ir.ops.shape import Slice

    def part(start: int, size: int) -> Value:
        begin = tuple(start if i == axis else 0 for i in range(len(x.shape)))
        return b(Slice(begin, (*x.shape[:axis], size, *x.shape[axis + 1 :])), x)

    return part(0, k), part(k, x.shape[axis] - k)
