"""Identities: applications of an op that need no op, for the builder of traces and for `passes/simplify`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from converter.ir import ops
from converter.ir.builder import LookingBuilder
from converter.ir.graph import Value
from converter.ir.op import Op
from converter.ir.types import BOOL

#: Returns what stands for `op(*operands)`, or None.
Identity = Callable[..., Value | None]
Table = tuple[tuple[Any, Identity], ...]


def simplified(b: LookingBuilder, op: Op, operands: Sequence[Value], table: Table) -> Value | None:
    """Return the value that the application of an op comes to by the identities of a table; None where it is needed."""
    found = (rule(b, op, *operands) for kind, rule in table if isinstance(op, kind))
    return next((value for value in found if value is not None), None)


def _without_identity(b: LookingBuilder, op: ops.Binary, x: Value, y: Value) -> Value | None:
    """x + 0, x * 1, max(x, -inf), x and true: x."""
    if op.identity is None:
        return None
    for value, other in ((x, y), (y, x)) if op.commutes else ((x, y),):
        if b.scalar(other) == op.identity and op.infer(x.type, y.type) == value.type:
            return value
    return None


def _mean(b: LookingBuilder, op: ops.Mul | ops.Div, x: Value, y: Value) -> Value | None:
    """Sum(x) / count, or times its inverse: Mean(x)."""
    if isinstance(op, ops.Mul) and b.array(x) is not None:
        x, y = y, x
    total, divisor = b.producer(x, ops.Sum), b.scalar(y)
    if total is None or not divisor or y.shape != () or x.dtype.kind != "f":
        return None
    count = prod(total.inputs[0].shape) / max(prod(x.shape), 1)
    factor = divisor if isinstance(op, ops.Div) else 1 / divisor
    if count <= 1 or abs(factor - count) > 1e-6 * count:
        return None
    return b(ops.Mean(total.op.axes, total.op.keepdims), total.inputs[0])


def _undone(b: LookingBuilder, op: ops.Unary, x: Value) -> Value | None:
    """-(-x), not (not x): x."""
    twice = b.producer(x, type(op)) if op.involution else None
    return twice.inputs[0] if twice else None


def _reshaped(b: LookingBuilder, op: ops.Reshape, x: Value) -> Value | None:
    """Two reshapes are one, and one to the same shape none."""
    before = b.producer(x, ops.Reshape)
    return b.reshape(before.inputs[0], op.shape) if before else x if op.shape == x.shape else None


def _kept_axes(b: LookingBuilder, op: ops.Reshape, x: Value) -> Value | None:
    """A reduction keeps its axes by itself."""
    reduction = b.producer(x, ops.Sum, ops.Mean, ops.Max, ops.Min)
    if reduction is None:
        return None
    kept = type(reduction.op)(reduction.op.axes, keepdims=True)
    return b(kept, reduction.inputs[0]) if kept.infer(reduction.inputs[0].type).shape == op.shape else None


def _transposed(b: LookingBuilder, op: ops.Transpose, x: Value) -> Value | None:
    """Two transposes are one, and one that moves nothing none."""
    if before := b.producer(x, ops.Transpose):
        return b.transpose(before.inputs[0], tuple(before.op.perm[p] for p in op.perm))
    return x if op.perm == tuple(range(len(op.perm))) else None


def _unmoved(b: LookingBuilder, op: ops.Transpose, x: Value) -> Value | None:
    """A transpose that only moves axes of size 1 is a reshape."""
    moved = [p for p in op.perm if x.shape[p] != 1]
    return b.reshape(x, op.infer(x.type).shape) if moved == sorted(moved) else None


def _reverse(b: LookingBuilder, op: ops.Reverse, x: Value) -> Value | None:
    """Two reversals are one or none, also around a transpose."""
    if before := b.producer(x, ops.Reverse):
        axes = tuple(sorted(set(before.op.axes) ^ set(op.axes)))
        return b(ops.Reverse(axes), before.inputs[0]) if axes else before.inputs[0]
    if transposed := b.producer(x, ops.Transpose):  # reverse first: the two meet
        perm = transposed.op.perm
        return b.transpose(b(ops.Reverse(tuple(perm[a] for a in op.axes)), transposed.inputs[0]), perm)
    return None


def _select(b: LookingBuilder, op: ops.Select, condition: Value, x: Value, y: Value) -> Value | None:
    """NaN ? x : max(x, 0) + ..., which logaddexp writes: a sum passes a NaN on. c ? 1 : 0: c as a number."""
    check = b.producer(condition, ops.NotEqual)
    if check and check.inputs == (x, x) and b.producer(y, ops.Add):
        return y
    whole = condition.shape == op.infer(condition.type, x.type, y.type).shape
    return b(ops.Cast(x.dtype), condition) if whole and b.scalar(x) == 1 and b.scalar(y) == 0 else None


def _truth(b: LookingBuilder, op: ops.NotEqual, x: Value, y: Value) -> Value | None:
    """A bool as a number is not 0: the bool."""
    cast = b.producer(x, ops.Cast) if b.scalar(y) == 0 else None
    return cast.inputs[0] if cast and cast.inputs[0].dtype == BOOL else None


#: Identities of which ops, the first that fits.
IDENTITIES: Table = (
    (ops.Binary, _without_identity),
    (ops.Mul | ops.Div, _mean),
    (ops.Unary, _undone),
    (ops.Reshape, _reshaped),
    (ops.Transpose, _transposed),
    (ops.Reverse, _reverse),
    (ops.Select, _select),
    (ops.NotEqual, _truth),
)
#: These, and what is another op in its place: once a graph is made, the passes that choose forms decide on that.
OF_TRACES: Table = (*IDENTITIES, (ops.Reshape, _kept_axes), (ops.Transpose, _unmoved))
