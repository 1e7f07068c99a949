"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from converter.ir.extent import Extent
from converter.ir.op import Cost, Cotangent, Op, ShapeError
from converter.ir.ops.elementwise import Cast, Div, Equal, Mul
from converter.ir.row_dependence import Rows
from converter.ir.types import INT32, Shape, TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


def normal_axes(axes: tuple[int, ...], rank: int, name: str) -> tuple[int, ...]:
    """Sorted non-negative axes. Raises ShapeError when one is out of range."""
    if any(not -rank <= a < rank for a in axes):
        raise ShapeError(f"{name}: axes {list(axes)} of a tensor of rank {rank}")
    return tuple(sorted(a % rank for a in axes))


@dataclass(frozen=True)
class Reduction(Op):
    """Reduces over `axes`; `keepdims` leaves them with size 1."""

    in_parts = True
    axes: tuple[int, ...]
    keepdims: bool = False
    function: ClassVar[Callable]

    def infer(self, x: TensorType) -> TensorType:
        axes = normal_axes(self.axes, x.rank, self.name)
        if self.keepdims:
            return x.with_shape(tuple(1 if i in axes else d for i, d in enumerate(x.shape)))
        return x.with_shape(tuple(d for i, d in enumerate(x.shape) if i not in axes))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return type(self).function(x, axis=self.axes, keepdims=self.keepdims)

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost(inputs[0].size, inputs[0].nbytes + outputs[0].nbytes)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0].along(self.axes, self.keepdims)

    def spread(self, b: GraphBuilder, value: Value, shape: Shape) -> Value:
        """`value` (of the output's shape) with the reduced axes back as size 1."""
        axes = normal_axes(self.axes, len(shape), self.name)
        return b.reshape(value, tuple(1 if i in axes else d for i, d in enumerate(shape)))


class Sum(Reduction):
    """Sum."""

    function = np.sum
    linear_in = ((0,),)

    def extent(self, *operands: Extent) -> Extent:
        (x,) = operands
        return Extent(x.low if x.low >= 0 else -inf, x.high if x.high <= 0 else inf)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b.broadcast_to(self.spread(b, dy, x.shape), x.shape),)


class Mean(Reduction):
    """Arithmetic mean."""

    function = np.mean
    linear_in = ((0,),)

    def extent(self, *operands: Extent) -> Extent:
        return Extent(operands[0].low, operands[0].high)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        count = prod(x.shape) / max(prod(y.shape), 1)
        return (lambda: b.broadcast_to(b(Mul(), self.spread(b, dy, x.shape), 1.0 / count), x.shape),)


class _Extremum(Reduction):
    def extent(self, *operands: Extent) -> Extent:
        return operands[0]

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def share() -> Value:
            # JAX divides the cotangent evenly among ties.
            hit = b(Cast(x.dtype), b(Equal(), x, self.spread(b, y, x.shape)))
            count = b(Sum(self.axes, keepdims=True), hit)
            return b(Mul(), hit, b(Div(), self.spread(b, dy, x.shape), count))

        return (share,)


class Max(_Extremum):
    """Largest element; ties share the cotangent evenly, as in JAX."""

    function = np.max


class Min(_Extremum):
    """Smallest element; ties share the cotangent evenly, as in JAX."""

    function = np.min


@dataclass(frozen=True)
class ArgMax(Op):
    """Index of the first largest element along one axis, int32."""

    axis: int

    def infer(self, x: TensorType) -> TensorType:
        (axis,) = normal_axes((self.axis,), x.rank, self.name)
        return TensorType(x.shape[:axis] + x.shape[axis + 1 :], INT32)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.argmax(x, self.axis).astype(np.int32)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0].along((self.axis,), keepdims=False).within(0, inputs[0].shape[self.axis] - 1)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)


@dataclass(frozen=True)
class CumSum(Op):
    """Running sum along one axis, from the end when `reverse`."""

    linear_in = ((0,),)
    axis: int
    reverse: bool = False

    def infer(self, x: TensorType) -> TensorType:
        normal_axes((self.axis,), x.rank, self.name)
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return (
            np.flip(np.cumsum(np.flip(x, self.axis), self.axis), self.axis) if self.reverse else np.cumsum(x, self.axis)
        )

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0].along((self.axis,))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(CumSum(self.axis, not self.reverse), dy),)
