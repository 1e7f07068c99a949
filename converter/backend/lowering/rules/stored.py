"""Integers that a model is fed, and operators that another file brings."""

from __future__ import annotations

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering, LoweringRules
from converter.ir import UNSCALED, Value, ops

lowers = LoweringRules()


@lowers(ops.Real)
def real(c: Lowering, op: ops.Real, x: Value) -> Value:
    return c(tfl.Dequantize((op.of,)), x)


@lowers(ops.Nearest)
def nearest(c: Lowering, op: ops.Nearest, x: Value) -> Value:
    if c.target.is_newest:
        return c(tfl.Quantize(op.of), x)
    # XNNPACK of TFLite 2.16 reads what QUANTIZE scales by as if it were aligned: on AVX-512 that may end the process.
    assert op.of == UNSCALED, op
    within = c(tfl.Maximum(), c(tfl.Minimum(), x, c.constant(np.float32(127))), c.constant(np.float32(-128)))
    return c(tfl.CastInteger(), c(tfl.Round(), within))


@lowers(tfl.Carried)
def carried(c: Lowering, op: tfl.Carried, *operands: Value) -> Value | tuple[Value, ...]:
    """As it is."""
    return c(op, *operands)
