"""Matrix products of which TensorFlow Lite Micro keeps a copy of an operand in its arena, for each operator."""

from __future__ import annotations

from math import prod

from converter.backend import builtins as tfl
from converter.backend.legalize.matrices import swapped
from converter.backend.legalize.pattern import avoids, reshaped
from converter.ir import Node, Value
from converter.ir.rewrite import Rewriter


def _keeps_a_copy(b: Rewriter, node: Node) -> bool:
    return isinstance(node.op, tfl.BatchMatmul) and (node.op.adj_x or not node.op.adj_y)


@avoids(
    "product-that-copies",
    "TFLM: BATCH_MATMUL of [64,125] and [125,64] with adj_x: right, and 64,064 bytes of the arena are kept for both "
    "operands transposed from the first call on; with adj_y alone, or TRANSPOSE and FULLY_CONNECTED: right, and none",
    _keeps_a_copy,
)
def transposed_before(b: Rewriter, node: Node) -> Value:
    """x w by FULLY_CONNECTED, which reads w transposed; transposed operands lie there for a while only.

    A column by a row is a MUL.
    """
    (x, w), op, result = node.inputs, node.op, node.output
    depth = x.shape[-2 if op.adj_x else -1]
    rows, columns = result.shape[-2:]
    if depth == 1 and prod(result.shape[:-2]) == 1:
        product = b(tfl.Mul(), reshaped(b, x, (rows, 1)), reshaped(b, w, (1, columns)))
        return reshaped(b, product, result.shape)
    left, right = swapped(b, x) if op.adj_x else x, w if op.adj_y else swapped(b, w)
    if right.type.rank == 2:
        return b(tfl.FullyConnected(keep_num_dims=result.type.rank > 2), left, right)
    return b(tfl.BatchMatmul(adj_y=True), left, right)
