"""Data movement."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.legalize.pattern import avoids, flat, is_constant, reshaped
from converter.backend.legalize.ranks import fewer
from converter.ir import BOOL, FLOAT32, INT32, Node, Value
from converter.ir.rewrite import Rewriter


@avoids(
    "pad-below-rank-4",
    "GPU: PAD of [8,3,64] along any axis: wrong, errors of 1.7; of [8,64]: refused; of [1,8,3,64]: right",
    lambda b, node: isinstance(node.op, tfl.Pad) and node.inputs[0].type.rank < 4,
)
def padded_at_rank_4(b: Rewriter, node: Node) -> Value:
    """With ones before the shape."""
    (x,) = node.inputs
    more = 4 - x.type.rank
    wide = b(replace(node.op, paddings=((0, 0),) * more + node.op.paddings), reshaped(b, x, (1,) * more + x.shape))
    return reshaped(b, wide, node.output.shape)


@avoids(
    "pad-last-axis",
    "Hexagon: PAD of the last axis, of what was computed, in an ADD with another, as the gradients of slices are: of "
    "[2,5,16], [2,4,6,8] and most others: wrong, errors of 1 to 200; of other axes, so of [10,16,1]: right",
    lambda b, node: isinstance(node.op, tfl.Pad) and any(node.op.paddings[-1]) and node.output.shape[-1] > 1,
)
def padded_before_the_last(b: Rewriter, node: Node) -> Value:
    """With an axis of size 1 after it."""
    (x,), (*others, last) = node.inputs, node.op.paddings
    if any(map(any, others)):
        x = b(replace(node.op, paddings=(*others, (0, 0))), x)
    rows = reshaped(b, x, (*flat(x.shape), 1))
    return reshaped(b, b(replace(node.op, paddings=((0, 0), last, (0, 0))), rows), node.output.shape)


@avoids(
    "space-to-depth",
    "GPU: SPACE_TO_DEPTH, DEPTH_TO_SPACE: the shader is invalid WGSL (:14:1 error: invalid character found), the "
    "engine says that it runs, and the result is zeros",
    lambda b, node: isinstance(node.op, tfl.SpaceToDepth | tfl.DepthToSpace),
)
def blocks_by_transposition(b: Rewriter, node: Node) -> Value:
    """RESHAPE, TRANSPOSE of the block's row past the columns, RESHAPE."""
    (x,), block = node.inputs, node.op.block
    n, h, w, c = x.shape
    if isinstance(node.op, tfl.SpaceToDepth):
        rows = reshaped(b, x, (n * h // block, block, w // block, block * c))
    else:
        rows = reshaped(b, x, (n * h, w, block, c // block))
    return reshaped(b, b(tfl.Transpose((0, 2, 1, 3)), rows), node.output.shape)


@avoids(
    "broadcast-to",
    "GPU: BROADCAST_TO: refused (Operation is not supported). Hexagon: before or behind a MUL with 0.5: what lies in "
    "memory behind x, errors of 540; behind an ADD, or before a MUL of two tensors: right",
    lambda b, node: isinstance(node.op, tfl.BroadcastTo),
)
def repeated_by_ones(b: Rewriter, node: Node) -> Value | None:
    """A product with ones along the axes that are repeated."""
    (x,) = node.inputs
    shapes = fewer([x.shape, node.op.shape])
    if x.dtype == BOOL or shapes is None:
        return None
    small, large = shapes
    ones = tuple(n if m == 1 else 1 for m, n in zip(small, large, strict=True))
    return reshaped(b, b(tfl.Mul(), reshaped(b, x, small), b.constant(np.ones(ones, x.dtype))), node.op.shape)


@avoids(
    "gather-2d-indices",
    "GPU: GATHER with indices [2,16]: refused (Only support 1D indices)",
    lambda b, node: isinstance(node.op, tfl.Gather) and node.inputs[1].type.rank != 1,
)
def gathered_by_a_vector(b: Rewriter, node: Node) -> Value:
    """The rows one after the other."""
    table, indices = node.inputs
    return reshaped(b, b(node.op, table, reshaped(b, indices, (indices.type.size,))), node.output.shape)


def _gathers_known_rows(b: Rewriter, node: Node) -> bool:
    if not isinstance(node.op, tfl.Gather):
        return False
    table, indices = node.inputs
    return is_constant(b, indices) and indices.type.size > 1 and not is_constant(b, table)


@avoids(
    "gather-constant-indices",
    "@litertjs/core: GATHER of [9,4] with a constant [42], along any axis: it gives up (Unable to parse bc coord for "
    "BATCH axis); with a constant [1], or with [42] that is made at run time: right",
    _gathers_known_rows,
)
def gathered_by_what_is_made_late(b: Rewriter, node: Node) -> Value:
    """The indices and 1 if max(x, 0) < 0 else 0, which is 0 whatever the table's first element x is."""
    table, indices = node.inputs
    one = reshaped(b, b(tfl.Slice((0,) * table.type.rank, (1,) * table.type.rank), table), (1,))
    zero = b.constant(np.zeros(1, table.dtype))
    nothing = b(tfl.Cast(INT32), b(tfl.Less(), b(tfl.Maximum(), one, zero), zero))
    rows = b(node.op, table, b(tfl.Add(), nothing, reshaped(b, indices, (indices.type.size,))))
    return reshaped(b, rows, node.output.shape)


@avoids(
    "one-hot-2d-indices",
    "@litertjs/core: ONE_HOT of [2,16]: refused (Unsupported non-singleton dim at 0); of [32]: right. Hexagon: of "
    "[2,3,4]: Qualcomm's compiler gives up",
    lambda b, node: isinstance(node.op, tfl.OneHot) and node.inputs[0].type.rank != 1,
)
def one_hot_of_a_vector(b: Rewriter, node: Node) -> Value:
    """The rows one after the other."""
    (indices,) = node.inputs
    return reshaped(b, b(node.op, reshaped(b, indices, (indices.type.size,))), node.output.shape)


@avoids(
    "scatter-nd",
    "GPU: SCATTER_ND: refused (Operation is not supported); ONE_HOT and BATCH_MATMUL: right",
    lambda b, node: isinstance(node.op, tfl.ScatterNd),
)
def scattered_by_a_product(b: Rewriter, node: Node) -> Value | None:
    """Each row of the result is the sum of the updates whose index is its number.

    Whole numbers that are known, as the places of chosen channels, in float32, which has those below 2^24 exactly.
    """
    indices, updates = node.inputs
    if updates.dtype != FLOAT32:
        array = b.array(updates)
        if array is None or np.abs(array.astype(float)).sum() >= 2**24:
            return None
        updates = b.constant(array.astype(np.float32), name=updates.name)
    hot = b(tfl.OneHot(node.op.shape[0]), reshaped(b, indices, (indices.type.size,)))
    rows = reshaped(b, updates, (updates.shape[0], prod(updates.shape[1:])))
    summed = reshaped(b, b(tfl.BatchMatmul(adj_x=True), hot, rows), node.op.shape)
    return summed if summed.dtype == node.output.dtype else b(tfl.Cast(node.output.dtype), summed)


@avoids(
    "cumsum-first-axis",
    "GPU: CUMSUM of [3], [2,3] or [2,3,4] along axis 0: wrong, errors of 0.9; along others: right",
    lambda b, node: isinstance(node.op, tfl.CumSum) and node.op.axis == 0 and node.inputs[0].type.rank < 4,
)
def summed_up_behind_an_axis(b: Rewriter, node: Node) -> Value:
    """Along the second axis of [1, ...]."""
    (x,) = node.inputs
    rows = b(replace(node.op, axis=1), reshaped(b, x, (1, *x.shape)))
    return reshaped(b, rows, x.shape)


@avoids(
    "cumsum-reverse",
    "GPU: CUMSUM from the end, of [2,3] along axis 1: wrong, errors of 1.6; from the beginning: right. Hexagon: "
    "Qualcomm's compiler gives up",
    lambda b, node: isinstance(node.op, tfl.CumSum) and node.op.reverse,
)
def turned_around_twice(b: Rewriter, node: Node) -> Value:
    """The sum of the reversed, reversed."""
    turn = tfl.ReverseV2((node.op.axis % node.inputs[0].type.rank,))
    return b(turn, b(replace(node.op, reverse=False), b(turn, node.inputs[0])))


@avoids(
    "zeros",
    "GPU: PAD of a constant: refused (Expected 1 runtime input tensor(s), but node has 0 runtime input(s))",
    lambda b, node: isinstance(node.op, tfl.Zeros),
)
def stored_zeros(b: Rewriter, node: Node) -> Value:
    """A constant."""
    return b.constant(np.zeros(node.output.shape, node.output.dtype), name="zeros")


@avoids(
    "argmax-last-axis",
    "GPU: ARG_MAX of [8,2] along axis 1 where all are negative: wrong, the zeros that fill up four channels win; "
    "along other axes: right",
    lambda b, node: isinstance(node.op, tfl.ArgMax) and node.op.axis == node.inputs[0].type.rank - 1,
)
def of_the_axis_before(b: Rewriter, node: Node) -> Value:
    """Of [1, rows, n, 1] along axis 2."""
    (x,) = node.inputs
    found = b(tfl.ArgMax(2), reshaped(b, x, (1, prod(x.shape[:-1]), x.shape[-1], 1)))
    return reshaped(b, found, node.output.shape)


@avoids(
    "reverse-last-axis",
    "GPU: REVERSE_V2 of [2,3,4,5] along axis 3: wrong, errors of 1; along others: right",
    lambda b, node: isinstance(node.op, tfl.ReverseV2) and node.inputs[0].type.rank == 4 and 3 in node.op.axes,
)
def reversed_one_by_one(b: Rewriter, node: Node) -> Value:
    """The last axis as that before the last."""
    (x,) = node.inputs
    rows = b(tfl.ReverseV2((2,)), reshaped(b, x, (1, prod(x.shape[:3]), x.shape[3], 1)))
    others = tuple(axis for axis in node.op.axes if axis != 3)
    rows = reshaped(b, rows, x.shape)
    return b(tfl.ReverseV2(others), rows) if others else rows


@avoids(
    "softmax-vector",
    "GPU: SOFTMAX of [3]: wrong, errors of 1.1; of [1,3]: right",
    lambda b, node: isinstance(node.op, tfl.Softmax) and node.inputs[0].type.rank == 1,
)
def softmax_of_one_row(b: Rewriter, node: Node) -> Value:
    """Of [1, n]."""
    (x,) = node.inputs
    return reshaped(b, b(node.op, reshaped(b, x, (1, *x.shape))), x.shape)
