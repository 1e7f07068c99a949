"""Last products of outputs: those with a weight that no other such product follows on any way to the output."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from converter.ir import Graph, Node, Value, reachable
from converter.ir.graph import dependents


class Ends(NamedTuple):
    """Names of outputs, in relation to a parameter; see `Member`."""

    outputs: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()
    follows: frozenset[str] = frozenset()


#: Of a parameter on which no output depends.
NOWHERE = Ends()


def ends_of(graph: Graph, outputs: Collection[str], multiplies: Callable[[Node, Value], bool]) -> dict[Value, Ends]:
    """Return for each parameter on which outputs depend, which these are, and what it is to them.

    Args:
        graph: of the model.
        outputs: names of those to look at.
        multiplies: whether a node multiplies by an operand as by a weight.
    """
    fed = dependents(graph, graph.inputs)
    weights = {node: with_them for node in graph.nodes if (with_them := _weights(graph, node, fed, multiplies))}
    found: dict[Value, Ends] = {}
    for name, output in graph.outputs.items():
        if name not in outputs:
            continue
        last, needed = _last(graph, output, weights), reachable(graph, [output])
        after = dependents(graph, [value for node in last for value in node.outputs])
        on_the_way = [node for node in graph.nodes if not after.isdisjoint(node.inputs) and needed & {*node.outputs}]
        ends = {value for node in last for value in weights[node]}
        follows = reachable(graph, [v for node in on_the_way for v in node.inputs if v not in fed])
        for value in graph.parameters.keys() & needed:
            each = found.get(value, NOWHERE)
            found[value] = Ends(
                each.outputs | {name},
                each.ends | {name} if value in ends else each.ends,
                each.follows | {name} if value in follows else each.follows,
            )
    return found


def _weights(graph: Graph, node: Node, fed: set[Value], multiplies: Callable[[Node, Value], bool]) -> set[Value]:
    """Return the parameters that a product is a product with, whether it reads them or what is computed of them."""
    if fed.isdisjoint(node.inputs):
        return set()
    read = [value for value in node.inputs if value not in fed and multiplies(node, value)]
    return reachable(graph, read) & graph.parameters.keys() if read else set()


def _last(graph: Graph, output: Value, products: Collection[Node]) -> list[Node]:
    """Return the products on which an output depends, and none of whose results another one is computed with."""
    needed, followed, last = {output}, set[Value](), list[Node]()
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        needed.update(node.inputs)
        is_followed = not followed.isdisjoint(node.outputs)
        if node in products and not is_followed:
            last.append(node)
        if node in products or is_followed:
            followed.update(node.inputs)
    return last
