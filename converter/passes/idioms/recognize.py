"""Raising: chains of primitives that spell out a known function become one semantic op.

Each form is recognised by what the graph computes, never by the name of a function: `pointwise_forms` compares values
and derivatives on sample points, `row_forms` matches the structure of softmaxes and normalisations.
"""

from __future__ import annotations

from converter.ir import Graph, Node, Value, verify
from converter.ir.rewrite import Rewriter, map_bodies, rewrite
from converter.passes import merge_common_subexpressions
from converter.passes.idioms.norms import layer_norm, rms_norm
from converter.passes.idioms.pointwise import PointwiseForms
from converter.passes.idioms.softmax import cross_entropy, log_softmax, log_sum_exp, one_hot, picked, softmax
from converter.passes.idioms.with_layers import with_layers

#: Tried in this order on every node.
ROW_FORMS = (softmax, log_softmax, log_sum_exp, cross_entropy, one_hot, layer_norm, rms_norm)


def with_idioms(graph: Graph) -> Graph:
    """Return a graph as a front end imported it in semantic ops, with a layer on every node; it is verified."""
    return verify(with_layers(recognize_idioms(graph)), after="raising")


def recognize_idioms(graph: Graph) -> Graph:
    """Return the same function in semantic ops; parameters that nothing reads are kept."""
    pointwise = PointwiseForms()

    def rule(b: Rewriter, node: Node) -> Value | None:
        if len(node.outputs) != 1:
            return None
        made = next(filter(None, (form(b, node) for form in ROW_FORMS)), None)
        return made if made is not None else pointwise(b, node)

    with_idioms = rewrite(merge_common_subexpressions(graph), rule)
    with_idioms = rewrite(with_idioms, picked)  # of what is in none of these forms
    with_idioms.parameters = dict(graph.parameters)
    return map_bodies(with_idioms, recognize_idioms)
