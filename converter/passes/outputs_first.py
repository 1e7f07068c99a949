"""Stores matrices of dense layers as [outputs, inputs]."""

from __future__ import annotations

from collections.abc import Container

from converter.ir import Graph, Node, Value, ops
from converter.ir.rewrite import Rewriter, rewrite
from converter.passes.absorb_layout import absorb_layout


def outputs_first(graph: Graph, names: Container[str]) -> Graph:
    """Turns the matrices of these names that dense layers multiply with.

    Before: MatMul(x, w [I,O]).   After: MatMul(x, w [O,I], adj_y), shown [I,O] as ever.
    """
    weights = {v for v, p in graph.parameters.items() if p.name in names}

    def turn(b: Rewriter, node: Node) -> Value | None:
        match node.op, node.inputs:
            case ops.MatMul(adj_x=False, adj_y=False), (x, w) if w in weights and len(w.shape) == 2:
                return b(ops.MatMul(adj_y=True), x, b.transpose(w, (1, 0)))
        return None

    return absorb_layout(rewrite(graph, turn), names)
