"""Elementwise ops: arithmetic with NumPy broadcasting, comparisons, selection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from converter.ir.extent import Extent, Pole, at_corners, one_of
from converter.ir.op import Cotangent, Op, ShapeError
from converter.ir.row_dependence import Rows, chosen, clamped, corners, together
from converter.ir.types import BOOL, INT32, TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


def broadcast(name: str, *types: TensorType) -> tuple[int, ...]:
    """Return the common shape of the operands by NumPy's rule. Raises ShapeError."""
    try:
        return np.broadcast_shapes(*(t.shape for t in types))
    except ValueError:
        raise ShapeError(f"{name}: shapes {' and '.join(str(list(t.shape)) for t in types)} do not broadcast") from None


@dataclass(frozen=True)
class Unary(Op):
    """One operand, same type out."""

    elementwise = in_parts = True
    function: ClassVar[Callable]
    #: Whether it undoes itself.
    involution: ClassVar[bool] = False
    #: The numbers between which all its results lie.
    ends: ClassVar[tuple[float, float]] = (-inf, inf)
    #: Whether it never falls.
    rises: ClassVar[bool] = False

    @classmethod
    def written(cls) -> tuple[Unary, ...]:
        """Return its forms, to which formulas in models are compared by values and slopes."""
        return ()

    def bounds(self, *inputs: TensorType) -> tuple[float, float]:
        return self.ends

    def extent(self, *operands: Extent) -> Extent:
        return operands[0].through(type(self).function) if self.rises else super().extent(*operands)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return together(*operands)

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return type(self).function(x)


@dataclass(frozen=True)
class Binary(Op):
    """Two operands of one dtype, broadcast against each other."""

    elementwise = in_parts = True
    function: ClassVar[Callable]
    #: Whether the operands may change places.
    commutes: ClassVar[bool] = False
    #: The number that, as the second operand (or either, of an op that commutes), leaves the other one as it is.
    identity: ClassVar[float | None] = None
    #: Whether the least and the largest results of ranges of operands lie where both are at an end.
    ends_at_corners: ClassVar[bool] = False
    #: Whether the range of one operand alone bounds the results.
    clamps: ClassVar[bool] = False

    def extent(self, *operands: Extent) -> Extent:
        if self.clamps or self.ends_at_corners:
            return at_corners(type(self).function, *operands)
        return super().extent(*operands)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        if self.clamps:
            return clamped(type(self).function, *operands)
        return corners(type(self).function, *operands) if self.ends_at_corners else together(*operands)

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        if x.dtype != y.dtype:
            raise ShapeError(f"{self.name}: operands are {x.dtype} and {y.dtype}")
        return TensorType(broadcast(self.name, x, y), x.dtype)

    def evaluate(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return type(self).function(x, y)


class Neg(Unary):
    """-x."""

    function = np.negative
    linear_in = ((0,),)
    involution = True

    def extent(self, *operands: Extent) -> Extent:
        return Extent(-operands[0].high, -operands[0].low, operands[0].nonzero)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Neg(), dy),)


class Abs(Unary):
    """Absolute value; derivative 1 at 0, as in JAX."""

    function = np.abs
    ends = (0.0, inf)

    def extent(self, *operands: Extent) -> Extent:
        (x,) = operands
        return Extent(max(x.low, -x.high, 0.0), max(-x.low, x.high), x.nonzero)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Select(), b(GreaterEqual(), x, 0.0), dy, b(Neg(), dy)),)


class Add(Binary):
    """x + y."""

    function = np.add
    ends_at_corners = commutes = True
    identity = 0.0
    linear_in = ((0, 1),)

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b.sum_to_shape(dy, x.shape)), (lambda: b.sum_to_shape(dy, z.shape))


class Sub(Binary):
    """x - y."""

    function = np.subtract
    ends_at_corners = True
    identity = 0.0
    linear_in = ((0, 1),)

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b.sum_to_shape(dy, x.shape)), (lambda: b(Neg(), b.sum_to_shape(dy, z.shape)))


class Mul(Binary):
    """x * y."""

    function = np.multiply
    ends_at_corners = commutes = True
    identity = 1.0
    linear_in = ((0,), (1,))

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (
            lambda: b.sum_to_shape(b(Mul(), dy, z), x.shape),
            lambda: b.sum_to_shape(b(Mul(), dy, x), z.shape),
        )


class Div(Binary):
    """x / y (integers: truncated toward zero)."""

    identity = 1.0
    linear_in = ((0,),)

    @staticmethod
    def function(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        quotient = np.true_divide(x, y)
        return np.trunc(quotient).astype(x.dtype) if x.dtype.kind == "i" else quotient

    def extent(self, *operands: Extent) -> Extent:
        divisor = operands[1]
        if not (divisor.low > 0 or divisor.high < 0):
            return Extent()
        return at_corners(type(self).function, *operands)

    def pole(self, *operands: Extent) -> Pole:
        return Pole.NONE if operands[1].without_zero else Pole.VALUE

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (
            lambda: b.sum_to_shape(b(Div(), dy, z), x.shape),
            lambda: b.sum_to_shape(b(Neg(), b(Mul(), dy, b(Div(), y, z))), z.shape),
        )


class Maximum(Binary):
    """Elementwise maximum; where both are equal each gets half the cotangent, as in JAX."""

    function = np.maximum
    clamps = commutes = True
    identity = -inf

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return _extremum_vjp(b, x, z, dy, Greater())


class Minimum(Binary):
    """Elementwise minimum; where both are equal each gets half the cotangent, as in JAX."""

    function = np.minimum
    clamps = commutes = True
    identity = inf

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return _extremum_vjp(b, x, z, dy, Less())


def _extremum_vjp(b: GraphBuilder, x: Value, z: Value, dy: Value, wins: Op) -> tuple[Cotangent, ...]:
    def toward(this: Value, other: Value) -> Value:
        even = b(Select(), b(Equal(), this, other), b.constant(0.5), b.constant(0.0))
        share = b(Select(), b(wins, this, other), b.constant(1.0), even)
        return b.sum_to_shape(b(Mul(), dy, share), this.shape)

    return (lambda: toward(x, z)), (lambda: toward(z, x))


class SquaredDifference(Binary):
    """(x - y)^2."""

    function = staticmethod(lambda x, y: np.square(x - y))
    commutes = True

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def half() -> Value:
            return b(Mul(), dy, b(Mul(), b(Sub(), x, z), 2.0))

        return (lambda: b.sum_to_shape(half(), x.shape)), (lambda: b(Neg(), b.sum_to_shape(half(), z.shape)))


class Comparison(Binary):
    """Two operands, bool out; nothing flows back."""

    ends_at_corners = True

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        return TensorType(super().infer(x, y).shape, BOOL)

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return None, None


class Equal(Comparison):
    """x == y."""

    function = np.equal
    ends_at_corners = False
    commutes = True


class NotEqual(Comparison):
    """x != y."""

    function = np.not_equal
    ends_at_corners = False
    commutes = True


class Less(Comparison):
    """x < y."""

    function = np.less


class LessEqual(Comparison):
    """x <= y."""

    function = np.less_equal


class Greater(Comparison):
    """x > y."""

    function = np.greater


class GreaterEqual(Comparison):
    """x >= y."""

    function = np.greater_equal


@dataclass(frozen=True)
class Select(Op):
    """Where the condition holds x, else y; all three broadcast."""

    elementwise = in_parts = True
    linear_in = ((1, 2),)

    def infer(self, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
        if condition.dtype != BOOL or x.dtype != y.dtype:
            raise ShapeError(f"Select: wants bool, T, T; got {condition.dtype}, {x.dtype}, {y.dtype}")
        return TensorType(broadcast(self.name, condition, x, y), x.dtype)

    def evaluate(self, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(condition, x, y)

    def extent(self, *operands: Extent) -> Extent:
        return one_of(operands[1:])

    def vjp(
        self, b: GraphBuilder, condition: Value, x: Value, z: Value, *, y: Value, dy: Value
    ) -> tuple[Cotangent, ...]:
        return (
            None,
            lambda: b.sum_to_shape(b(Select(), condition, dy, b.constant(0.0)), x.shape),
            lambda: b.sum_to_shape(b(Select(), condition, b.constant(0.0), dy), z.shape),
        )

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return chosen(*operands)


@dataclass(frozen=True)
class Cast(Unary):
    """Another element type; float to int truncates, and ends at the ends of the type."""

    dtype: np.dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.shape, self.dtype)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        if self.dtype.kind == "f" and x.dtype.kind == "f":
            return x
        if self.dtype == INT32 and x.dtype.kind == "f":
            return np.nan_to_num(x.astype(np.float64)).clip(-(2**31), 2**31 - 1).astype(INT32)
        return x.astype(self.dtype)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        both_float = x.dtype.kind == "f" and self.dtype.kind == "f"
        return ((lambda: b(Cast(x.dtype), dy)) if both_float else None,)
