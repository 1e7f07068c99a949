"""Batch tiling: computes early layers on a few rows at a time, so that their results stay in the cache.

The early layers of a convolutional net make the largest activations from the smallest weights. Of a whole batch these
lie beyond the cache, and every operator waits for the memory; of a row or two they do not. Their backward pass follows:
it is made of this graph. (Compilers call it tiling of a loop, the batch being the loop. Micro-batches do the same to
the whole step, for as many calls; here later layers, of large weights and small activations, still see the batch.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log2, prod

import numpy as np

from converter.backend.targets import Target
from converter.ir import Builder, Graph, Node, Op, ShapeError, Value, dependents, ops
from converter.ir.ops.conv import Windowed
from converter.ir.ops.marks import Mark
from converter.ir.ops.pool import Pool
from converter.ir.row_dependence import Rows, RowsMixed, compact, rows_through
from converter.ir.types import Shape, TensorType

#: More parts than these, or parts of fewer rows of frozen layers, gain little, and each is operators of its own.
_MOST_PARTS, _FEWEST_ROWS = 8, 2
#: How often operands of a trained layer are copied to be cut into images, for the gradient of its weights.
_CUT = 2
#: The share of all moving there that is worth tiling for.
_WORTH = 0.25
#: The share of the most that can be saved which is enough: the last layers save little, and are operators, too.
_ENOUGH = 0.9
#: What a byte costs more than moving it in a cache does, for each doubling of what is touched with it beyond these.
_PER_DOUBLING = 0.5
#: How often bytes that each part has of its own could be moved for them: packed weights, gradients to be added up,
#: tables of pointers.
_PER_OWN = 8
#: How often what crosses a border is copied: written and read, forward and backward.
_PER_CROSSING = 4


def tile_batch(graph: Graph, target: Target) -> Graph:
    """Return the forward graph with early layers in parts of the batch, where that keeps bytes near the processor.

    Before: y = f(x); z = g(y).   After: y = concat(f(x[:2]), f(x[2:4]), ...); z = g(y).

    Args:
        graph: a forward graph, whose inputs have the batch as their first axis.
        target: says what a core has for a cache, and what dispatching an operator costs.
    """
    layers = _RowByRow(graph)
    counts = [n for n in range(2, min(layers.batch, _MOST_PARTS) + 1) if not layers.batch % n]
    tilings = [tiling for parts in counts for tiling in layers.tilings(parts, target)]
    if not tilings:
        return graph
    enough = _ENOUGH * max(tiling.saved for tiling in tilings)
    first = next(i for i, tiling in enumerate(tilings) if tiling.saved >= enough)
    chosen = tilings[first]
    for further in tilings[first + 1 :]:
        if further.saved < enough or not further.goes_on(chosen):
            break
        chosen = further
    return layers.tiled(chosen)


@dataclass(frozen=True)
class _Tiling:
    """The nodes from `start` up to `end`, in so many parts; the moving of bytes that this saves, and crossing costs."""

    start: int
    end: int
    parts: int
    saved: float
    crossing: int

    def goes_on(self, shorter: _Tiling) -> bool:
        """Return whether this is the shorter one and a node more, and no more has to be joined after it.

        A bias and an activation are then part of the operator before them, and what waits for other parts is narrow.
        """
        longer = self.start == shorter.start and self.parts == shorter.parts and self.end == shorter.end + 1
        return longer and self.crossing <= shorter.crossing


class _RowByRow:
    """The nodes of a graph that work row by row and depend on such nodes alone, from its inputs on."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.batch = graph.inputs[0].shape[0] if graph.inputs and graph.inputs[0].shape else 1
        self._fed = dependents(graph, graph.inputs)
        self._nodes = self._row_by_row()
        place = {node: i for i, node in enumerate(self._nodes)}
        outside = len(self._nodes)
        #: Where each value is made, and where it is read last.
        self._made = dict.fromkeys(graph.inputs, 0) | {v: i + 1 for node, i in place.items() for v in node.outputs}
        self._until = dict.fromkeys(self._made, 0)
        for node in graph.nodes:
            for value in self._made.keys() & set(node.inputs):
                self._until[value] = max(self._until[value], place.get(node, outside))
        self._until |= dict.fromkeys(self._made.keys() & set(graph.results()), outside)

    def _row_by_row(self) -> list[Node]:
        """Return nodes whose result for some rows is these rows of their result."""
        graph, found = self._graph, list[Node]()
        known = {v: Rows.none(len(v.shape)) for v in (*graph.constants, *graph.parameters)}
        known |= {v: Rows.first_axis(v.shape) for v in graph.inputs if v.shape[:1] == (self.batch,)}
        steady = ("weight", "choice", "base")  # a step does not write them while it reads them
        stateful = dependents(graph, [v for v, p in graph.parameters.items() if p.kind not in steady])
        for node in graph.nodes:
            if self._fed.isdisjoint(node.outputs):
                known |= {v: Rows.none(len(v.shape)) for v in node.outputs}
            elif known.keys() >= set(node.inputs) and stateful.isdisjoint(node.outputs) and _is_plain(node):
                try:
                    rows, one = rows_through(node, known), self._of_one_row(node)
                except (RowsMixed, ShapeError):
                    continue
                kept = all(_are_first_axis(r, v.shape) for r, v in zip(rows, node.outputs, strict=True))
                if kept and one == [_one_row(v.type) for v in node.outputs]:
                    known |= zip(node.outputs, rows, strict=True)
                    found.append(node)
        return found

    def _of_one_row(self, node: Node) -> list[TensorType]:
        """Return the types of a node's results for one row. Raises ShapeError where it only takes the whole batch."""
        op = _of_rows(node, 1)
        made = op.infer(*(_one_row(v.type) if v in self._fed else v.type for v in node.inputs))
        return list(made) if isinstance(made, tuple) else [made]

    def tilings(self, parts: int, target: Target) -> Iterator[_Tiling]:
        """Yield for each end the best start."""
        cache_bytes = target.shared_cache_bytes
        dispatched = target.per_operator / target.per_byte["delegated"]
        crossing = [0] * (len(self._nodes) + 2)
        for value, made in self._made.items():
            crossing[made] += value.type.nbytes
            crossing[max(self._until[value], made) + 1] -= value.type.nbytes
        most = self.batch // _FEWEST_ROWS
        copied = [_PER_CROSSING * nbytes for nbytes in accumulate(crossing)]
        saved, start, least, moved = 0.0, 0, float(copied[0]), 0
        for i, node in enumerate(self._nodes):
            if saved + copied[i] < least:
                start, least, moved = i, saved + copied[i], 0
            whole = sum(v.type.nbytes for v in (*node.inputs, *node.outputs) if v in self._fed)
            moved += whole
            saved += _beyond(whole, cache_bytes) - parts * _beyond(whole / parts, cache_bytes)
            if whole > cache_bytes and parts == self.batch and self._trains(node):
                saved += _CUT * whole
            saved -= (parts - 1) * (dispatched + _PER_OWN * (self._weights(node) + _pointers(node)))
            tiling = _Tiling(start, i + 1, parts, saved - copied[i + 1] - least, copied[i + 1])
            if tiling.saved > _WORTH * moved and (parts <= most or self._train_from(start)):
                yield tiling

    def _weights(self, node: Node) -> int:
        return sum(v.type.nbytes for v in node.inputs if v not in self._fed)

    def _trains(self, node: Node) -> bool:
        return any(v not in self._fed and v not in self._graph.constants for v in node.inputs)

    def _train_from(self, start: int) -> bool:
        """Return whether the first node with weights from there on trains them: then no frozen layer is among these."""
        first = next((node for node in self._nodes[start:] if not self._fed.issuperset(node.inputs)), None)
        return first is not None and self._trains(first)

    def tiled(self, tiling: _Tiling) -> Graph:
        """Return the graph with these nodes computed in parts.

        Values that later nodes read are joined again, and are the same values as before.
        """
        chosen = self._nodes[tiling.start : tiling.end]
        made = {v for node in chosen for v in node.outputs}
        read = dict.fromkeys(v for node in chosen for v in node.inputs if v in self._fed and v not in made)
        before = {*self._nodes[: tiling.start], *(n for n in self._graph.nodes if self._fed.isdisjoint(n.outputs))}
        b = Builder(self._graph.copy())
        b.graph.nodes = [node for node in self._graph.nodes if node in before]
        pieces: dict[Value, list[Value]] = {v: [] for v in self._made if v in made and self._until[v] >= tiling.end}
        rows = self.batch // tiling.parts
        for first in range(0, self.batch, rows):
            part = {v: b.part(v, first, first + rows) for v in read}
            for node in chosen:
                with b.at(node.origin):
                    copy = b.node(_of_rows(node, rows), *(part.get(v, v) for v in node.inputs))
                part |= zip(node.outputs, copy.outputs, strict=True)
            for value, found in pieces.items():
                found.append(part[value])
        for node in chosen:
            for value in (v for v in node.outputs if v in pieces):
                b.append(Node(ops.Concat(0), tuple(pieces[value]), (value,), node.origin))
        done = before.union(chosen)
        b.graph.nodes += [node for node in self._graph.nodes if node not in done]
        return b.graph


def _of_rows(node: Node, rows: int) -> Op:
    """Return a node's op for so many rows, where it names them, as a layer that trains in part does."""
    whole = node.inputs[0].shape[:1]
    if isinstance(node.op, ops.Slice) and node.op.begin[:1] == (0,) and node.op.size[:1] == whole:
        return replace(node.op, size=(rows, *node.op.size[1:]))
    return node.op


def _is_plain(node: Node) -> bool:
    return not isinstance(node.op, Mark) and not node.op.bodies()


def _are_first_axis(rows: Rows, shape: Shape) -> bool:
    return bool(shape) and np.array_equal(compact(rows.of), Rows.first_axis(shape).of)


def _one_row(type: TensorType) -> TensorType:
    return type.with_shape((1, *type.shape[1:]))


def _beyond(nbytes: float, cache_bytes: int) -> float:
    """Return what bytes that are touched together cost more for lying beyond the caches."""
    return _PER_DOUBLING * nbytes * max(log2(nbytes / cache_bytes), 0) if nbytes else 0.0


def _pointers(node: Node) -> int:
    """Return the bytes of the table that a kernel keeps of where each place of a window lies, for an image."""
    match node.op:
        case Windowed():
            places = prod(node.inputs[1].shape[1:3])
        case Pool(window=window):
            places = prod(window)
        case _:
            return 0
    return 8 * places * prod(node.outputs[0].shape[1:3]) if places > 1 else 0
