"""Runs of pieces that are alike: the blocks that a net repeats, found in the order of its operators.

Compilers outline code that recurs in the same way (LLVM's machine outliner); here it recurs back to back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from converter.backend import builtins as tfl
from converter.ir import FLOAT32, Graph, Node, Value, fingerprint

#: Nodes in a row that are looked up to find how far a repetition is, and how many of the distances are tried.
_WINDOW, _DISTANCES = 8, 32


class Run(NamedTuple):
    """`times` pieces of `period` nodes each, alike and back to back, the first from node `start` on."""

    start: int
    period: int
    times: int

    @property
    def end(self) -> int:
        """The first node after it."""
        return self.start + self.period * self.times


def runs(graph: Graph, nodes: Sequence[Node], shortest: int, saved: int, crossing: Sequence[int]) -> list[Run]:
    """Return the runs of alike pieces in a sequence of nodes, in order.

    Pieces are alike when they compute the same: what they read of others may differ, and the same of what they make is
    read by others. Their weights may be stored in other types, as files mix them: one subgraph runs those of one
    `kind`. Each piece begins where the fewest bytes cross.

    Args:
        graph: of the nodes.
        nodes: the sequence.
        shortest: nodes of the shortest piece.
        saved: nodes that the other pieces of a run have at least, as the first has them too.
        crossing: bytes that are made before each node of the sequence and read from there on, and after the last.
    """
    return sorted(_Sequence(graph, nodes, shortest, saved, crossing).runs(0, len(nodes)))


class _Sequence:
    """A sequence of nodes; see `runs` for the arguments."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], shortest: int, saved: int, crossing: Sequence[int]) -> None:
        self._nodes, self._shortest, self._saved, self._crossing = nodes, shortest, saved, crossing
        numbers: dict[Hashable, int] = {}
        kinds = (_kind(graph, node, stored=False) for node in nodes)
        self._kinds = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds], np.int64)
        place = {node: i for i, node in enumerate(nodes)}
        self._read = {v: place.get(node, len(nodes)) for node in graph.nodes for v in node.inputs}
        self._read |= dict.fromkeys(graph.results(), len(nodes))

    def runs(self, start: int, stop: int) -> Iterator[Run]:
        """Yield the run that saves most of what lies between, and those before and after it."""
        found = _longest(self._kinds[start:stop], self._shortest, self._saved)
        if found is None:
            return
        found = found._replace(start=start + found.start)
        run = self._wired_alike(self._at_narrow(found, self._stretch(found, stop)))
        if run.period * (run.times - 1) >= self._saved:
            yield run
        else:  # alike one by one, but not in what they read of each other
            run = found._replace(start=found.start + found.period, times=0)
        yield from self.runs(start, run.start)
        yield from self.runs(run.end, stop)

    def _stretch(self, run: Run, stop: int) -> range:
        """Return a run and how far what follows goes on with it, less than a piece."""
        end = run.end
        while end < stop and self._kinds[end] == self._kinds[end - run.period]:
            end += 1
        return range(run.start, end)

    def _at_narrow(self, run: Run, stretch: range) -> Run:
        """Return a run within a stretch that repeats itself, its pieces cut where the fewest bytes cross."""
        starts = range(stretch.start, stretch.start + run.period)
        found = [Run(start, run.period, (stretch.stop - start) // run.period) for start in starts]

        def width(run: Run) -> float:
            return sum(self._crossing[i] for i in range(run.start, run.end, run.period)) / run.times

        return min((run for run in found if run.period * (run.times - 1) >= self._saved), key=width)

    def _wired_alike(self, run: Run) -> Run:
        """Return the longest part of a run whose pieces also read the same of each other."""
        wired = [self._wires(range(i, i + run.period)) for i in range(run.start, run.end, run.period)]
        best, first = range(0), 0
        for i in range(1, len(wired) + 1):
            if i == len(wired) or wired[i] != wired[first]:
                best, first = max(best, range(first, i), key=len), i
        return Run(run.start + best.start * run.period, run.period, len(best))

    def _wires(self, piece: range) -> tuple[list, list[bool]]:
        """Return what nodes of a piece read of each other, and whether others read each of their results."""
        nodes = self._nodes[piece.start : piece.stop]
        return wiring(nodes), [self._read.get(v, -1) >= piece.stop for node in nodes for v in node.outputs]


def kind(graph: Graph, piece: Sequence[Node]) -> Hashable:
    """Return what pieces of a graph have in common that one subgraph can run."""
    wires = tuple(map(tuple, wiring(piece)))
    return wires, tuple(_kind(graph, node, stored=True) for node in piece)


def _kind(graph: Graph, node: Node, stored: bool) -> Hashable:
    """Return what a node has in common with those that compute the same, and read the same types where `stored`."""
    unpacks = isinstance(node.op, tfl.CastWeight) and not stored
    return (
        node.op,
        tuple(v.shape if unpacks else v.type for v in node.inputs),
        tuple(v.type for v in node.outputs),
        tuple(_of_constant(graph, node, v) for v in node.inputs),
        node.origin.is_late,
    )


def _of_constant(graph: Graph, node: Node, value: Value) -> Hashable:
    """Return what tells an operand from others that may stand in its place: a kernel may want to know a constant."""
    array = graph.constants.get(value)
    if array is None:
        return None
    takes_any = isinstance(node.op, tfl.CastWeight) or (node.op.elementwise and array.dtype == FLOAT32)
    return "constant" if takes_any else fingerprint(array)


def _longest(kinds: np.ndarray, shortest: int, saved: int) -> Run | None:
    """Return the run of equal pieces that saves most; None where none saves so much."""
    windows: dict[bytes, int] = {}
    distances: Counter[int] = Counter()
    for i in range(len(kinds) - _WINDOW + 1):
        key = kinds[i : i + _WINDOW].tobytes()
        if key in windows:
            distances[i - windows[key]] += 1
        windows[key] = i
    best: tuple[int, Run] | None = None
    for period, _ in distances.most_common(_DISTANCES):
        if period < shortest:
            continue
        same = np.concatenate([[0], kinds[:-period] == kinds[period:], [0]])
        begins, ends = np.flatnonzero(np.diff(same) == 1), np.flatnonzero(np.diff(same) == -1)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            run = Run(begin, period, (end - begin) // period + 1)
            gain = period * (run.times - 1)
            if gain >= saved and (best is None or gain > best[0]):
                best = gain, run
    return None if best is None else best[1]


def wiring(piece: Sequence[Node]) -> list[list[tuple[int, int] | None]]:
    """Return for each operand of each node place and number of the result that it is, None of what others made."""
    made: dict[Value, tuple[int, int]] = {}
    found = []
    for place, node in enumerate(piece):
        found.append([made.get(value) for value in node.inputs])
        made |= {value: (place, number) for number, value in enumerate(node.outputs)}
    return found
