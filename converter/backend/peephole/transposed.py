"""Transposes: what several products read transposed is transposed once, and integers before they are numbers."""

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


def transposed_as_integers(graph: Graph) -> Graph:
    """Integers are transposed in place of the numbers that they stand for: a quarter of the bytes until then.

    Before: Transpose(Dequantize(q)).   After: Dequantize(Transpose(q)).
    """

    def rule(b: Rewriter, node: Node) -> Value | None:
        made = b.producer(node.inputs[0], tfl.Dequantize) if isinstance(node.op, tfl.Transpose) else None
        scale = made.inputs[0].type.quantization if made is not None else None
        if made is None or scale is None or scale.per_channel or made.inputs[0] in b.graph.constants:
            return None
        return b(made.op, b(tfl.Int8((scale,), node.op, scale), made.inputs[0]))

    return rewrite(map_bodies(graph, transposed_as_integers), rule)


def _reads_transposed(node: Node) -> bool:
    return isinstance(node.op, tfl.BatchMatmul) and node.op.adj_x and node.inputs[0].dtype == FLOAT32
