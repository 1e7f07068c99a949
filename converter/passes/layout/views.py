"""Views of values: what transposes and reshapes make is the value before them, lying otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from converter.ir import Graph, Node, Value, ops
from converter.passes.layout.memory import Memory, compose, natural, transposed


@dataclass(frozen=True)
class View:
    """A value as another one that lies in some way.

    Attributes:
        root: what it is a view of; itself of what is computed.
        memory: how the root lies where the value, row by row, is stored.
        turns: how many transposes that move data are between the two.
    """

    root: Value
    memory: Memory
    turns: int = 0


@dataclass(frozen=True)
class Views:
    """All values of a graph as views.

    Attributes:
        of: the view of each value.
        computed: the nodes that are no views.
        made_by: the node that makes a value that is none.
        reads: for each root the nodes that read it or a view of it, which operand of theirs that is, and the operand.
        given: for each root the views of it that are outputs.
    """

    of: Mapping[Value, View]
    computed: list[Node]
    made_by: Mapping[Value, Node]
    reads: Mapping[Value, list[tuple[Node, int, Value]]]
    given: Mapping[Value, list[Value]]


def views_of(graph: Graph) -> Views:
    """Return the views of a graph. A transpose that cannot be told from the layout before it is computed."""
    of = {v: View(v, natural(v.type.size)) for v in (*graph.inputs, *graph.constants, *graph.parameters)}
    computed: list[Node] = []
    for node in graph.nodes:
        seen = _seen_through(node, of)
        if seen is None:
            computed.append(node)
            of |= {v: View(v, natural(v.type.size)) for v in node.outputs}
        else:
            of[node.output] = seen
    reads: dict[Value, list[tuple[Node, int, Value]]] = {}
    for node in computed:
        for place, value in enumerate(node.inputs):
            reads.setdefault(of[value].root, []).append((node, place, value))
    given: dict[Value, list[Value]] = {}
    for value in graph.results():
        given.setdefault(of[value].root, []).append(value)
    return Views(of, computed, {v: node for node in computed for v in node.outputs}, reads, given)


def moves_data(node: Node) -> bool:
    """Return whether a node is a transpose of more than axes of one element."""
    return isinstance(node.op, ops.Transpose) and len(transposed(node.inputs[0].shape, node.op.perm)) > 1


def _seen_through(node: Node, of: Mapping[Value, View]) -> View | None:
    if not isinstance(node.op, ops.Reshape | ops.Transpose) or not node.output.type.size:
        return None
    before = of[node.inputs[0]]
    if isinstance(node.op, ops.Reshape):
        return View(before.root, before.memory, before.turns)
    memory = compose(transposed(node.inputs[0].shape, node.op.perm), before.memory)
    return None if memory is None else View(before.root, memory, before.turns + moves_data(node))
