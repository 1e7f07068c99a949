"""Gather, scatter and other ops that move data by indices."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from converter.ir.op import Cotangent, Op, ShapeError
from converter.ir.ops.elementwise import Add, Equal, Mul, Select, Unary, broadcast
from converter.ir.ops.linear import check_scales, scaled
from converter.ir.ops.shape import Movement, Pad, Slice
from converter.ir.quantization import INT8
from converter.ir.row_dependence import Rows, scattered, taken, together
from converter.ir.types import FLOAT32, INT4, INT32, TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


@dataclass(frozen=True)
class Gather(Movement):
    """Rows of `table` along `axis` by int32 indices of any shape (as numpy.take); an embedding look-up for axis 0.

    With `distinct`, the indices are a list in which none stands twice, so that the derivative is a look-up too.
    """

    axis: int = 0
    distinct: bool = False

    def infer(self, table: TensorType, indices: TensorType) -> TensorType:
        if indices.dtype.kind != "i":
            raise ShapeError(f"Gather: indices are {indices.dtype}")
        return table.with_shape((*table.shape[: self.axis], *indices.shape, *table.shape[self.axis + 1 :]))

    def evaluate(self, table: np.ndarray, indices: np.ndarray) -> np.ndarray:
        return np.take(table, indices, self.axis)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        table, indices = operands
        return taken(table, indices, self.axis, inputs[0].shape[self.axis])

    def vjp(self, b: GraphBuilder, table: Value, indices: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def add_rows() -> Value:
            rank, many = len(table.shape), len(indices.shape)
            rows = table.shape[: self.axis] + table.shape[self.axis + 1 :]
            to_front = (
                *range(self.axis, self.axis + many),
                *range(self.axis),
                *range(self.axis + many, rank - 1 + many),
            )
            moved = b.reshape(b.transpose(dy, to_front), (prod(indices.shape), *rows))
            summed = b(ScatterAdd(table.shape[self.axis]), b.reshape(indices, (prod(indices.shape),)), moved)
            back = (*range(1, self.axis + 1), 0, *range(self.axis + 1, rank))
            return b.transpose(summed, back)

        def put_rows() -> Value:
            """For each row of the table the cotangent of the row it became, or zeros, which stand before them."""
            (many,) = indices.shape
            numbers = b.constant(np.arange(1, many + 1, dtype=np.int32))
            became = b(ScatterAdd(table.shape[self.axis]), indices, numbers)
            ahead = tuple((int(i == self.axis), 0) for i in range(len(dy.shape)))
            return b(Gather(self.axis), b(Pad(ahead), dy), became)

        return put_rows if self.distinct else add_rows, None


@dataclass(frozen=True)
class CastGather(Op):
    """Rows of a constant table [V, N] of int4 or int8 as they are, by int32 indices of any shape, as float32.

    A third operand, scales [V, blocks], multiplies the blocks of each row, as in `CastMatMul`.
    """

    def infer(self, table: TensorType, indices: TensorType, *scales: TensorType) -> TensorType:
        if table.dtype not in (INT4, INT8) or table.quantization is not None or table.rank != 2:
            raise ShapeError(f"CastGather: the table is {table}")
        check_scales(table, *scales)
        return Gather().infer(TensorType(table.shape, FLOAT32), indices)

    def evaluate(self, table: np.ndarray, indices: np.ndarray, *scales: np.ndarray) -> np.ndarray:
        rows, *of = (np.take(array, indices, 0) for array in (table, *scales))
        return scaled(rows.astype(FLOAT32), *of)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return Gather().batch_rows(inputs[:2], *operands[:2])

    def vjp(self, b: GraphBuilder, *operands: Value, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return tuple(None for _ in operands)


@dataclass(frozen=True)
class ScatterAdd(Op):
    """Zeros of `rows` rows to which updates[i] is added at row indices[i]; duplicates add up."""

    linear_in = ((1,),)
    rows: int

    def infer(self, indices: TensorType, updates: TensorType) -> TensorType:
        if indices.rank != 1 or indices.dtype.kind != "i" or updates.shape[:1] != indices.shape:
            raise ShapeError(f"ScatterAdd: indices {indices}, updates {updates}")
        return updates.with_shape((self.rows, *updates.shape[1:]))

    def evaluate(self, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        out = np.zeros((self.rows, *updates.shape[1:]), updates.dtype)
        np.add.at(out, indices, updates)
        return out

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        indices, updates = operands
        return scattered(indices, updates, inputs[0].size, self.rows)

    def vjp(self, b: GraphBuilder, indices: Value, updates: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return None, lambda: b(Gather(0), dy, indices)


@dataclass(frozen=True)
class Segment(Op):
    """`rows` rows, each made of all updates[i] whose indices[i] is its number; an index past the end is an error."""

    rows: int
    function: ClassVar[np.ufunc]

    def infer(self, indices: TensorType, updates: TensorType) -> TensorType:
        return ScatterAdd(self.rows).infer(indices, updates)

    def start(self, dtype: np.dtype) -> float:
        """Return what a row without updates holds."""
        raise NotImplementedError(self.name)

    def evaluate(self, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        out = np.full((self.rows, *updates.shape[1:]), self.start(updates.dtype), updates.dtype)
        type(self).function.at(out, indices, updates)
        return out

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        indices, updates = operands
        return scattered(indices, updates, inputs[0].size, self.rows)


def _limits(dtype: np.dtype) -> tuple[float, float]:
    """Return the lowest and the largest number of a type."""
    info = np.iinfo(dtype) if dtype.kind == "i" else np.finfo(np.float32)
    return float(info.min), float(info.max)


class SegmentMax(Segment):
    """The largest; the lowest number of the type for none."""

    function = np.maximum

    def start(self, dtype: np.dtype) -> float:
        return _limits(dtype)[0]


class SegmentMin(Segment):
    """The smallest; the largest number of the type for none."""

    function = np.minimum

    def start(self, dtype: np.dtype) -> float:
        return _limits(dtype)[1]


class SegmentProd(Segment):
    """The product; 1 for none."""

    function = np.multiply

    def start(self, dtype: np.dtype) -> float:
        return 1


@dataclass(frozen=True)
class TopIndices(Op):
    """Where the k largest elements of the last axis are, int32, the largest first and of equal ones the first."""

    k: int

    def infer(self, x: TensorType) -> TensorType:
        if not x.rank or not 0 < self.k <= x.shape[-1]:
            raise ShapeError(f"{self}: of {x}")
        return TensorType((*x.shape[:-1], self.k), INT32)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        ascending = np.argsort(np.flip(x, -1), axis=-1, kind="stable")
        return (x.shape[-1] - 1 - np.flip(ascending, -1))[..., : self.k].astype(np.int32)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0].along((-1,)).within(0, inputs[0].shape[-1] - 1)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)


@dataclass(frozen=True)
class UpdateSlice(Movement):
    """`x` with the box at `starts` [rank of x], which lies within it, replaced by `update`."""

    linear_in = ((0, 1),)

    def infer(self, x: TensorType, update: TensorType, starts: TensorType) -> TensorType:
        if update.rank != x.rank or update.dtype != x.dtype or starts != TensorType((x.rank,), INT32):
            raise ShapeError(f"UpdateSlice: {x}, {update} at {starts}")
        return x

    def evaluate(self, x: np.ndarray, update: np.ndarray, starts: np.ndarray) -> np.ndarray:
        out = np.array(x)
        out[tuple(slice(s, s + n) for s, n in zip(starts, update.shape, strict=True))] = update
        return out

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        x, update, starts = operands
        moving = [i for i, (n, d) in enumerate(zip(inputs[1].shape, inputs[0].shape, strict=True)) if n != d]
        return together(x, update.along(moving), Rows(starts.along((0,)).of.reshape((1,) * x.of.ndim)))

    def vjp(
        self, b: GraphBuilder, x: Value, update: Value, starts: Value, *, y: Value, dy: Value
    ) -> tuple[Cotangent, ...]:
        def to_x() -> Value:
            zeros = b.broadcast_to(b.constant(0.0), update.shape)
            return b(UpdateSlice(), dy, zeros, starts)

        def to_update() -> Value:
            box = dy
            for axis, size in enumerate(update.shape):
                if size != x.shape[axis]:
                    first = b(Slice((axis,), (1,)), starts)
                    box = b(Gather(axis), box, b(Add(), first, b.constant(np.arange(size, dtype=np.int32))))
            return box

        return to_x, to_update, None


@dataclass(frozen=True)
class OneHot(Movement):
    """float32 rows with a one at the index, appended as the last axis; an index out of range gives zeros."""

    moves_data = False
    linear_in = ()
    depth: int

    def bounds(self, *inputs: TensorType) -> tuple[float, float]:
        return 0.0, 1.0

    def infer(self, indices: TensorType) -> TensorType:
        return TensorType((*indices.shape, self.depth))

    def evaluate(self, indices: np.ndarray) -> np.ndarray:
        return (indices[..., None] == np.arange(self.depth)).astype(np.float32)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return Rows(operands[0].of[..., None])

    def vjp(self, b: GraphBuilder, indices: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)


@dataclass(frozen=True)
class IsClass(Unary):
    """float32 1 where an index is one of `depth` classes, else 0: the sum of its row of OneHot."""

    ends = (0.0, 1.0)
    depth: int

    def infer(self, indices: TensorType) -> TensorType:
        return TensorType(indices.shape)

    def evaluate(self, indices: np.ndarray) -> np.ndarray:
        return ((indices >= 0) & (indices < self.depth)).astype(np.float32)

    def vjp(self, b: GraphBuilder, indices: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)


@dataclass(frozen=True)
class Chosen(Mul):
    """What a mask of zeros and other numbers chooses, times these; the rest has the derivative 0, whatever comes.

    Attributes:
        mask: its place among the operands.
    """

    mask: int = field(default=0, repr=False)

    name = "Mul"  # programs of both share their states
    commutes = False

    def exact_vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        plain, (mask, chosen) = self.vjp(b, x, z, y=y, dy=dy), (z, x) if self.mask else (x, z)

        def to_chosen() -> Value:
            return b.sum_to_shape(_where_chosen(b, mask, dy), chosen.shape)

        return (to_chosen, plain[1]) if self.mask else (plain[0], to_chosen)


def _where_chosen(b: GraphBuilder, mask: Value, dy: Value) -> Value:
    """mask * dy, and 0 where the mask is 0, whatever dy is."""
    nothing = b(Equal(), mask, np.zeros((), mask.dtype))
    return b(Select(), nothing, np.zeros((), dy.dtype), b(Mul(), mask, dy))


@dataclass(frozen=True)
class Pick(Op):
    """The element of each row [..., C] at its index [...]; 0 where that is none. The other elements may be infinite.

    Attributes:
        selects: whether those have the derivative 0 whatever comes, as where an element is looked up. Else it is 0
            times it, as in a product with one-hot rows.
    """

    selects: bool = field(default=False, repr=False)

    moves_data = True
    fill = 0.0
    linear_in = ((0,),)

    def infer(self, x: TensorType, indices: TensorType) -> TensorType:
        if not x.rank or indices.dtype != INT32:
            raise ShapeError(f"{self.name}: of {x} at {indices}")
        return x.with_shape(broadcast(self.name, x.with_shape(x.shape[:-1]), indices))

    def evaluate(self, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        return np.where(OneHot(x.shape[-1]).evaluate(indices) == 0, 0, x).sum(-1).astype(x.dtype)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        x, indices = operands
        return together(x.along((-1,), keepdims=False), indices)

    def vjp(self, b: GraphBuilder, x: Value, indices: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def to_x() -> Value:
            rows = b(OneHot(x.shape[-1]), indices)
            return b.sum_to_shape(b(Mul(), rows, b.reshape(dy, (*dy.shape, 1))), x.shape)

        return to_x, None

    def exact_vjp(self, b: GraphBuilder, x: Value, indices: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def to_x() -> Value:
            rows = b(OneHot(x.shape[-1]), indices)
            return b.sum_to_shape(_where_chosen(b, rows, b.reshape(dy, (*dy.shape, 1))), x.shape)

        return (to_x, None) if self.selects else self.vjp(b, x, indices, y=y, dy=dy)
