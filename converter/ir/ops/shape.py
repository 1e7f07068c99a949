"""Data movement: ops that reshape, transpose, cut and join without arithmetic."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.op import ALL_OPERANDS, Cost, Cotangent, Op, ShapeError
from converter.ir.row_dependence import NO_ROW, Rows, joined, reshaped, sliced
from converter.ir.types import Shape, TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


@dataclass(frozen=True)
class Movement(Op):
    """Moves data: no FLOPs."""

    moves_data = True

    @property
    def linear_in(self) -> tuple[Container[int], ...]:
        return () if self.fill else ((0,),)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost(0, 2 * outputs[0].nbytes)


@dataclass(frozen=True)
class Reshape(Movement):
    """Row-major reinterpretation of the same elements."""

    keeps_data = in_parts = True
    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        if prod(self.shape) != x.size:
            raise ShapeError(f"Reshape: {list(x.shape)} does not fill {list(self.shape)}")
        return x.with_shape(self.shape)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(self.shape)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0].moved(lambda a: reshaped(a, inputs[0].shape, self.shape))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b.reshape(dy, x.shape),)


@dataclass(frozen=True)
class Transpose(Movement):
    """Axes reordered: output axis i is input axis perm[i]."""

    in_parts = True
    perm: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if sorted(self.perm) != list(range(x.rank)):
            raise ShapeError(f"Transpose: {list(self.perm)} is no permutation of the axes of {list(x.shape)}")
        return x.with_shape(tuple(x.shape[p] for p in self.perm))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.transpose(x, self.perm)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0].moved(lambda a: np.transpose(a, self.perm))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b.transpose(dy, tuple(int(i) for i in np.argsort(self.perm))),)


@dataclass(frozen=True)
class BroadcastTo(Movement):
    """NumPy broadcasting to a larger shape."""

    in_parts = True
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

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0].moved(lambda a: a.reshape((1,) * (len(self.shape) - a.ndim) + a.shape))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
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
        return x[self._cut()]

    def _cut(self) -> tuple[slice, ...]:
        step = self.step(len(self.begin))
        return tuple(slice(b, b + n * s, s) for b, n, s in zip(self.begin, self.size, step, strict=True))

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0].moved(lambda a: sliced(a, self._cut()))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
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

    @property
    def fill(self) -> float:
        return self.value

    def infer(self, x: TensorType) -> TensorType:
        if len(self.paddings) != x.rank or any(lo < 0 or hi < 0 for lo, hi in self.paddings):
            raise ShapeError(f"{self}: does not fit {list(x.shape)}")
        return x.with_shape(tuple(d + lo + hi for d, (lo, hi) in zip(x.shape, self.paddings, strict=True)))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.pad(x, self.paddings, constant_values=self.value)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        of = operands[0].of
        varying = [p if d > 1 else (0, 0) for d, p in zip(of.shape, self.paddings, strict=True)]
        return Rows(np.pad(of, varying, constant_values=NO_ROW))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Slice(tuple(lo for lo, _ in self.paddings), x.shape), dy),)


@dataclass(frozen=True)
class Dilate(Movement):
    """Puts strides[i]-1 zeros between neighbours on axis i."""

    fill = 0.0
    strides: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if len(self.strides) != x.rank:
            raise ShapeError(f"{self}: does not fit {list(x.shape)}")
        return x.with_shape(tuple((d - 1) * s + 1 if d else 0 for d, s in zip(x.shape, self.strides, strict=True)))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return self._spread(x, 0)

    def _spread(self, x: np.ndarray, between: int) -> np.ndarray:
        out = np.full(
            [(d - 1) * s + 1 if d else 0 for d, s in zip(x.shape, self.strides, strict=True)], between, x.dtype
        )
        out[tuple(slice(None, None, s) for s in self.strides)] = x
        return out

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        of = operands[0].of
        varying = Dilate(tuple(s if d > 1 else 1 for d, s in zip(of.shape, self.strides, strict=True)))
        return Rows(varying._spread(of, NO_ROW))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Slice((0,) * len(x.shape), x.shape, self.strides), dy),)


@dataclass(frozen=True)
class Concat(Movement):
    """Operands one after the other along one axis."""

    in_parts = True
    linear_in = (ALL_OPERANDS,)
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

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        sizes = [t.shape[self.axis] for t in inputs]
        ends = [rows.bounds for rows in operands if rows.bounds is not None]
        made = Rows(joined([rows.of for rows in operands], sizes, self.axis))
        if len(ends) < len(operands):
            return made
        least, largest = (joined(side, sizes, self.axis) for side in zip(*ends, strict=True))
        return Rows(made.of, (least, largest))

    def vjp(self, b: GraphBuilder, *xs: Value, y: Value, dy: Value) -> tuple[Cotangent, ...]:
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

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0].moved(lambda a: np.flip(a, self.axes))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Reverse(self.axes), dy),)
