"""Sorting: the places of the largest elements, then a look-up of each operand at these."""

from __future__ import annotations

import numpy as np

from converter.ir import BOOL, INT32, Builder, Value, ops
from jax_frontend.registry import Equation, ImportRules, Result

rule = ImportRules()


@rule("sort")
def sort(call: Equation, *values: Value) -> Result:
    """Any number of operands along one axis, by the first `num_keys` of them; equal ones stay in order."""
    b, axis = call.b, int(call.params["dimension"])
    if not values[0].shape[axis]:
        return values
    rows = [_last(b, v, axis) for v in values]
    for key in reversed(range(int(call.params["num_keys"]))):  # the least key first: later ones keep its order
        places = b(ops.TopIndices(rows[key].shape[-1]), opposite(b, rows[key]))
        rows = [along_rows(b, row, places) for row in rows]
    return [_last(b, row, axis, back=True) for row in rows]


@rule("top_k")
def top_k(call: Equation, x: Value) -> Result:
    """The largest elements along an axis, the largest first, and their places."""
    axis = int(call.params.get("axis", len(x.shape) - 1)) % len(x.shape)
    return _top(call, x, int(call.params["k"]), axis, largest=True)


@rule("approx_top_k")
def approx_top_k(call: Equation, x: Value) -> Result:
    """The exact ones."""
    p = call.params
    axis = int(p["reduction_dimension"]) % len(x.shape)
    return _top(call, x, int(p["k"]), axis, largest=bool(p["is_max_k"]))


def _top(call: Equation, x: Value, k: int, axis: int, largest: bool) -> list[Value]:
    b = call.b
    rows = _last(b, x, axis)
    places = b(ops.TopIndices(k), rows if largest else opposite(b, rows))
    return [_last(b, v, axis, back=True) for v in (along_rows(b, rows, places), places)]


def opposite(b: Builder, x: Value) -> Value:
    """Numbers in the opposite order. -1 - n of an integer does not overflow."""
    x = b(ops.Cast(INT32), x) if x.dtype == BOOL else x
    return b(ops.Neg(), x) if x.dtype.kind == "f" else b(ops.Sub(), b.constant(np.int32(-1)), x)


def _last(b: Builder, x: Value, axis: int, back: bool = False) -> Value:
    """The axis moved after the others, or from there to its place."""
    order = [*(a for a in range(len(x.shape)) if a != axis), axis]
    return b.transpose(x, tuple(int(i) for i in np.argsort(order)) if back else tuple(order))


def along_rows(b: Builder, x: Value, places: Value) -> Value:
    """For each row, the elements at its own places: a look-up in the flat tensor."""
    *outer, count = x.shape
    starts = (np.arange(int(np.prod(outer)), dtype=np.int32) * count).reshape(*outer, 1)
    return b(ops.Gather(0), b.reshape(x, (x.type.size,)), b(ops.Add(), places, starts))
