"""Linearity analysis: whether a result is a multiple of a value, which may then be multiplied in its place."""

from __future__ import annotations

from collections.abc import Container, Iterable

from converter.ir import Graph, Node, Value, dependents, reachable


def is_linear(graph: Graph, source: Value, results: Iterable[Value]) -> bool:
    """Return whether each of the results is multiplied by a number where `source` is, as the operators say.

    If in doubt, not.

    A gradient is so in the cotangent of its loss, unless a user's own derivative does otherwise, as one that clips.
    """
    results = list(results)
    moving, needed = dependents(graph, [source]), reachable(graph, results)
    if not moving.issuperset(results):
        return False
    nodes = (node for node in graph.nodes if not needed.isdisjoint(node.outputs))
    return all(_is_linear(node, [v in moving for v in node.inputs], graph) for node in nodes)


def _is_linear(node: Node, moving: list[bool], graph: Graph) -> bool:
    """Return whether what moves are operands that it is linear in together; others of these have to be 0."""

    def fits(group: Container[int]) -> bool:
        operands = enumerate(zip(moving, node.inputs, strict=True))
        return all(k in group if moved else k not in group or _is_zero(graph, v) for k, (moved, v) in operands)

    return not any(moving) or any(map(fits, node.op.linear_in))


def _is_zero(graph: Graph, value: Value) -> bool:
    array = graph.constants.get(value)
    return array is not None and not array.any()
