"""Raising: chains of primitives that spell out a known function become one semantic op.

Each form is recognised by what the graph computes, never by the name of a function: `pointwise_forms` compares values
and derivatives on sample points, `row_forms` matches the structure of softmaxes and normalisations.
"""

from __future__ import annotations

from converter.ir import Graph, Node, Value
from converter.ir.rewrite import Rewriter, rewrite
from converter.passes import merge_common_subexpressions
from converter.passes.raising.norm_forms import layer_norm, rms_norm
from converter.passes.raising.pointwise_forms import PointwiseForms
from converter.passes.raising.row_forms import cross_entropy, log_softmax, log_sum_exp, one_hot, picked, softmax

#: Tried in this order on every node.
ROW_FORMS = (softmax, log_softmax, log_sum_exp, cross_entropy, one_hot, layer_norm, rms_norm)


def raise_forms(graph: Graph) -> Graph:
    """The same function in semantic ops; parameters that nothing reads are kept."""
    pointwise = PointwiseForms()

    def rule(b: Rewriter, node: Node) -> Value | None:
        if len(node.outputs) != 1:
            return None
        made = next(filter(None, (form(b, node) for form in ROW_FORMS)), None)
        return made if made is not None else pointwise(b, node)

    raised = rewrite(merge_common_subexpressions(graph), rule)
    raised = rewrite(raised, picked)  # of what is in none of these forms
    raised.parameters = dict(graph.parameters)
    return raised
