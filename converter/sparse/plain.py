"""The model without its adapters, for export: its weights take up W + alpha / rank * A B when they are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from converter.ir import Graph, Node, Parameter, Value, ops
from converter.passes import (
    absorb_layout,
    fold_affine,
    fold_constants,
    merge_common_subexpressions,
    simplify,
)
from converter.passes.rewrite import Rewriter, rewrite
from converter.sparse.adapt import Adapter
from converter.sparse.scheme import Row
from converter.sparse.select import select


@dataclass(frozen=True)
class Plain:
    """A model without adapters.

    Attributes:
        graph: a forward graph; the weights to be merged are parameters of kind `merged`.
        adapters: what is to be merged, by the name of the weight.
    """

    graph: Graph
    adapters: dict[str, Adapter]


def plain(forward: Graph, rows: Sequence[Row], adapters: Sequence[Adapter], absorbs: bool) -> Plain:
    """What is exported of a model with adapters.

    Args:
        forward: the model before it was adapted.
        rows: the resolved scheme.
        adapters: of its weights.
        absorbs: whether the other parameters are stored as their consumers read them.
    """
    names = {adapter.weight for adapter in adapters}
    laid = absorb_layout(forward if not absorbs else absorb_layout(forward), names)
    laid = absorb_layout(_outputs_first(laid, names), names)
    weights = {v: replace(p, kind="merged") for v, p in laid.parameters.items() if p.name in names}
    # Nothing is computed of a weight that is not known yet, but scales go where they would go if it was.
    graph = fold_constants(_unknown(select(laid, list(rows)), weights))
    graph = _unknown(fold_affine(_known(graph, weights)), weights)
    folded = fold_constants(merge_common_subexpressions(graph))
    return Plain(merge_common_subexpressions(simplify(folded)), {a.weight: a for a in adapters})


def _outputs_first(graph: Graph, names: Iterable[str]) -> Graph:
    """Matrices as FULLY_CONNECTED reads them, [outputs, inputs]."""
    weights = {v for v, p in graph.parameters.items() if p.name in names}

    def turn(b: Rewriter, node: Node) -> Value | None:
        match node.op, node.inputs:
            case ops.MatMul(adj_x=False, adj_y=False), (x, w) if w in weights and len(w.shape) == 2:
                return b(ops.MatMul(adj_y=True), x, b.transpose(w, (1, 0)))
        return None

    return rewrite(graph, turn)


def _unknown(graph: Graph, weights: dict[Value, Parameter]) -> Graph:
    after = graph.copy()
    after.constants = {v: array for v, array in graph.constants.items() if v not in weights}
    after.parameters |= weights
    return after


def _known(graph: Graph, weights: dict[Value, Parameter]) -> Graph:
    after = graph.copy()
    after.parameters = {v: p for v, p in graph.parameters.items() if v not in weights}
    after.constants |= {v: p.value for v, p in weights.items()}
    return after
