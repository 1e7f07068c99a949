"""Evaluates at compile time what depends on constants only."""

from __future__ import annotations

from converter.ir import Graph, Node, Value, ops
from converter.passes.rewrite import Rewriter, rewrite

#: A constant that only repeats another one is not worth more bytes in the file than this.
LARGEST_REPEATED = 4096


def fold_constants(graph: Graph) -> Graph:
    """Replaces nodes whose operands are all constants by their value; loops, which may be long, are left to run.

    Before: scale = Rsqrt(Add(variance, 1e-3)) * gamma, all frozen.   After: one constant.
    """

    def fold(b: Rewriter, node: Node) -> Value | None:
        arrays = [b.array(v) for v in node.inputs]
        if len(node.outputs) != 1 or not arrays or any(a is None for a in arrays) or node.op.bodies():
            return None
        if isinstance(node.op, ops.BroadcastTo) and node.output.type.nbytes > LARGEST_REPEATED:
            return None
        return b.constant(node.op.evaluate(*arrays), dtype=node.output.dtype, name=node.output.name)

    return rewrite(graph, fold)
