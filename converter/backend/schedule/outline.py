"""Outlining: a long step as a row of subgraphs, one for all pieces that are alike.

Of each partition XNNPACK's delegate keeps a table of all tensors of the subgraph that it is in, and 3 KB of each
operator. A step of thousands of partitions and tens of thousands of tensors would be resident as hundreds of megabytes
of such tables.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.schedule.alike import Run, kind, runs, wiring
from converter.ir import Graph, Node, TensorType, Value, fingerprint
from converter.ir.types import RESOURCE

#: Operators of a graph that stays in one piece, and of the shortest and the longest piece of a longer one.
LONGEST, SHORTEST_PIECE, LONGEST_PIECE = 3000, 200, 800
#: Operators of the shortest piece that is like others, and how many these others have at least.
SHORTEST_ALIKE, SAVED = 12, 100


def outlined(graph: Graph) -> Graph:
    """Return a long scheduled graph in pieces, cut where few bytes cross.

    Before: a = f(x, w); b = f(a, v); c = g(b); ...
    After:  a = While(x, w: f); b = While(a, v: f); c = While(b: g); ..., each of one step.

    Pieces that are alike are runs of one subgraph: constants in which they differ are operands, which lie in the file.
    WHILE gives what it takes: what a piece makes for others takes the place of something of the same type that it
    reads, as the next state that of the last, or of zeros.
    """
    if len(graph.nodes) <= LONGEST:
        return graph
    after = graph.copy()
    after.nodes = []
    read, pieces = _last_readers(graph), _pieces(graph)
    alike: dict[Hashable, list[range]] = {}
    for piece in pieces:
        nodes = graph.nodes[piece.start : piece.stop]
        if all(map(_fits, nodes)):
            alike.setdefault(kind(graph, nodes), []).append(piece)
    bodies: dict[range, Node] = {}
    for same in alike.values():
        bodies |= zip(same, _Body(graph, same, after, read).runs, strict=True)
    for piece in pieces:
        after.nodes += [bodies[piece]] if piece in bodies else graph.nodes[piece.start : piece.stop]
    return after


def in_one(graph: Graph) -> Graph:
    """Return an outlined graph as it was: what is counted of a step does not depend on its pieces."""
    after = graph.copy()
    after.nodes = []
    for node in graph.nodes:
        if isinstance(node.op, tfl.While) and node.op.is_outlined:
            after.constants |= node.op.body.constants
            after.nodes += _as_it_was(node, node.op.body)
        else:
            after.nodes.append(node)
    return after


def _as_it_was(run: Node, body: Graph) -> list[Node]:
    """Return the nodes of the piece that a node runs."""
    taken = dict(zip(body.inputs, run.inputs, strict=True))
    given = {v: of for v, of in zip(body.outputs.values(), run.outputs, strict=True) if v not in taken}
    now: dict[Value, Value] = {}
    nodes = []
    for node in body.nodes[:-1]:  # but for the counter
        inputs = tuple(taken.get(v) or now.get(v, v) for v in node.inputs)
        now |= {v: given.get(v) or Value(v.type, v.name) for v in node.outputs}
        nodes.append(replace(node, inputs=inputs, outputs=tuple(now[v] for v in node.outputs)))
    return nodes


def _last_readers(graph: Graph) -> dict[Value, int]:
    """Return where each value is read last; after all nodes what the graph gives."""
    read = {value: i for i, node in enumerate(graph.nodes) for value in node.inputs}
    return read | dict.fromkeys(graph.results(), len(graph.nodes))


def _pieces(graph: Graph) -> list[range]:
    """Return the pieces of a graph in order, as places of nodes."""
    crossing = _crossing(graph)
    found: list[range] = []
    end = len(graph.nodes)
    begin = 0
    for run in (*runs(graph, graph.nodes, SHORTEST_ALIKE, SAVED, crossing), Run(end, 0, 0)):
        borders = [begin, *_cuts(crossing, begin, run.start), run.start]
        borders += range(run.start + run.period, run.end + 1, run.period or 1)
        found += [range(first, after) for first, after in pairwise(borders) if after > first]
        begin = run.end
    return found


def _crossing(graph: Graph) -> list[int]:
    """Return the bytes that are made before each node and read from there on."""
    read, change = _last_readers(graph), [0] * (len(graph.nodes) + 1)
    for i, node in enumerate(graph.nodes):
        for value in node.outputs:
            if (last := read.get(value, i)) > i:
                change[i + 1] += value.type.nbytes
                if last < len(graph.nodes):
                    change[last + 1] -= value.type.nbytes
    return list(accumulate(change))


def _cuts(crossing: Sequence[int], start: int, stop: int) -> list[int]:
    """Return where pieces begin, but for the first: in reach of the one before where the fewest bytes cross."""
    found = []
    while stop - start > LONGEST_PIECE:
        start = min(range(start + SHORTEST_PIECE, start + LONGEST_PIECE), key=crossing.__getitem__)
        found.append(start)
    return found


def _fits(node: Node) -> bool:
    return all(v.dtype != RESOURCE for v in (*node.inputs, *node.outputs))


class _Operand(NamedTuple):
    """What pieces that are alike read in the same places.

    Attributes:
        inside: the input of the body that stands for it.
        given: what it is for each of the pieces.
    """

    inside: Value
    given: tuple[Value, ...]


class _Body:
    """The subgraph of pieces that are alike, and the operators that run it, one for each.

    Args:
        graph: of the pieces.
        pieces: places of nodes.
        after: constants that the operators need are added to it.
        read: where each value of the graph is read last.
    """

    def __init__(self, graph: Graph, pieces: Sequence[range], after: Graph, read: Mapping[Value, int]) -> None:
        self._after, self._pieces = after, [graph.nodes[piece.start : piece.stop] for piece in pieces]
        self._operands: dict[tuple[Value, ...], _Operand] = {}
        self._body = Graph([], {}, {}, self._nodes())
        made = [
            tuple(node.outputs[number] for node in nodes)
            for nodes in zip(*self._pieces, strict=True)
            for number in range(len(nodes[0].outputs))
        ]
        ends = [piece.stop for piece in pieces]
        results = [vs for vs in made if any(read.get(v, -1) >= end for v, end in zip(vs, ends, strict=True))]
        self.runs = self._runs(results)

    def _nodes(self) -> list[Node]:
        """Return the nodes of the body: those of the first piece, which read its operands."""
        nodes = []
        for alike, made in zip(zip(*self._pieces, strict=True), wiring(self._pieces[0]), strict=True):
            read = zip(zip(*(node.inputs for node in alike), strict=True), made, strict=True)
            inputs = tuple(vs[0] if inside else self._operand(vs) for vs, inside in read)
            nodes.append(replace(alike[0], inputs=inputs))
        return nodes

    def _operand(self, given: tuple[Value, ...]) -> Value:
        """Return what stands in the body for values that the pieces read."""
        if given not in self._operands:
            self._operands[given] = _Operand(Value(given[0].type, given[0].name), given)
        return self._operands[given].inside

    def _runs(self, results: Sequence[tuple[Value, ...]]) -> list[Node]:
        known = {o.inside: array for o in self._operands.values() if (array := self._constant(o)) is not None}
        operands = [o for o in self._operands.values() if o.inside not in known]
        places = _places([o.inside for o in operands], [vs[0] for vs in results])
        for vs in (vs for vs in results if vs[0] not in places):
            zeros = Value(vs[0].type, f"{vs[0].name}/before")
            self._after.constants[zeros] = np.zeros(zeros.shape, zeros.dtype)
            places[vs[0]] = len(operands)
            operands.append(_Operand(Value(zeros.type, zeros.name), len(vs) * (zeros,)))
        of_place = {places[vs[0]]: vs for vs in results}
        counter, body = Value(tfl.COUNTER, "counter"), self._body
        self._after.constants[counter] = np.zeros(1, np.int32)
        body.inputs = [o.inside for o in operands]
        body.constants = known
        inside = [of_place[i][0] if i in of_place else o.inside for i, o in enumerate(operands)]
        body.outputs = {f"result_{i + 1}": value for i, value in enumerate(inside)}
        loop = tfl.one_step(body, self._pieces[0][-1].origin)
        return [
            Node(
                loop,
                (counter, *(o.given[k] for o in operands)),
                (
                    Value(tfl.COUNTER, "counter"),
                    *(of_place[i][k] if i in of_place else Value(o.inside.type) for i, o in enumerate(operands)),
                ),
                piece[-1].origin,
            )
            for k, piece in enumerate(self._pieces)
        ]

    def _constant(self, operand: _Operand) -> np.ndarray | None:
        """Return what an operand is, where it is known and the same for all pieces."""
        first, *others = (self._after.constants.get(v) for v in operand.given)
        if first is None or any(a is None or (a is not first and fingerprint(a) != fingerprint(first)) for a in others):
            return None
        return first


def _places(operands: Sequence[Value], made: Iterable[Value]) -> dict[Value, int]:
    """Return the operand of the same type in whose place each value is given, each once, as far as there are any."""
    free: dict[TensorType, list[int]] = {}
    for i, value in reversed(list(enumerate(operands))):
        free.setdefault(value.type, []).append(i)
    return {value: free[value.type].pop() for value in made if free.get(value.type)}
