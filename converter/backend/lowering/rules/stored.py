"""Integers that a model is fed, and operators that another file brings."""

from __future__ import annotations

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering, LoweringRules
from converter.ir import Value, ops

lowers = LoweringRules()


@lowers(ops.Real)
def real(c: Lowering, op: ops.Real, x: Value) -> Value:
    return c(tfl.Dequantize((op.of,)), x)


@lowers(tfl.Carried)
def carried(c: Lowering, op: tfl.Carried, *operands: Value) -> Value | tuple[Value, ...]:
    """As it is."""
    return c(op, *operands)
