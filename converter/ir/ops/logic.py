"""Elementwise ops on bools, on the bits of integers and on remainders; nothing flows back through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.op import Cotangent, ShapeError
from converter.ir.ops.elementwise import Binary, Unary
from converter.ir.row_dependence import Rows, remainders
from converter.ir.types import TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


class LogicalNot(Unary):
    """not x, on bools."""

    function = np.logical_not
    involution = True

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)


class BitwiseXor(Binary):
    """The bits in which two integers differ."""

    function = np.bitwise_xor
    commutes = True

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return None, None


@dataclass(frozen=True)
class Bitcast(Unary):
    """The same 32 bits as another element type."""

    dtype: np.dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype.itemsize != self.dtype.itemsize:
            raise ShapeError(f"Bitcast: {x.dtype} and {self.dtype} are not of one size")
        return TensorType(x.shape, self.dtype)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        stored = x.astype(np.float32) if x.dtype.kind == "f" else x  # whatever the precision that is evaluated in
        return np.ascontiguousarray(stored).reshape(x.shape).view(self.dtype)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)


class ShiftRight(Binary):
    """The bits of x moved to the right by 0 to 31 places; the sign comes in from the left."""

    function = np.right_shift

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return None, None


class FloorMod(Binary):
    """Remainder with the sign of the divisor; no derivative flows."""

    function = np.mod

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return remainders(*operands)

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return None, None


class LogicalAnd(Binary):
    """x and y, on bools."""

    function = np.logical_and
    commutes = True
    identity = 1.0

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return None, None


class LogicalOr(Binary):
    """x or y, on bools."""

    function = np.logical_or
    commutes = True
    identity = 0.0

    def vjp(self, b: GraphBuilder, x: Value, z: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return None, None
