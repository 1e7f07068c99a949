"""Dot products of flattened tensors, the same however the tensors are stored."""

from __future__ import annotations

from converter.ir import Graph, Node, Value, ops
from converter.ir.rewrite import Rewriter, rewrite


def summed_dots(graph: Graph) -> Graph:
    """Return the same function, where the dot product of two tensors of one shape is a sum over all their axes."""
    return rewrite(graph, _summed)


def _summed(b: Rewriter, node: Node) -> Value | None:
    if not isinstance(node.op, ops.MatMul) or node.output.type.size != 1:
        return None
    flattened = (b.producer(value, ops.Reshape) for value in node.inputs)
    x, y = (value if it is None else it.inputs[0] for value, it in zip(node.inputs, flattened, strict=True))
    if x.shape != y.shape:
        return None
    total = b(ops.Sum(tuple(range(len(x.shape)))), b(ops.Mul(), x, y))
    return b.reshape(total, node.output.shape)
