"""Operators that look up, scatter and sort by numbers."""

from __future__ import annotations

from math import prod

import numpy as np

from converter.frontends.tflite.folding import checked_size
from converter.frontends.tflite.registry import Call, Result, Rules
from converter.ir import FLOAT32, INT32, Value, ops
from converter.support.errors import NotImportable

rule = Rules()

#: Results of TOPK_V2 are taken one by one.
_MOST_TAKEN = 64


@rule("GATHER")
def gather(call: Call, x: Value, indices: Value) -> Result:
    """Rows of an axis by number; after batch axes each row of the batch has indices of its own."""
    b, axis = call.b, int(call.option("axis", 0)) % len(x.shape)
    batch = int(call.option("batchDims", 0)) % (len(indices.shape) + 1)
    if not batch and not indices.shape:
        return b.reshape(b(ops.Gather(axis), x, b.reshape(indices, (1,))), (*x.shape[:axis], *x.shape[axis + 1 :]))
    if not batch:
        return b(ops.Gather(axis), x, indices)
    # The axis comes behind the batch axes, which become one with it.
    between = x.shape[batch:axis]
    if x.shape[:batch] != indices.shape[:batch]:
        raise NotImportable(f"GATHER of {list(x.shape)} by {list(indices.shape)} along {batch} batch axes")
    order = (*range(batch), axis, *(i for i in range(batch, len(x.shape)) if i != axis))
    moved, sets, size = b.transpose(x, order), prod(x.shape[:batch]), x.shape[axis]
    table = b.reshape(moved, (sets * size, *moved.shape[batch + 1 :]))
    checked_size(b, "GATHER", sets)
    firsts = np.arange(sets, dtype=np.int32) * size
    firsts = firsts.reshape(*x.shape[:batch], *(1 for _ in indices.shape[batch:]))
    taken = b(ops.Gather(0), table, b(ops.Add(), _int32(call, indices), b.constant(firsts)))
    many = len(indices.shape)
    back = (
        *range(batch),
        *range(many, many + len(between)),
        *range(batch, many),
        *range(many + len(between), len(taken.shape)),
    )
    return b.transpose(taken, back)


@rule("GATHER_ND")
def gather_nd(call: Call, x: Value, indices: Value) -> Result:
    """What lies at places, whose last axis has a number for each of the first axes of x."""
    b, depth = call.b, indices.shape[-1]
    table = b.reshape(x, (prod(x.shape[:depth]), *x.shape[depth:]))
    return b(ops.Gather(0), table, _flat_places(call, indices, x.shape[:depth]))


@rule("EMBEDDING_LOOKUP")
def embedding_lookup(call: Call, indices: Value, table: Value) -> Result:
    """Rows of a table."""
    return call.b(ops.Gather(0), table, indices)


@rule("SCATTER_ND")
def scatter_nd(call: Call, indices: Value, updates: Value, shape: Value) -> Result:
    """Zeros to which updates are added at places."""
    b, depth = call.b, indices.shape[-1]
    wanted = tuple(int(n) for n in call.known(shape, "shapes").reshape(-1))
    many, row = prod(indices.shape[:-1]), wanted[depth:]
    places = b.reshape(_flat_places(call, indices, wanted[:depth]), (many,))
    added = b(ops.ScatterAdd(prod(wanted[:depth])), places, b.reshape(updates, (many, *row)))
    return b.reshape(added, wanted)


@rule("ONE_HOT")
def one_hot(call: Call, indices: Value, depth: Value, on: Value, off: Value) -> Result:
    """`on` at the place that each index names along a new axis, else `off`."""
    b, count = call.b, int(call.known(depth, "depths").reshape(()))
    rows = b(ops.OneHot(count), _int32(call, indices))
    if on.dtype != FLOAT32:
        rows = b(ops.Cast(on.dtype), rows)
    rank = len(indices.shape)
    axis = int(call.option("axis", -1)) % (rank + 1)
    rows = b.transpose(rows, (*range(axis), rank, *range(axis, rank)))
    return b(ops.Add(), b(ops.Mul(), rows, b(ops.Sub(), on, off)), off)


@rule("TOPK_V2")
def top_k(call: Call, x: Value, k: Value) -> Result:
    """The largest numbers of the last axis in order, and where they are."""
    b, count = call.b, int(call.known(k, "counts").reshape(()))
    if count > _MOST_TAKEN:
        raise NotImportable(f"TOPK_V2 of {count} numbers: more than {_MOST_TAKEN} have no derivative here")
    places = b(ops.TopIndices(count), x)
    starts = (0,) * (len(x.shape) - 1)
    taken = []
    for i in range(count):
        one = b(ops.Slice((*starts, i), (*x.shape[:-1], 1)), places)
        number = b(ops.Pick(), x, b.reshape(one, x.shape[:-1]))
        taken.append(b.reshape(number, (*x.shape[:-1], 1)))
    return [b(ops.Concat(len(x.shape) - 1), *taken) if count > 1 else taken[0], places]


@rule("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(call: Call, x: Value, update: Value, starts: Value) -> Result:
    """x with a box in it replaced, which is moved inside where it would not fit."""
    b = call.b
    most = b.constant(np.array([d - n for d, n in zip(x.shape, update.shape, strict=True)], np.int32))
    inside = b(ops.Maximum(), b(ops.Minimum(), _int32(call, starts), most), b.constant(np.zeros((), np.int32)))
    return b(ops.UpdateSlice(), x, update, inside)


@rule("WHERE")
def where(call: Call, condition: Value) -> Result:
    """Refused, as the shape of the result depends on the data."""
    raise NotImportable("WHERE, whose result is as long as its data say", "cut the model before it (cut=)")


def _int32(call: Call, value: Value) -> Value:
    return value if value.dtype == INT32 else call.b(ops.Cast(INT32), value)


def _flat_places(call: Call, indices: Value, shape: tuple[int, ...]) -> Value:
    """Return [..., ] for indices [..., D] into D axes: the place in these axes as one."""
    b = call.b
    strides = np.array([prod(shape[i + 1 :]) for i in range(len(shape))], np.int32)
    weighed = b(ops.Mul(), _int32(call, indices), b.constant(strides))
    return b.sum(weighed, (len(indices.shape) - 1,)) if len(shape) > 1 else b.reshape(weighed, indices.shape[:-1])
