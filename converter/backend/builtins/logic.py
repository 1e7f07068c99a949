"""Elementwise builtins: comparisons, bools, and the bits of integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from converter.backend.builtins.base import Builtin
from converter.ir import Op, TensorType, ops


class _Comparison(Builtin):
    moved = "compare"


class Equal(_Comparison):
    """x == y."""

    code, table, means = "EQUAL", "EqualOptions", ops.Equal
    kinds = "fib"


class NotEqual(_Comparison):
    """x != y."""

    code, table, means = "NOT_EQUAL", "NotEqualOptions", ops.NotEqual
    kinds = "fib"


class Less(_Comparison):
    """x < y."""

    code, table, means = "LESS", "LessOptions", ops.Less
    kinds = "fi"


class LessEqual(_Comparison):
    """x <= y."""

    code, table, means = "LESS_EQUAL", "LessEqualOptions", ops.LessEqual
    kinds = "fi"


class Greater(_Comparison):
    """x > y."""

    code, table, means = "GREATER", "GreaterOptions", ops.Greater
    kinds = "fi"


class GreaterEqual(_Comparison):
    """x >= y."""

    code, table, means = "GREATER_EQUAL", "GreaterEqualOptions", ops.GreaterEqual
    kinds = "fi"


class LogicalAnd(Builtin):
    """x and y, on bools."""

    code, table, means = "LOGICAL_AND", "LogicalAndOptions", ops.LogicalAnd
    kinds = "b"


class LogicalOr(Builtin):
    """x or y, on bools."""

    code, table, means = "LOGICAL_OR", "LogicalOrOptions", ops.LogicalOr
    kinds = "b"


class LogicalNot(Builtin):
    """not x, on bools."""

    code, table, means = "LOGICAL_NOT", "LogicalNotOptions", ops.LogicalNot
    kinds = "b"


class BitwiseXor(Builtin):
    """The bits in which two integers differ."""

    code, table, means = "BITWISE_XOR", "BitwiseXorOptions", ops.BitwiseXor
    kinds = "i"


@dataclass(frozen=True)
class Bitcast(Builtin):
    """The same bits as another element type."""

    code, table, means = "BITCAST", "BitcastOptions", ops.Bitcast
    kinds = "fiu"
    dtype: np.dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def meaning(self, *types: TensorType) -> Op:
        return ops.Bitcast(self.dtype)


class RightShift(Builtin):
    """The bits moved to the right; the sign comes in from the left."""

    code, table, means = "RIGHT_SHIFT", "RightShiftOptions", ops.ShiftRight
    kinds = "i"
