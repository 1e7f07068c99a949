"""Gradient checkpointing: computes most of the forward pass again in the backward pass, segment by segment.

Between two segments few values cross, as the sum of the residual branches between two blocks does. These are kept, and
of a segment all else is made again when its backward pass begins (checkpointing; Chen et al., arXiv 1604.06174). That
costs up to one more forward pass of what trains, and is for those who ask for the memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import accumulate, pairwise

from converter.backend.schedule.alike import runs
from converter.backend.schedule.order import on_demand
from converter.ir import Graph, Node, Value, dependents
from converter.ir.types import RESOURCE
from converter.passes import eliminate_dead_code

#: Into how many segments of about as many bytes the forward pass is cut; the planner says which is best.
COUNTS = (2, 4, 8, 16)
#: How many times smaller than what crosses a cut a value is to be kept wherever it is made: as what an adapter of a low
#: rank makes of its rows, for which all that leads to it would be there again.
LITTLE = 64
#: As many times as large is what no input decides and a matrix is unpacked for, as the lengths of its columns (DoRA).
LENGTHS = 8
#: Nodes of the shortest block of those that are alike, and how many times what crosses at the narrowest place in them
#: may cross where they are cut.
SHORTEST_BLOCK, NARROW = 24, 1.1


def segmented(graph: Graph) -> Iterator[Segments]:
    """Yield coarser and finer segments of a lowered graph in program order, whose forward pass may be computed again.

    Before: x1 = f(x0); x2 = g(x1); loss; dg reads what g kept, df what f kept.
    After:  x1 = f(x0); x2 = g(x1); loss; g(x1) again; dg; f(x0) again; df.

    What no trained weight takes part in is not computed again, and neither is the last segment, whose backward pass
    comes first. Loops are not run twice.
    """
    pass_ = _Forward(graph)
    for cuts in dict.fromkeys(map(tuple, [*(pass_.cuts(count) for count in COUNTS), *pass_.at_blocks()])):
        if cuts:
            yield Segments(pass_, cuts)


class Segments:
    """A graph whose forward pass is cut into segments, of which all but the last may be computed again."""

    def __init__(self, forward: _Forward, cuts: Sequence[int]) -> None:
        self._forward, self._cuts = forward, cuts

    def graph(self, cut_once_more: bool = False, together: int = 1) -> Graph:
        """Return the graph with the segments computed again.

        Args:
            cut_once_more: cut each segment a second time, after its largest value. The first part is computed a third
                time, so it is not in memory during the backward pass of the second.
            together: of this many consecutive segments only the input of the first is kept. The inputs of the others
                are computed from it when the backward pass of the last begins, by a third computation of all but the
                last.
        """
        return self._forward.recomputed(self._cuts, self._kept_cuts(together), cut_once_more)

    def kept(self, together: int = 1) -> int:
        """Return how many bytes cross the cuts that are kept, and those between two of these, at most at once."""
        outer = self._kept_cuts(together)
        inner = (set(self._cuts[i : i + together]) - set(outer) for i in range(len(self._cuts)))
        return self._crossing(outer) + max(map(self._crossing, inner), default=0)

    def _kept_cuts(self, together: int) -> list[int]:
        """Return the last cut, after which nothing runs again, and each so-manieth other, where least crosses."""
        every = (sorted({*self._cuts[i::together], self._cuts[-1]}) for i in range(together))
        return min(every, key=self._crossing)

    def _crossing(self, cuts: Collection[int]) -> int:
        return sum(v.type.nbytes for v in self._forward.crossing(cuts))


class _Forward:
    """The part of the forward pass that may run again, as a sequence of nodes; a cut lies before the node it names."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes = list(_repeatable(graph))
        self._made = {v: i for i, node in enumerate(self._nodes) for v in node.outputs}
        self._readers = graph.consumers()
        place = {node: i for i, node in enumerate(self._nodes)}
        self._until = {
            v: max((place.get(node, len(place)) for node in self._forward_readers(v)), default=i)
            for v, i in self._made.items()
        }
        self._of_inputs = dependents(graph, graph.inputs)
        unpacked = _unpacking(graph)
        self._of_unpacked = dependents(graph, unpacked) - self._of_inputs - unpacked.keys()
        self._residuals = {v for v in self._made if any(node.origin.is_late for node in self._readers.get(v, ()))}

    def _forward_readers(self, value: Value) -> list[Node]:
        return [node for node in self._readers.get(value, ()) if not node.origin.is_late]

    def _bytes(self) -> tuple[list[int], list[int]]:
        """Return what crosses the border before each node and of the end, and what is kept of all before it."""
        crossing = [0] * (len(self._nodes) + 1)
        kept = [0] * (len(self._nodes) + 1)
        for value, made in self._made.items():
            crossing[made + 1] += value.type.nbytes
            if self._until[value] < len(self._nodes):
                crossing[self._until[value] + 1] -= value.type.nbytes
            if value in self._residuals:
                kept[made + 1] += value.type.nbytes
        return list(accumulate(crossing)), list(accumulate(kept))

    def at_blocks(self) -> Iterator[list[int]]:
        """Yield borders of blocks that are alike, for each place where as little crosses in all of them."""
        crossing, kept = self._bytes()
        for run in runs(self._graph, self._nodes, SHORTEST_BLOCK, SHORTEST_BLOCK, crossing):
            if kept[run.end] > kept[run.start]:
                places = [range(run.start + i, run.end, run.period) for i in range(run.period)]
                widths = [sum(crossing[i] for i in cuts) for cuts in places]
                narrow = [i for i, width in enumerate(widths) if width <= NARROW * min(widths)]
                for before, i in pairwise([narrow[-1] - run.period, *narrow]):
                    if i - before > SHORTEST_BLOCK // 2:  # another place, not the next one
                        cuts = places[i]
                        candidates = range(cuts[-1] + 1, min(cuts[-1] + run.period + 1, len(self._nodes)))
                        last = min(candidates, key=lambda j: (crossing[j], -j), default=0)
                        yield [cut for cut in (*cuts, last) if cut]

    def cuts(self, count: int) -> list[int]:
        """Return where few bytes cross, so that segments keep about as many bytes for the backward pass."""
        crossing, kept = self._bytes()
        found, start = [], 0
        narrowest: int | None = None
        for i, so_far in enumerate(kept):
            narrowest = _narrowest(narrowest, range(i, i + 1), start, crossing, kept)
            is_large = (so_far - kept[start]) * count > kept[-1] or i == len(self._nodes)
            if is_large and narrowest is not None:
                found.append(start := narrowest)
                narrowest = _narrowest(None, range(start + 1, i + 1), start, crossing, kept)
        return found

    def crossing(self, cuts: Collection[int]) -> set[Value]:
        """Return what is made before a cut and read after it in the forward pass."""
        return {v for v, made in self._made.items() if any(made < cut <= self._until[v] for cut in cuts)}

    def recomputed(self, cuts: Sequence[int], outer: Sequence[int], cut_once_more: bool) -> Graph:
        """Return the graph with what lies before the last cut computed again, but for what crosses one of `outer`.

        Each node runs again right before the first that needs it in the backward pass (`Segments.graph`).
        """
        kept = self.crossing(outer)
        little = sum(v.type.nbytes for v in kept) // (LITTLE * len(outer))
        kept |= {v for v in self._residuals & self._of_inputs if v.type.nbytes <= little}
        kept |= {v for v in self._residuals & self._of_unpacked if v.type.nbytes <= LENGTHS * little}
        copies = _Copies(self._nodes, self._made)
        again: dict[Value, Value] = {}
        for first, end in pairwise((0, *outer)):
            inner = [cut for cut in cuts if first < cut < end]
            entering = copies.of(self.crossing(inner) - kept, kept, range(first, max(inner, default=first)), {})
            again |= entering
            there = kept | entering.keys()
            for start, stop in pairwise([first, *inner, end]):
                largest = self._after_largest(start, stop, there) if cut_once_more else None
                for begin, before in pairwise([start, stop] if largest is None else [start, largest, stop]):
                    wanted = {v for v in self._residuals - there if begin <= self._made[v] < before}
                    again |= copies.of(wanted, there, range(start, before), entering)
        goals, after = [], copies.after
        for node in self._graph.nodes:
            if node.origin.is_late and not again.keys().isdisjoint(node.inputs):
                node = replace(node, inputs=tuple(again.get(v, v) for v in node.inputs))
            goals.append(node)
            after[node] = [copies.makers[v] for v in node.inputs if v in copies.makers]
        ordered = self._graph.copy()
        ordered.nodes = on_demand(goals, after)
        return eliminate_dead_code(ordered)  # the first computation of what only the backward pass reads

    def _after_largest(self, first: int, end: int, kept: Collection[Value]) -> int | None:
        """Return where few bytes cross after the readers of the largest residual of a segment, the first such place.

        What is kept anyway does not count. None where nothing of the segment is kept, or no node is after.
        """
        inside = [v for v, made in self._made.items() if first <= made < end and v not in kept]
        largest = max((v for v in inside if v in self._residuals), key=lambda v: v.type.nbytes, default=None)
        if largest is None:
            return None
        crossing = [0] * (end + 1)
        for value in inside:
            crossing[self._made[value] + 1] += value.type.nbytes
            crossing[min(self._until[value], end - 1) + 1] -= value.type.nbytes
        crossing = list(accumulate(crossing))
        places = range(self._until[largest] + 1, end)
        least = min((crossing[i] for i in places), default=0)
        return next((i for i in places if crossing[i] <= NARROW * least), None)


class _Copies:
    """Nodes of the forward pass that run again.

    Attributes:
        after: those that each must run after.
        makers: by what is made again, the node that makes it.
    """

    def __init__(self, nodes: Sequence[Node], made: Mapping[Value, int]) -> None:
        self._nodes, self._made = nodes, made
        self.after: dict[Node, list[Node]] = {}
        self.makers: dict[Value, Node] = {}

    def of(
        self, wanted: Set[Value], there: Set[Value], segment: range, entering: Mapping[Value, Value]
    ) -> dict[Value, Value]:
        """Copy the nodes of a segment that make what is wanted; return the copy of each of these.

        Args:
            wanted: values of the segment.
            there: values that no node makes again.
            segment: places of nodes.
            entering: what stands for some of `there`, which were made again before.
        """
        needed, nodes = set(wanted), list[Node]()
        for i in reversed(segment):
            if not needed.isdisjoint(self._nodes[i].outputs):
                nodes.append(self._nodes[i])
                needed.update(v for v in self._nodes[i].inputs if v in self._made and v not in there)
        again: dict[Value, Value] = {}
        for node in reversed(nodes):
            made = tuple(Value(v.type, f"{v.name}/again") for v in node.outputs)
            inputs = tuple(again.get(v, entering.get(v, v)) for v in node.inputs)
            copy = Node(node.op, inputs, made, node.origin.in_phase("backward"))
            self.after[copy] = [self.makers[v] for v in inputs if v in self.makers]
            self.makers |= dict.fromkeys(made, copy)
            again |= dict(zip(node.outputs, made, strict=True))
        # What another shape is given is there itself: a view for the backward pass is made when that wants it.
        for value in wanted:
            view = self._nodes[self._made[value]]
            if view.op.keeps_data and view.inputs[0] in wanted | there:
                copy = self.makers[again[value]]
                later = replace(copy, outputs=(Value(value.type, f"{value.name}/again"),))
                self.after[later] = self.after[copy]
                self.makers[later.output] = later
                again[value] = later.output
        return {value: again[value] for value in wanted}


def _narrowest(best: int | None, places: range, start: int, crossing: Sequence[int], kept: Sequence[int]) -> int | None:
    """Return the latest of the narrowest places for a cut after `start`, of the best so far and some more.

    On either side of one more is kept than what crosses it.
    """
    for j in places:
        is_worth_it = j > start and min(kept[j] - kept[start], kept[-1] - kept[j]) > crossing[j]
        if is_worth_it and (best is None or crossing[j] <= crossing[best]):
            best = j
    return best


def _repeatable(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of the forward pass that trained weights take part in, each after what unpacks its constants.

    These run where they are first read: at the beginning of the graph, what they make would cross every cut.
    """
    trained, unpacking, unpacked = dependents(graph, graph.parameters), _unpacking(graph), set[Node]()
    for node in graph.nodes:
        if trained.isdisjoint(node.outputs) or not _is_repeatable(node):
            continue
        for value in node.inputs:
            unpacked_here = [one for one in unpacking.get(value, []) if one not in unpacked]
            unpacked.update(unpacked_here)
            yield from unpacked_here
        yield node


def _is_repeatable(node: Node) -> bool:
    plain = all(v.dtype != RESOURCE for v in (*node.inputs, *node.outputs))
    return not node.origin.is_late and bool(node.outputs) and plain and not list(node.op.bodies())


def _unpacking(graph: Graph) -> dict[Value, list[Node]]:
    """Return, by each weight that is made of constants at each run and not kept, the nodes that make it, in order.

    As CAST makes one of integers, and CAST, MUL by the scales of blocks, and RESHAPE.
    """
    found: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        made = [v for v in node.inputs if v not in graph.constants]
        if _is_repeatable(node) and (node.op.copies() if not made else all(v in found for v in made)):
            nodes = list(dict.fromkeys([*(one for v in made for one in found[v]), node]))
            found |= dict.fromkeys(node.outputs, nodes)
    return found
