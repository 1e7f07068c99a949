"""Common subexpression elimination: computes equal things once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from converter.ir import Graph, Node, Value
from converter.ir.rewrite import Rewriter, rewrite


def merge_common_subexpressions(graph: Graph, made_again: Callable[[Any], bool] = lambda op: False) -> Graph:
    """Merge nodes with the same op and the same operands.

    The backward pass asks for things the forward pass has computed already (a softmax, a reshaped activation).

    Args:
        graph: of either level.
        made_again: which ops are computed again in each phase of a step, as what only copies elements: kept, it would
            be a residual.
    """
    seen: dict[tuple, tuple[Value, ...]] = {}

    def merge(b: Rewriter, node: Node) -> tuple[Value, ...] | None:
        key = (node.op, node.origin.phase if made_again(node.op) else "", *node.inputs)
        if not node.outputs or not node.op.merges or key not in seen:
            seen[key] = node.outputs
            return None
        return seen[key]

    return rewrite(graph, merge)
