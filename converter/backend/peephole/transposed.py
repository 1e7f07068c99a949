"""Shared transposes: what several products read transposed is transposed once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from converter.backend import builtins as tfl
from converter.ir import FLOAT32, Graph, Node, Value
from converter.ir.rewrite import Rewriter, map_bodies, rewrite


def transposed_once(graph: Graph) -> Graph:
    """The left operand that several products read transposed is transposed once for all of them.

    Before: dq = x' @ d1; dk = x' @ d2.   After: xt = Transpose(x); dq = xt @ d1; dk = xt @ d2.

    XNNPACK turns the left operand for each product, as it reads it row by row; the right one it packs either way.
    """
    readers = Counter(node.inputs[0] for node in graph.nodes if _reads_transposed(node))
    transposed: dict[Value, Value] = {}

    def rule(b: Rewriter, node: Node) -> Value | None:
        x, w = node.inputs if _reads_transposed(node) else (None, None)
        if x is None or w is None or readers[x] < 2:
            return None
        if x not in transposed:
            *front, rows, columns = range(len(x.shape))
            transposed[x] = b(tfl.Transpose((*front, columns, rows)), x)
        return b(replace(node.op, adj_x=False), transposed[x], w)

    return rewrite(map_bodies(graph, transposed_once), rule)


def _reads_transposed(node: Node) -> bool:
    return isinstance(node.op, tfl.BatchMatmul) and node.op.adj_x and node.inputs[0].dtype == FLOAT32
