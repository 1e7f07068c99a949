"""Memory planning: the arena that the runtime will allocate for a graph in a given order.

This follows TFLite's ArenaPlanner (tensorflow/lite/arena_planner.cc, simple_memory_arena.cc): largest tensors first,
each into the smallest gap among tensors alive at the same time, 64-byte aligned.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter

from converter.ir import Graph, Node, Value
from converter.ir.types import RESOURCE, TensorType

ALIGNMENT = 64
#: How finely the planner tells contemporaries apart.
NODES_IN_A_PERIOD = 32
_OFFSET = attrgetter("offset")


@dataclass(frozen=True)
class Allocation:
    """A piece of the arena: bytes [offset, offset + size) while nodes first..last run."""

    offset: int
    size: int
    first: int
    last: int
    name: str = ""

    def overlaps(self, other: Allocation) -> bool:
        """Return whether both are alive at once and share a byte."""
        together = self.first <= other.last and other.first <= self.last
        return together and self.offset < other.offset + other.size and other.offset < self.offset + self.size


@dataclass(frozen=True)
class ArenaPlan:
    """Where each tensor of a subgraph lies, and the size of the arena in bytes."""

    allocations: dict[Value, Allocation]
    scratch: tuple[Allocation, ...]
    size: int

    def alive_at_peak(self) -> list[Allocation]:
        """Return the tensors alive when most bytes are, largest first."""
        pieces = [*self.allocations.values(), *self.scratch]
        if not pieces:
            return []
        steps = range(max(p.last for p in pieces) + 1)
        peak = max(steps, key=lambda i: sum(p.size for p in pieces if p.first <= i <= p.last))
        return sorted((p for p in pieces if p.first <= peak <= p.last), key=lambda p: -p.size)


def lifetimes(graph: Graph, order: Sequence[Node]) -> dict[Value, tuple[int, int]]:
    """First and last node (by position) at which each arena tensor is alive.

    Inputs live through the whole run, outputs from where they are made to the end, as the runtime has it, and so does
    what nobody reads: it lets go of a tensor after the last reader. Constants and parameters are not in the arena.
    """
    end = len(order)
    spans = dict.fromkeys(graph.inputs, (0, end))
    read = {value for node in order for value in node.inputs}
    for i, node in enumerate(order):
        for value in node.outputs:
            spans[value] = (i, i if value in read else end)
        for value in node.inputs:
            if value in spans:
                spans[value] = (spans[value][0], max(i, spans[value][1]))
    for value in graph.outputs.values():
        if value in spans:
            spans[value] = (spans[value][0], end)
    return spans


def scratch_of(graph: Graph, node: Node) -> list[int]:
    """Return the bytes of each temporary tensor that a node's kernel keeps in the arena while it runs."""
    copied = chain(node.op.scratch_of, repeat(None))
    sizes = zip(node.op.scratch(*_types(node)), copied, strict=False)
    return [size for size, operand in sizes if operand is None or node.inputs[operand] not in graph.constants]


def plan(graph: Graph, lent: bool = False) -> ArenaPlan:
    """Return the arena of a graph in the order in which its nodes stand; `lent`: its inputs lie in who runs it."""
    absent = {*_in_place_operands(graph), *(graph.inputs if lent else ())}
    spans = {value: span for value, span in lifetimes(graph, graph.nodes).items() if value not in absent}
    owner = shared_buffers(graph)
    for output, source in owner.items():
        first, last = spans[source]
        spans[source] = (first, max(last, spans[output][1]))
    end = len(graph.nodes)
    requests: list[tuple[int, int, int, Value | None, str]] = [
        (value.type.nbytes, first, last, value, value.name)
        for value, (first, last) in spans.items()
        if value not in owner and value.dtype != RESOURCE
    ]
    for i, node in enumerate(graph.nodes):
        requests += [(size, i, i, None, f"{node.op.name} scratch") for size in scratch_of(graph, node)]
    # The runtime places what lives through the whole run first, then the largest, the earliest among equals.
    requests.sort(key=lambda r: (0, 0, 0) if (r[1], r[2]) == (0, end) else (1, -r[0], r[1]))
    placed: dict[Value, Allocation] = {}
    scratch: list[Allocation] = []
    timetable = Timetable(end)
    for size, first, last, value, name in requests:
        piece = Allocation(_best_fit(timetable.around(first, last), size, first, last), size, first, last, name)
        if size:
            timetable.add(piece)
        if value is None:
            scratch.append(piece)
        else:
            placed[value] = piece
    for output, source in owner.items():
        placed[output] = placed[source]
    size = max((p.offset + p.size for p in (*placed.values(), *scratch)), default=0)
    return ArenaPlan(placed, tuple(scratch), size)


def _in_place_operands(graph: Graph) -> Iterator[Value]:
    """Return results of loops that are operands unchanged and unread: the runtime makes no tensor for them."""
    read = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs.values())
    for node in graph.nodes:
        for body in node.op.bodies()[-1:]:
            for operand, result, value in zip(body.inputs, body.outputs.values(), node.outputs, strict=True):
                if operand is result and value not in read:
                    yield value


class Timetable:
    """Pieces by when they are alive, so that a short-lived tensor is compared with its contemporaries only."""

    def __init__(self, end: int) -> None:
        periods = end // NODES_IN_A_PERIOD + 1
        self._alive: list[list[Allocation]] = [[] for _ in range(periods)]  # by offset
        self._made: list[list[Allocation]] = [[] for _ in range(periods)]

    def add(self, piece: Allocation) -> None:
        first, last = piece.first // NODES_IN_A_PERIOD, piece.last // NODES_IN_A_PERIOD
        self._made[first].append(piece)
        for alive in self._alive[first : last + 1]:
            insort(alive, piece, key=_OFFSET)

    def around(self, first: int, last: int) -> Sequence[Allocation]:
        """Return the pieces alive at some time near first..last, by offset."""
        start, end = first // NODES_IN_A_PERIOD, last // NODES_IN_A_PERIOD
        if start == end:
            return self._alive[start]
        later = chain.from_iterable(self._made[start + 1 : end + 1])
        return sorted(chain(self._alive[start], later), key=_OFFSET)


def check_no_overlap(arena: ArenaPlan) -> None:
    """Raises AssertionError when two tensors that are alive at once share a byte."""
    pieces = sorted({*arena.allocations.values(), *arena.scratch}, key=_OFFSET)
    for i, piece in enumerate(pieces):
        for other in pieces[i + 1 :]:
            if other.offset >= piece.offset + piece.size:
                break
            assert not piece.overlaps(other), f"{piece} and {other} overlap"


def _best_fit(by_offset: Sequence[Allocation], size: int, first: int, last: int) -> int:
    best, best_gap, current = None, None, 0
    for piece in by_offset:
        if piece.last < first or piece.first > last:
            continue
        begin, stop = piece.offset, piece.offset + piece.size
        if current + size <= begin:
            aligned = -(-current // ALIGNMENT) * ALIGNMENT
            if aligned + size <= begin and (best_gap is None or begin - aligned < best_gap):
                best, best_gap = aligned, begin - current
                if not best_gap:
                    break
        if stop > current:
            current = stop
    return -(-current // ALIGNMENT) * ALIGNMENT if best is None else best


def shared_buffers(graph: Graph) -> dict[Value, Value]:
    """Return outputs that the runtime lets take over an operand's buffer: output -> the tensor that owns the buffer."""
    uses: dict[Value, int] = {}
    for node in graph.nodes:
        for value in node.inputs:
            uses[value] = uses.get(value, 0) + 1
    fixed = {*graph.inputs, *graph.constants, *graph.parameters, *graph.outputs.values()}
    owner: dict[Value, Value] = {}
    for node in graph.nodes:
        sharing = node.op.in_place()
        if not sharing or not node.outputs or node.outputs[0] in fixed:
            continue
        output = node.outputs[0]
        for index in sharing:
            source = node.inputs[index] if index < len(node.inputs) else None
            if source is None or source in fixed:
                continue
            root = owner.get(source, source)
            same_buffer = source.type.nbytes == output.type.nbytes > 4 and uses[source] == 1 and uses.get(root, 0) == 1
            if node.op.keeps_data or same_buffer:
                owner[output] = root
                break
    return owner


def _types(node: Node) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
    return tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs)
