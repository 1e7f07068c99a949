"""Merged model without adapters, for export: weights take up W + alpha / rank * A B when they are known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from converter.ir import Graph, Parameter, Value
from converter.passes import (
    absorb_layout,
    fold_affine,
    fold_constants,
    merge_common_subexpressions,
    outputs_first,
    simplify,
)
from converter.training.schemes.adapt import Adapter
from converter.training.schemes.scheme import SchemeRow
from converter.training.schemes.select import select


@dataclass(frozen=True)
class Plain:
    """A model without adapters.

    Attributes:
        graph: a forward graph; the weights to be merged are parameters of kind `merged`.
        adapters: what is to be merged, by the name of the weight.
    """

    graph: Graph
    adapters: dict[str, Adapter]


def plain(
    forward: Graph, rows: Sequence[SchemeRow], adapters: Sequence[Adapter], absorbs: bool, transposed: Collection[str]
) -> Plain:
    """Return what is exported of a model with adapters.

    Args:
        forward: the model before it was adapted.
        rows: the resolved scheme.
        adapters: of its weights.
        absorbs: whether the other parameters are stored as their consumers read them.
        transposed: names of those among them, matrices, that are then stored as [outputs, inputs].
    """
    names = {adapter.weight for adapter in adapters}
    laid = absorb_layout(forward if not absorbs else absorb_layout(forward), names)
    laid = outputs_first(laid, names.union(transposed if absorbs else ()))
    weights = {v: replace(p, kind="merged") for v, p in laid.parameters.items() if p.name in names}
    # Nothing is computed of a weight that is not known yet, but scales go where they would go if it was.
    graph = fold_constants(_unknown(select(laid, list(rows)), weights))
    graph = _unknown(fold_affine(_known(graph, weights)), weights)
    folded = fold_constants(merge_common_subexpressions(graph))
    return Plain(merge_common_subexpressions(simplify(folded)), {a.weight: a for a in adapters})


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
