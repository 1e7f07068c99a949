"""Dropout and noise while a model trains: random numbers (`converter.ir.random_numbers`), new in each call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from converter.ir import FLOAT32, Builder, Graph, Node, Parameter, Value, nested, ops
from converter.ir.random_numbers import call_key, random_bits
from converter.ir.rewrite import Rewriter, map_bodies, rewrite
from converter.support.errors import UnsupportedError, UnsupportedSite
from converter.support.notes import Note

_RANDOM = (ops.Dropout, ops.InTraining)


def dropouts(graph: Graph) -> list[Node]:
    """Return where a graph drops elements in training, or adds noise."""
    return [node for inner in nested(graph) for node in inner.nodes if isinstance(node.op, _RANDOM)]


def without_dropout(graph: Graph) -> Graph:
    """Return the graph in which nothing is dropped in training either."""
    graph = map_bodies(graph, without_dropout)
    return rewrite(graph, lambda b, node: node.inputs[0] if isinstance(node.op, _RANDOM) else None)


def with_masks(graph: Graph, counter: Value, parameter: Parameter) -> Graph:
    """Return the graph as it trains: elements dropped, and the rest scaled so that their mean stays.

    Raises:
        UnsupportedError: something is dropped within a loop that stays one, where each step would drop the same.
    """
    if inside := [node for node in dropouts(graph) if node not in graph.nodes]:
        reason, advice = (
            "dropout within a long loop",
            "apply dropout before or after the loop, or build with dropout='off'",
        )
        sites = [UnsupportedSite("dropout", n.origin.layer, n.origin.source, reason, advice) for n in inside]
        where = ", ".join(sorted({str(node.origin) for node in inside}))
        raise UnsupportedError(
            f"{reason}, {where}, would drop the same elements in each step: {advice}", sites, page="dropout"
        )
    counted = graph.copy()
    counted.parameters[counter] = parameter

    def drop(b: Rewriter, node: Node) -> Value | None:
        if isinstance(node.op, ops.InTraining):
            return node.inputs[1]
        if isinstance(node.op, ops.CallKey):
            return b.reshape(call_key(b, counter, node.op.key), ())
        if not isinstance(node.op, ops.Dropout):
            return None
        x = node.inputs[0]
        return b(ops.Chosen(mask=1), x, _mask(b, node.op, x.shape, counter))

    b = Builder(rewrite(counted, drop))
    b.graph.updates[counter] = b(ops.Add(), counter, 1.0)
    return b.graph


def dropout_notes(nodes: Sequence[Node], trains: bool) -> list[Note]:
    """Return what to say of each."""
    status, why = (
        ("trains", "random numbers of its own in each step") if trains else ("left out", "dropout='train' drops")
    )
    said = [Note(n.origin.layer or "model", status, f"{n.op.said}: {why}") for n in nodes]
    return list(dict.fromkeys(said))  # of a recurrent cell each gate has masks


def _mask(b: Builder, op: ops.Dropout, shape: tuple[int, ...], counter: Value) -> Value:
    """0 for what is dropped, else 1 / (1 - rate)."""
    if op.rate >= 1:
        return b.constant(np.zeros((1,) * len(shape), np.float32))
    shape = tuple(1 if axis in op.shared else size for axis, size in enumerate(shape))
    bits = random_bits(b, b.reshape(call_key(b, counter, op.key), ()), shape)
    kept = b(ops.GreaterEqual(), bits, b.constant(np.int32(round(op.rate * 2**32) - 2**31)))
    return b(ops.Mul(), b(ops.Cast(FLOAT32), kept), 1 / (1 - op.rate))
