"""CPU delegate model (XNNPACK): which operators it takes, in which partitions, and its workspace.

This follows TFLite's partitioner (graph_info.cc) and XNNPACK's fusion and memory planner (subgraph.c, runtime.c,
memory-planner.c): the values inside a partition lie in one workspace, largest first, each in the smallest gap. Of equal
ones the tensor of the lower number in the file comes first, so how the file numbers them decides where gaps remain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from converter.backend.builtins.base import Delegated, Operator
from converter.backend.builtins.integers import CastWeight, DequantizeFloat16
from converter.backend.schedule.memory import Allocation
from converter.ir import Graph, Node, Value, nested
from converter.ir.types import RESOURCE, TensorType

ALIGNMENT = 64
#: The workspace ends with room for kernels that read past the end.
_ROOM = 32


@dataclass(frozen=True)
class DelegatedCall(Operator):
    """A partition as the runtime sees it: one operator that runs all of `nodes`.

    Attributes:
        nodes: in the order in which they run.
        inside: what lies in the workspace, while which of the nodes run.
        workspace: its bytes.
        numbered: the values in the workspace, in the order in which the file is to number them.
    """

    nodes: tuple[Node, ...] = ()
    inside: tuple[Allocation, ...] = ()
    workspace: int = 0
    numbered: tuple[Value, ...] = ()


def keeps_order(graphs: Iterable[Graph], state: str) -> bool:
    """Return whether the file of these lowered graphs is to say that operators keep their order.

    A delegate for stateless programs (a GPU, an NPU) runs one partition, the largest: there they may grow. But copies
    of constants, which the CPU's delegate leaves alone, would then all be made first, and be there at once.
    """
    inner = (inner for graph in graphs for inner in nested(graph))
    return state == "variables" or any(isinstance(node.op, CastWeight) for graph in inner for node in graph.nodes)


def delegate(graph: Graph, lanes: int, in_order: bool = True) -> Graph:
    """Return the graph as the runtime executes it: each partition is one `DelegatedCall`, what stays are its own nodes.

    Args:
        graph: with the state exported, in the order of the file.
        lanes: of the target, see `Operator.delegated`.
        in_order: whether the file says that operators keep their order, see
            `converter.program.flatbuffer.control_dependencies`.
    """
    known = known_when_loaded(graph)
    runs = {node: run for node in graph.nodes if (run := how(known, node, lanes)) is not None}
    results = set(graph.outputs.values())
    pieces = list(_neighbours(graph, runs) if in_order else _greedy(graph, runs))
    readers: dict[Value, set[int]] = {}
    for i, piece in enumerate(pieces):
        for node in piece:
            for value in node.inputs:
                readers.setdefault(value, set()).add(i)
    after = graph.copy()
    after.nodes = []
    for i, piece in enumerate(pieces):
        if piece[0] not in runs:
            after.nodes += piece
            continue
        made = dict.fromkeys(v for node in piece for v in node.outputs)
        read = dict.fromkeys(v for node in piece for v in node.inputs if v not in made)
        given = tuple(v for v in made if v in results or readers.get(v, {i}) != {i})
        inside, numbered = _Workspace(piece, runs, set(given)).plan()
        call = DelegatedCall(tuple(piece), inside, _top(inside) + _ROOM if inside else 0, numbered)
        after.nodes.append(Node(call, tuple(read), given))
    return after


def numbering(graph: Graph, lanes: int, in_order: bool = True) -> list[Value]:
    """Return what the nodes make, in the order in which the file is to number it; see `delegate` for the arguments."""
    calls = [node.op for node in delegate(graph, lanes, in_order).nodes if isinstance(node.op, DelegatedCall)]
    inside = dict.fromkeys(value for call in calls for value in call.numbered)
    return list(inside | dict.fromkeys(value for node in graph.nodes for value in node.outputs))


def known_when_loaded(graph: Graph) -> Collection[Value]:
    """Return constants, and what is unpacked of them when the program is loaded."""
    unpacked = [node.output for node in graph.nodes if isinstance(node.op, DequantizeFloat16)]
    return {*graph.constants, *unpacked} if unpacked else graph.constants


def how(known: Collection[Value], node: Node, lanes: int) -> Delegated | None:
    """Return how the delegate runs a node; None when it does not. `known`: see `known_when_loaded`."""
    inputs, outputs = tuple([v.type for v in node.inputs]), tuple([v.type for v in node.outputs])
    return _how(node.op, inputs, outputs, tuple([v in known for v in node.inputs]), lanes)


@lru_cache(4096)
def _how(
    op: Operator,
    inputs: tuple[TensorType, ...],
    outputs: tuple[TensorType, ...],
    constant: tuple[bool, ...],
    lanes: int,
) -> Delegated | None:
    """Long programs repeat few operators, and are looked at in several orders."""
    return op.delegated(inputs, outputs, constant, lanes)


def _neighbours(graph: Graph, runs: dict[Node, Delegated]) -> Iterator[list[Node]]:
    """Runs of neighbours of one kind."""
    piece: list[Node] = []
    for node in graph.nodes:
        if piece and (node in runs) != (piece[0] in runs):
            yield piece
            piece = []
        piece.append(node)
    if piece:
        yield piece


def _greedy(graph: Graph, runs: dict[Node, Delegated]) -> Iterator[list[Node]]:
    """Yield pieces, each of all that can run by then; what has an effect besides its results keeps its order."""
    makers, left = graph.producers(), graph.nodes
    needs = {node: {makers[v] for v in node.inputs if v in makers} for node in left}
    effects = [node for node in left if not node.outputs or any(v.dtype == RESOURCE for v in node.inputs)]
    for earlier, node in pairwise(effects):
        needs[node].add(earlier)
    done: set[Node] = set()
    while left:
        piece: list[Node] = []
        grown = True
        while grown:
            waiting, grown = [], False
            for node in left:
                if needs[node] <= done and (not piece or (node in runs) == (piece[0] in runs)):
                    piece.append(node)
                    done.add(node)
                    grown = True
                else:
                    waiting.append(node)
            left = waiting
        yield piece


class _Workspace:
    """The values inside one partition, as XNNPACK places them."""

    def __init__(self, nodes: Sequence[Node], runs: dict[Node, Delegated], external: set[Value]) -> None:
        self._nodes, self._runs, self._places, self._unclamped = _independent_clamps(nodes, runs)
        self._readers: dict[Value, list[int]] = {}
        for i, node in enumerate(self._nodes):
            for value in dict.fromkeys(node.inputs):
                self._readers.setdefault(value, []).append(i)
        self._inside = {
            v: i
            for i, n in enumerate(self._nodes)
            for v in n.outputs
            if v not in external and v.dtype != RESOURCE and not self._runs[n].known
        }
        self._fuse()

    def _only_reader(self, value: Value) -> int | None:
        readers = self._readers.get(value, [])
        return readers[0] if len(readers) == 1 and value in self._inside else None

    def _fuse(self) -> None:
        """Copies of variables and zeros around a window's input are left out; what they made is not stored."""
        for i, node in enumerate(self._nodes):
            run = self._runs[node]
            if run.copies and node.outputs and self._only_reader(node.output) is not None:
                del self._inside[node.output]
            elif run.copies and not node.outputs and self._only_reader(node.inputs[1]) == i:
                del self._inside[node.inputs[1]]
            elif run.pads and (reader := self._only_reader(node.output)) is not None and self._windows(reader):
                self._readers[node.inputs[0]].append(reader)
                del self._inside[node.output]

    def _windows(self, reader: int) -> bool:
        return self._runs[self._nodes[reader]].windows

    def plan(self) -> tuple[tuple[Allocation, ...], tuple[Value, ...]]:
        """Return where the values lie, and while which nodes of the partition.

        The values as the file is to number them.

        Of several ways to number them, that with the smallest workspace.
        """
        pieces = self._pieces()
        # What the file does not name gets its number last.
        scratch = [_Piece(_rounded(s), i, i) for i, n in enumerate(self._nodes) if (s := self._runs[n].scratch)]
        named = [piece for piece in pieces if piece.value not in self._unclamped]
        unnamed = [*(piece for piece in pieces if piece.value in self._unclamped), *scratch]
        alive = _alive([*named, *unnamed], len(self._nodes))
        keys: tuple[Callable[[_Piece], int], ...] = (
            lambda piece: piece.first,
            lambda piece: -max(alive[piece.first : piece.last + 1]),  # what is there while most is, first
            lambda piece: -piece.last,
        )
        numbered = sorted(named, key=keys[0])
        inside = self._placed([*numbered, *unnamed])
        for key in keys[1:]:
            if (top := _top(inside)) <= max(alive):
                break  # there is no gap
            others = sorted(named, key=key)
            if smaller := self._placed([*others, *unnamed], top):
                inside, numbered = smaller, others
        return tuple(inside), tuple(piece.value for piece in numbered if piece.value is not None)

    def _pieces(self) -> list[_Piece]:
        """Return the values that have a place of their own, as they are made."""
        last = {v: max(self._readers.get(v, [i])) for v, i in self._inside.items()}
        place: dict[Value, Value] = {}  # value -> the one whose place it takes over
        for i, node in enumerate(self._nodes):
            if self._runs[node].in_place and node.outputs and self._only_reader(node.output) is not None:
                output = node.output
                for value in node.inputs:
                    if self._only_reader(value) == i and value.type.nbytes == output.type.nbytes:
                        place[output] = owner = place.get(value, value)
                        last[owner] = last[output]
                        break
        return [_Piece(_rounded(v.type.nbytes), i, last[v], v) for v, i in self._inside.items() if v not in place]

    def _placed(self, pieces: Sequence[_Piece], below: float = inf) -> list[Allocation]:
        """Place each piece, the largest first and those first that come first among equals, in the smallest gap.

        Nothing, as soon as one does not end below that.
        """
        placed, found = _Placed(len(pieces)), []
        for piece in sorted(pieces, key=lambda piece: -piece.size):
            offset = placed.place(piece.size, piece.first, piece.last)
            if offset + piece.size >= below:
                return []
            found.append(Allocation(offset, piece.size, self._places[piece.first], self._places[piece.last]))
        return found


class _Piece(NamedTuple):
    """What lies in a workspace while nodes first..last run: a value, or what a kernel needs besides."""

    size: int
    first: int
    last: int
    value: Value | None = None


def _alive(pieces: Sequence[_Piece], nodes: int) -> list[int]:
    """Return bytes that lie in the workspace while each of the nodes runs."""
    change = [0] * (nodes + 1)
    for piece in pieces:
        change[piece.first] += piece.size
        change[piece.last + 1] -= piece.size
    return list(accumulate(change))


def _top(inside: Iterable[Allocation]) -> int:
    return max((a.offset + a.size for a in inside), default=0)


class _Placed:
    """What lies in a workspace: of each piece the offset, the end, the first and the last node."""

    def __init__(self, most: int) -> None:
        self._offsets, self._ends = np.empty((2, most), np.int64)
        self._firsts, self._lasts = np.empty((2, most), np.int32)
        self._count = 0

    def place(self, size: int, first: int, last: int) -> int:
        """Puts a piece into the smallest gap that is wide enough while nodes first..last run; where that begins."""
        i = self._count
        (together,) = ((self._firsts[:i] <= last) & (self._lasts[:i] >= first)).nonzero()
        starts = self._offsets[together]
        by_offset = starts.argsort()
        offset = _smallest_gap(starts[by_offset], self._ends[together[by_offset]], size)
        self._offsets[i], self._ends[i], self._firsts[i], self._lasts[i] = offset, offset + size, first, last
        self._count += 1
        return offset


def _independent_clamps(
    nodes: Sequence[Node], runs: dict[Node, Delegated]
) -> tuple[list[Node], dict[Node, Delegated], list[int], set[Value]]:
    """Return the nodes with activations as nodes of their own, how each runs, which of the nodes it was.

    What these read.
    """
    separate: dict[Node, Delegated] = {}
    places, found = [], set[Value]()
    for place, node in enumerate(nodes):
        run = runs[node]
        if run.clamps:
            unclamped = Value(node.output.type)
            found.add(unclamped)
            separate[replace(node, outputs=(unclamped,))] = run
            node, run = replace(node, inputs=(unclamped,)), Delegated(in_place=True)
            places.append(place)
        separate[node] = run
        places.append(place)
    return list(separate), separate, places, found


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _smallest_gap(starts: np.ndarray, ends: np.ndarray, size: int) -> int:
    """Return where `size` bytes go, given what is taken in the order of offsets."""
    reached = np.maximum.accumulate(np.concatenate([[0], ends]))
    gaps = starts - reached[:-1]
    (wide,) = (gaps >= size).nonzero()
    return int(reached[wide[gaps[wide].argmin()]]) if wide.size else int(reached[-1])
