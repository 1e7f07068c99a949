"""Ops that move data without arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from converter.ir.op import Cost, Cotangent, Op, ShapeError
from converter.ir.ops.elementwise import Add
from converter.ir.types import INT32, Shape, TensorType

if TYPE_CHECKING:
    from converter.ir.builder import Builder
    from converter.ir.graph import Value


@dataclass(frozen=True)
class Movement(Op):
    """Moves data: no FLOPs."""

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost(0, 2 * outputs[0].nbytes)


@dataclass(frozen=True)
class Reshape(Movement):
    """Row-major reinterpretation of the same elements."""

    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        if prod(self.shape) != x.size:
            raise ShapeError(f"Reshape: {list(x.shape)} does not fill {list(self.shape)}")
        return x.with_shape(self.shape)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self.shape)

    def vjp(self, b: Builder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b.reshape(dy, x.shape),)


@dataclass(frozen=True)
class Transpose(Movement):
    """Axes reordered: output axis i is input axis perm[i]."""

    perm: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if sorted(self.perm) != list(range(x.rank)):
            raise ShapeError(f"Transpose: {list(self.perm)} is no permutation of the axes of {list(x.shape)}")
        return x.with_shape(tuple(x.shape[p] for p in self.perm))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.transpose(x, self.perm)

    def vjp(self, b: Builder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b.transpose(dy, tuple(int(i) for i in np.argsort(self.perm))),)


@dataclass(frozen=True)
class BroadcastTo(Movement):
    """NumPy broadcasting to a larger shape."""

    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        try:
            fits = np.broadcast_shapes(x.shape, self.shape) == self.shape
        except ValueError:
            fits = False
        if not fits:
            raise ShapeError(f"BroadcastTo: {list(x.shape)} does not broadcast to {list(self.shape)}")
        return x.with_shape(self.shape)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, self.shape)

    def vjp(self, b: Builder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b.sum_to_shape(dy, x.shape),)


@dataclass(frozen=True)
class Slice(Movement):
    """`size` elements from `begin` on each axis, every `strides`-th one (strides all 1 when empty)."""

    begin: tuple[int, ...]
    size: tuple[int, ...]
    strides: tuple[int, ...] = ()

    def infer(self, x: TensorType) -> TensorType:
        last = [start + (n - 1) * s for start, n, s in zip(self.begin, self.size, self.step(x.rank), strict=True)]
        if len(self.begin) != x.rank or any(
            start < 0 or n < 0 or (n > 0 and end >= d)
            for start, n, end, d in zip(self.begin, self.size, last, x.shape, strict=True)
        ):
            raise ShapeError(f"{self}: out of the bounds of {list(x.shape)}")
        return x.with_shape(self.size)

    def step(self, rank: int) -> tuple[int, ...]:
        """Strides, one an axis."""
        return self.strides or (1,) * rank

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return x[
            tuple(slice(b, b + n * s, s) for b, n, s in zip(self.begin, self.size, self.step(x.ndim), strict=True))
        ]

    def vjp(self, b: Builder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def place() -> Value:
            step = self.step(len(x.shape))
            if not dy.type.size:
                return b.broadcast_to(b.constant(0.0), x.shape)
            spread = dy if all(s == 1 for s in step) else b(Dilate(step), dy)
            after = (d - start - n for d, start, n in zip(x.shape, self.begin, spread.shape, strict=True))
            return b(Pad(tuple(zip(self.begin, after, strict=True))), spread)

        return (place,)


@dataclass(frozen=True)
class Pad(Movement):
    """Adds `value` around: paddings[i] = (before, after) on axis i, all >= 0."""

    paddings: tuple[tuple[int, int], ...]
    value: float = 0.0

    def infer(self, x: TensorType) -> TensorType:
        if len(self.paddings) != x.rank or any(lo < 0 or hi < 0 for lo, hi in self.paddings):
            raise ShapeError(f"{self}: does not fit {list(x.shape)}")
        return x.with_shape(tuple(d + lo + hi for d, (lo, hi) in zip(x.shape, self.paddings, strict=True)))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.pad(x, self.paddings, constant_values=self.value)

    def vjp(self, b: Builder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Slice(tuple(lo for lo, _ in self.paddings), x.shape), dy),)


@dataclass(frozen=True)
class Dilate(Movement):
    """Puts strides[i]-1 zeros between neighbours on axis i."""

    strides: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if len(self.strides) != x.rank:
            raise ShapeError(f"{self}: does not fit {list(x.shape)}")
        return x.with_shape(tuple((d - 1) * s + 1 if d else 0 for d, s in zip(x.shape, self.strides, strict=True)))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        out = np.zeros([(d - 1) * s + 1 for d, s in zip(x.shape, self.strides, strict=True)], x.dtype)
        out[tuple(slice(None, None, s) for s in self.strides)] = x
        return out

    def vjp(self, b: Builder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Slice((0,) * len(x.shape), x.shape, self.strides), dy),)


@dataclass(frozen=True)
class Concat(Movement):
    """Operands one after the other along one axis."""

    axis: int

    def infer(self, *xs: TensorType) -> TensorType:
        first = xs[0]
        rest = [x.shape[: self.axis] + x.shape[self.axis + 1 :] for x in xs]
        if any(r != rest[0] or x.dtype != first.dtype for r, x in zip(rest, xs, strict=True)):
            raise ShapeError(f"{self}: {', '.join(map(str, xs))} differ on another axis")
        total = sum(x.shape[self.axis] for x in xs)
        return first.with_shape((*first.shape[: self.axis], total, *first.shape[self.axis + 1 :]))

    def evaluate(self, *xs: np.ndarray) -> np.ndarray:
        return np.concatenate(xs, self.axis)

    def vjp(self, b: Builder, *xs: Value, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def piece(start: int, shape: Shape) -> Cotangent:
            begin = tuple(start if i == self.axis else 0 for i in range(len(shape)))
            return lambda: b(Slice(begin, shape), dy)

        starts = np.cumsum([0, *(x.shape[self.axis] for x in xs)]).tolist()
        return tuple(piece(start, x.shape) for start, x in zip(starts, xs, strict=False))


@dataclass(frozen=True)
class Reverse(Movement):
    """Order reversed along axes."""

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.flip(x, self.axes)

    def vjp(self, b: Builder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Reverse(self.axes), dy),)


@dataclass(frozen=True)
class Gather(Movement):
    """Rows of `table` along `axis` by int32 indices of any shape (as numpy.take); an embedding look-up for axis 0."""

    axis: int = 0

    def infer(self, table: TensorType, indices: TensorType) -> TensorType:
        if indices.dtype.kind != "i":
            raise ShapeError(f"Gather: indices are {indices.dtype}")
        return table.with_shape((*table.shape[: self.axis], *indices.shape, *table.shape[self.axis + 1 :]))

    def evaluate(self, table: np.ndarray, indices: np.ndarray) -> np.ndarray:
        return np.take(table, indices, self.axis)

    def vjp(self, b: Builder, table: Value, indices: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
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

        return add_rows, None


@dataclass(frozen=True)
class ScatterAdd(Op):
    """Zeros of `rows` rows to which updates[i] is added at row indices[i]; duplicates add up."""

    rows: int

    def infer(self, indices: TensorType, updates: TensorType) -> TensorType:
        if indices.rank != 1 or indices.dtype.kind != "i" or updates.shape[:1] != indices.shape:
            raise ShapeError(f"ScatterAdd: indices {indices}, updates {updates}")
        return updates.with_shape((self.rows, *updates.shape[1:]))

    def evaluate(self, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        out = np.zeros((self.rows, *updates.shape[1:]), updates.dtype)
        np.add.at(out, indices, updates)
        return out

    def vjp(self, b: Builder, indices: Value, updates: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return None, lambda: b(Gather(0), dy, indices)


@dataclass(frozen=True)
class Segment(Op):
    """`rows` rows, each made of all updates[i] whose indices[i] is its number; an index past the end is an error."""

    rows: int
    function: ClassVar[np.ufunc]

    def infer(self, indices: TensorType, updates: TensorType) -> TensorType:
        return ScatterAdd(self.rows).infer(indices, updates)

    def start(self, dtype: np.dtype) -> float:
        """What a row without updates holds."""
        raise NotImplementedError(self.name)

    def evaluate(self, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        out = np.full((self.rows, *updates.shape[1:]), self.start(updates.dtype), updates.dtype)
        type(self).function.at(out, indices, updates)
        return out


def _limits(dtype: np.dtype) -> tuple[float, float]:
    """The lowest and the largest number of a type."""
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

    def vjp(self, b: Builder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)


@dataclass(frozen=True)
class UpdateSlice(Movement):
    """`x` with the box at `starts` [rank of x], which lies within it, replaced by `update`."""

    def infer(self, x: TensorType, update: TensorType, starts: TensorType) -> TensorType:
        if update.rank != x.rank or update.dtype != x.dtype or starts != TensorType((x.rank,), INT32):
            raise ShapeError(f"UpdateSlice: {x}, {update} at {starts}")
        return x

    def evaluate(self, x: np.ndarray, update: np.ndarray, starts: np.ndarray) -> np.ndarray:
        out = np.array(x)
        out[tuple(slice(s, s + n) for s, n in zip(starts, update.shape, strict=True))] = update
        return out

    def vjp(self, b: Builder, x: Value, update: Value, starts: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
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

    depth: int

    def infer(self, indices: TensorType) -> TensorType:
        return TensorType((*indices.shape, self.depth))

    def evaluate(self, indices: np.ndarray) -> np.ndarray:
        return (indices[..., None] == np.arange(self.depth)).astype(np.float32)

    def vjp(self, b: Builder, indices: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)
