"""Matrix products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.legalize.pattern import avoids, flat, is_constant, repeated, reshaped
from converter.ir import Node, Value
from converter.ir.rewrite import Rewriter

#: Rows and columns of the largest matrix that an engine keeps as one texture: 4 times 8192.
_WIDEST = 32768
_BLOCK = 16384


def swapped(b: Rewriter, x: Value) -> Value:
    """The last two axes exchanged."""
    rank, array = x.type.rank, b.array(x)
    if array is not None:
        return b.constant(np.swapaxes(array, -1, -2), name=x.name)
    return b(tfl.Transpose((*range(rank - 2), rank - 1, rank - 2)), x)


def _turns_beside_a_constant(b: Rewriter, node: Node) -> bool:
    return isinstance(node.op, tfl.BatchMatmul) and (node.op.adj_x or node.op.adj_y) and is_constant(b, node.inputs[1])


@avoids(
    "matmul-constant-transposed",
    "GPU: BATCH_MATMUL of [4,5] and a constant [6,5] with adj_y, of [5,4] with adj_x and a constant [5,6]: wrong, "
    "errors of 1.4; of a constant [5,6] and neither: right",
    _turns_beside_a_constant,
)
def transposed_before(b: Rewriter, node: Node) -> Value:
    """The constant at compile time, the other operand by a TRANSPOSE."""
    x, w = node.inputs
    return b(tfl.BatchMatmul(), swapped(b, x) if node.op.adj_x else x, swapped(b, w) if node.op.adj_y else w)


@avoids(
    "matmul-constant-first",
    "GPU: BATCH_MATMUL of a constant [4,5] and [5,6]: refused",
    lambda b, node: isinstance(node.op, tfl.BatchMatmul) and is_constant(b, node.inputs[0]),
)
def with_the_constant_second(b: Rewriter, node: Node) -> Value:
    """X W as the transposed product of W and X transposed."""
    x, w = node.inputs
    left = w if node.op.adj_y else swapped(b, w)
    return swapped(b, b(tfl.BatchMatmul(), left, x if node.op.adj_x else swapped(b, x)))


def _differ_in_batch(b: Rewriter, node: Node) -> bool:
    if not isinstance(node.op, tfl.BatchMatmul):
        return False
    x, w = node.inputs
    return x.shape[:-2] != w.shape[:-2] and not (is_constant(b, w) and w.type.rank == 2)


@avoids(
    "matmul-unequal-batch",
    "GPU: BATCH_MATMUL of [2,4,5] and [5,6], [4,5] and [2,5,6], [2,1,4,5] and [3,5,6], neither a constant matrix: "
    "wrong, errors of 1; of equal leading axes: right",
    _differ_in_batch,
)
def of_equal_batch(b: Rewriter, node: Node) -> Value:
    """A matrix for all: the rows of the other operand as one matrix. Else both operands as large as the result."""
    x, w = node.inputs
    adj_x, adj_y = node.op.adj_x, node.op.adj_y
    if w.type.rank == 2:
        rows = swapped(b, x) if adj_x else x
        made = b(tfl.BatchMatmul(False, adj_y), reshaped(b, rows, flat(rows.shape)), w)
        return reshaped(b, made, node.output.shape)
    if x.type.rank == 2:
        columns = w if adj_y else swapped(b, w)
        made = b(tfl.BatchMatmul(False, not adj_x), reshaped(b, columns, flat(columns.shape)), x)
        return swapped(b, reshaped(b, made, (*columns.shape[:-1], made.shape[-1])))
    batch = node.output.shape[:-2]
    return b(node.op, *(repeated(b, v, (*batch, *v.shape[-2:])) for v in (x, w)))


def _has_an_odd_bias(b: Rewriter, node: Node) -> bool:
    if not isinstance(node.op, tfl.FullyConnected):
        return False
    return len(node.inputs) == 3 and not all(is_constant(b, v) for v in node.inputs[1:])


@avoids(
    "fully-connected-runtime",
    "GPU: FULLY_CONNECTED with a bias where the weights train: wrong, errors of 1.2; where the bias trains: refused, "
    "or SIGABRT; without a bias: right",
    _has_an_odd_bias,
)
def bias_added(b: Rewriter, node: Node) -> Value:
    """Without a bias, and an ADD, which has the activation."""
    x, w, bias = node.inputs
    return b(tfl.Add(node.op.activation), b(replace(node.op, activation="NONE"), x, w), bias)


def _is_wide(b: Rewriter, node: Node) -> bool:
    if not isinstance(node.op, (tfl.BatchMatmul, tfl.FullyConnected)):
        return False
    return max(node.inputs[1].shape[-2:]) > _WIDEST


@avoids(
    "matmul-wide",
    "GPU: BATCH_MATMUL of [4,8] and [8,33000], [4,33000] and [33000,8]: the engine says that it runs, and the result "
    "is zeros (Texture size exceeded maximum); up to 32768: right, and rows of the first operand up to 128000. Of a "
    "constant too, where the first has more than 8 rows",
    _is_wide,
)
def in_blocks(b: Rewriter, node: Node) -> Value | None:
    """Blocks of columns one beside the other, and blocks of rows summed up."""
    (x, w, *bias), op = node.inputs, node.op
    if isinstance(op, tfl.FullyConnected):
        if bias:
            return b(tfl.Add(op.activation), b(replace(op, activation="NONE"), x, w), *bias)
        if op.activation != "NONE" or x.type.rank != 2:
            return None
        op = tfl.BatchMatmul(adj_y=True)
    columns, rows = w.type.rank - (2 if op.adj_y else 1), w.type.rank - (1 if op.adj_y else 2)
    if w.shape[columns] > _WIDEST:
        parts = [b(op, x, part) for part in _blocks(b, w, columns)]
        return b(tfl.Concatenation(node.output.type.rank - 1), *parts)
    lefts = _blocks(b, x, x.type.rank - (2 if op.adj_x else 1))
    first, *others = (b(op, *pair) for pair in zip(lefts, _blocks(b, w, rows), strict=True))
    for part in others:
        first = b(tfl.Add(), first, part)
    return first


def _blocks(b: Rewriter, x: Value, axis: int) -> list[Value]:
    """Equal parts of a tensor along an axis, the last one smaller."""
    parts = []
    for begin in range(0, x.shape[axis], _BLOCK):
        start = tuple(begin if k == axis else 0 for k in range(x.type.rank))
        size = tuple(min(_BLOCK, n - begin) if k == axis else n for k, n in enumerate(x.shape))
        parts.append(b(tfl.Slice(start, size), x))
    return parts
