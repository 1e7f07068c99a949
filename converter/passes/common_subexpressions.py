"""Computes equal things once."""

from __future__ import annotations

from converter.ir import Graph, Node, Value
from converter.ir.rewrite import Rewriter, rewrite


def merge_common_subexpressions(graph: Graph) -> Graph:
    """Nodes with the same op and the same operands become one.

    The backward pass asks for things the forward pass has computed already (a softmax, a reshaped activation). What
    only copies elements is made again there: kept, it would be a residual.
    """
    seen: dict[tuple, tuple[Value, ...]] = {}

    def merge(b: Rewriter, node: Node) -> tuple[Value, ...] | None:
        key = (node.op, node.origin.phase if node.op.copies() else "", *node.inputs)
        if not node.outputs or key not in seen:
            seen[key] = node.outputs
            return None
        return seen[key]

    return rewrite(graph, merge)
