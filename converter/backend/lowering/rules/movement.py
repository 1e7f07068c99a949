"""Data movement."""

from __future__ import annotations

from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import MOST_ONES, Lowering, LoweringRules, stored_shape
from converter.ir import BOOL, FLOAT32, INT4, INT32, UNSCALED, Value, ops

lowers = LoweringRules()

_SEGMENTS: dict[type[ops.Segment], type[tfl.UnsortedSegment]] = {
    ops.SegmentMax: tfl.UnsortedSegmentMax,
    ops.SegmentMin: tfl.UnsortedSegmentMin,
    ops.SegmentProd: tfl.UnsortedSegmentProd,
}


@lowers(ops.Reshape)
def reshape(c: Lowering, op: ops.Reshape, x: Value) -> Value:
    return c.reshape(x, stored_shape(op.shape))


@lowers(ops.Transpose)
def transpose(c: Lowering, op: ops.Transpose, x: Value) -> Value:
    return c.transpose(x, op.perm) if op.perm else x


@lowers(ops.BroadcastTo)
def broadcast_to(c: Lowering, op: ops.BroadcastTo, x: Value) -> Value:
    array = c.array(x)
    if array is not None and prod(op.shape) > MOST_ONES and not array.any():
        return c.zeros(x.type.with_shape(op.shape))
    return c.broadcast_to(x, stored_shape(op.shape))


@lowers(ops.Slice)
def slice_(c: Lowering, op: ops.Slice, x: Value) -> Value:
    if all(s == 1 for s in op.strides):
        return c(tfl.Slice(op.begin, op.size), x)
    ends = tuple(b + (n - 1) * s + 1 for b, n, s in zip(op.begin, op.size, op.strides, strict=True))
    return c(tfl.StridedSlice(op.begin, ends, op.strides), x)


@lowers(ops.Pad)
def pad(c: Lowering, op: ops.Pad, x: Value) -> Value:
    """The kernels take five axes and no bools: more are padded one by one, bools as integers."""
    if x.dtype == BOOL:
        padded = pad(c, op, c(tfl.Cast(INT32), x))
        return c(tfl.NotEqual(), padded, 0)
    if len(x.shape) <= 5:
        return c(tfl.PadV2(op.paddings, op.value) if op.value else tfl.Pad(op.paddings), x)
    for axis, amounts in enumerate(op.paddings):
        if any(amounts):
            before, after = x.shape[:axis], x.shape[axis + 1 :]
            rows = c.reshape(x, (prod(before), x.shape[axis], prod(after)))
            rows = pad(c, ops.Pad(((0, 0), amounts, (0, 0)), op.value), rows)
            x = c.reshape(rows, (*before, rows.shape[1], *after))
    return x


@lowers(ops.Dilate)
def dilate(c: Lowering, op: ops.Dilate, x: Value) -> Value:
    """Zeros between neighbours, one axis at a time: a new axis of size 1 after it is padded to the stride."""
    for axis, stride in enumerate(op.strides):
        if stride == 1:
            continue
        before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        rows = c.reshape(x, (prod(before) * size, 1, prod(after)))
        rows = c(tfl.Pad(((0, 0), (0, stride - 1), (0, 0))), rows)
        rows = c.reshape(rows, (prod(before), size * stride, prod(after)))
        rows = c(tfl.Slice((0, 0, 0), (prod(before), (size - 1) * stride + 1, prod(after))), rows)
        x = c.reshape(rows, (*before, (size - 1) * stride + 1, *after))
    return x


@lowers(ops.Concat)
def concat(c: Lowering, op: ops.Concat, *xs: Value) -> Value:
    return c(tfl.Concatenation(op.axis), *xs)


@lowers(ops.Reverse)
def reverse(c: Lowering, op: ops.Reverse, x: Value) -> Value:
    for axis in op.axes:  # the kernel takes several only where they are neighbours
        x = c(tfl.ReverseV2((axis,)), x)
    return x


@lowers(ops.Gather)
def gather(c: Lowering, op: ops.Gather, table: Value, indices: Value) -> Value:
    return c(tfl.Gather(op.axis), table, indices)


@lowers(ops.CastGather)
def cast_gather(c: Lowering, op: ops.CastGather, table: Value, indices: Value, *scales: Value) -> Value:
    """The kernel reads whole bytes of a row: an odd one gets a zero more, which is cut off again."""
    integers, width = c.array(table), table.shape[1]
    assert integers is not None
    if odd := integers.dtype == INT4 and width % 2:
        integers = np.concatenate([integers, np.zeros((len(integers), 1), INT4)], 1)
    rows = c(
        tfl.EmbeddingLookup(), c.reshape(indices, (indices.type.size,)), c.quantized(integers, UNSCALED, table.name)
    )
    if odd:
        rows = c(tfl.Slice((0, 0), (indices.type.size, width)), rows)
    for each in scales:
        of = c(tfl.Gather(0), each, c.reshape(indices, (indices.type.size,)))
        of = c.reshape(of if of.dtype == FLOAT32 else c(tfl.Cast(FLOAT32), of), (*of.shape, 1))
        rows = c(tfl.Mul(), c.reshape(rows, (*of.shape[:2], width // each.shape[1])), of)
    return c.reshape(rows, (*indices.shape, width))


@lowers(ops.ScatterAdd)
def scatter_add(c: Lowering, op: ops.ScatterAdd, indices: Value, updates: Value) -> Value:
    """SCATTER_ND adds duplicates, and is 50 times faster than a product with ONE_HOT."""
    return c(tfl.ScatterNd((op.rows, *updates.shape[1:])), c.reshape(indices, (*indices.shape, 1)), updates)


@lowers(ops.SegmentMax, ops.SegmentMin, ops.SegmentProd)
def segment(c: Lowering, op: ops.Segment, indices: Value, updates: Value) -> Value:
    return c(_SEGMENTS[type(op)](op.rows), updates, indices)


@lowers(ops.TopIndices)
def top_indices(c: Lowering, op: ops.TopIndices, x: Value) -> Value:
    return c(tfl.TopKV2(op.k), x)[1]


@lowers(ops.UpdateSlice)
def update_slice(c: Lowering, op: ops.UpdateSlice, x: Value, update: Value, starts: Value) -> Value:
    return c(tfl.DynamicUpdateSlice(), x, update, starts)


@lowers(ops.Dropout, ops.Masked, ops.Activity, ops.Probe, ops.DerivedWhere)
def mark(c: Lowering, op: ops.Mark, x: Value, *others: Value) -> Value:
    """In inference; a training step and its loss have read it."""
    return x


@lowers(ops.CustomGradient)
def custom_gradient(c: Lowering, op: ops.CustomGradient, *operands: Value) -> tuple[Value, ...]:
    return operands[op.arguments + op.residuals :]
