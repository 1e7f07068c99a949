"""Candidates: the other layout in which each node could work, as transposes before and after it suggest."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from converter.ir import Graph, Node, Value, ops
from converter.ir.ops.conv import Windowed
from converter.passes.layout.memory import Memory, compose, inverse, natural
from converter.passes.layout.moves import Bounds, Known, Moved, moved, moves
from converter.passes.layout.views import Views

#: What works on pictures in the layout that it wants, and in no other.
SPATIAL = (Windowed, ops.Pool)


@dataclass
class Candidates:
    """What could lie otherwise.

    Attributes:
        nodes: for a node the form in which it would work.
        parameters: how a parameter would lie.
        spatial: the nodes whose other form is that of a convolution or a pool near them.
    """

    nodes: dict[Node, Moved] = field(default_factory=dict)
    parameters: dict[Value, Memory] = field(default_factory=dict)
    spatial: set[Node] = field(default_factory=set)


def candidates_of(graph: Graph, views: Views, bounds: Bounds) -> Candidates:
    """Return the candidates of a graph: from convolutions and pools on, then from all other transposes."""
    found, settled = Candidates(), set[Node]()
    seeds = list(_seeds(views))
    for spatial in (True, False):
        waiting = deque((node, known) for node, known, near in seeds if near == spatial)
        while waiting:
            node, known = waiting.popleft()
            if node in found.nodes or node in settled:
                continue
            made = moved(node, known, bounds)
            if made is None:
                continue
            if made.changes:
                found.nodes[node] = made
                found.spatial |= {node} if spatial else set()
            elif spatial:
                settled.add(node)
            else:
                continue
            waiting += _neighbours(graph, views, node, made, found.parameters)
    return found


def _seeds(views: Views) -> Iterator[tuple[Node, Known, bool]]:
    """Yield what a view suggests of the node before it and of those after it, and whether a picture is read so.

    What reads or makes pictures as they are is to stay so.
    """
    for root, readers in views.reads.items():
        before = views.made_by.get(root)
        for node, place, value in readers:
            memory = views.of[value].memory
            moves_data = memory != natural(value.type.size)
            if not moves_data and len(value.shape) != len(root.shape):
                continue
            for_picture = isinstance(node.op, SPATIAL)
            of_picture = before is not None and isinstance(before.op, SPATIAL)
            if before is not None and moves(before) and (moves_data or for_picture):
                yield before, Known(None, memory, value.shape), for_picture
            if moves(node) and (moves_data or of_picture):
                yield node, Known(place, inverse(memory), root.shape), of_picture


def _neighbours(
    graph: Graph, views: Views, node: Node, made: Moved, parameters: dict[Value, Memory]
) -> Iterator[tuple[Node, Known]]:
    for value, memory, shape in zip(node.inputs, made.operands, made.shapes, strict=True):
        view = views.of[value]
        wanted = compose(memory, view.memory)
        before = views.made_by.get(view.root)
        if wanted is None:
            continue
        if before is not None:
            yield before, Known(None, wanted, shape)
        elif view.root in graph.parameters and wanted != natural(view.root.type.size):
            parameters.setdefault(view.root, wanted)
    for after, place, value in views.reads.get(node.output, ()):
        if (seen := compose(made.result, inverse(views.of[value].memory))) is not None:
            yield after, Known(place, seen, made.shape)


def demanded(views: Views, value: Value, memory: Memory) -> Memory | None:
    """Return how the root must lie for a view of it to lie so; None where no layout of the root does."""
    return compose(memory, views.of[value].memory)
