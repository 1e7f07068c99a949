"""Reductions over axes."""

from __future__ import annotations

import numpy as np

from converter.ir import Op, Value, ops
from tflite_frontend.registry import Call, Result, Rules

rule = Rules()

_KINDS: dict[str, type[Op]] = {"SUM": ops.Sum, "MEAN": ops.Mean, "REDUCE_MAX": ops.Max, "REDUCE_MIN": ops.Min}


@rule(*_KINDS)
def reduction(call: Call, x: Value, axes: Value) -> Result:
    """Over axes that are known."""
    given = tuple(sorted({int(a) % len(x.shape) for a in call.known(axes, "axes").reshape(-1)}))
    keeps = bool(call.option("keepDims", False))
    if not given:
        return x
    return call.b(_KINDS[call.operator.kind](given, keeps), x)  # type: ignore[call-arg]


@rule("REDUCE_PROD")
def product(call: Call, x: Value, axes: Value) -> Result:
    """Of numbers that are known, as sizes are."""
    given = tuple(int(a) for a in call.known(axes, "axes").reshape(-1))
    numbers = call.known(x, "numbers")
    return call.b.constant(np.prod(numbers, axis=given or None, keepdims=bool(call.option("keepDims", False))))


@rule("ARG_MAX")
def arg_max(call: Call, x: Value, axis: Value) -> Result:
    """The place of the largest number."""
    return call.b(ops.ArgMax(int(call.known(axis, "axes").reshape(())) % len(x.shape)), x)
