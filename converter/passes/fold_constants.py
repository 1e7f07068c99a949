"""Constant folding: evaluates at compile time what depends on constants only."""

from __future__ import annotations

from converter.ir import Graph, Node, Value, known_result, ops
from converter.ir.rewrite import Rewriter, rewrite

#: A constant that only repeats another one is not worth more bytes in the file than this.
LARGEST_REPEATED = 4096


def fold_constants(graph: Graph) -> Graph:
    """Replaces nodes whose operands are all constants by their value; loops, which may be long, are left to run.

    Before: scale = Rsqrt(Add(variance, 1e-3)) * gamma, all frozen.   After: one constant.
    """

    def fold(b: Rewriter, node: Node) -> Value | None:
        if not node.op.folds:
            return None
        arrays = [array for v in node.inputs if (array := b.array(v)) is not None]
        if len(node.outputs) != 1 or not arrays or len(arrays) < len(node.inputs) or node.op.bodies():
            return None
        if isinstance(node.op, ops.BroadcastTo) and node.output.type.nbytes > LARGEST_REPEATED:
            return None
        result = known_result(node.op, node.output.type, *arrays)
        return None if result is None else b.constant(result, dtype=node.output.dtype, name=node.output.name)

    return rewrite(graph, fold)
