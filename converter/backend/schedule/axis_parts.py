"""A large value computed some channels at a time, from its producer to its readers, if these allow it.

What is separate along an axis (a convolution and its filters, what is after it channel by channel, the gradient of a
filter) is computed for some places of the axis, then for the next, so that of all between only some places are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.schedule.along import Along, axes_along, for_places, scales_of
from converter.backend.schedule.order import dependencies, on_demand
from converter.ir import Builder, Graph, Node, Value, is_described
from converter.ir.op import Op

#: A value of this share of the first one's bytes, or less, is there as a whole.
_SMALL = 8


@dataclass
class Region:
    """The operators that are separate along an axis, and the values that are never there as a whole.

    Attributes:
        axes: of each such value, where it has the axis.
        nodes: in the order of the graph.
        width: the places of the axis.
    """

    axes: dict[Value, int]
    nodes: dict[Node, Along]
    width: int


def region_of(graph: Graph, value: Value, axis: int) -> Region | None:
    """Return what can be computed in parts with a value, as far as values are about as large; None where axes differ.

    Args:
        graph: lowered.
        value: made by an operator.
        axis: of it.
    """
    makers, readers = graph.producers(), graph.consumers()
    found, waiting = Region({}, {}, value.shape[axis]), [(value, axis)]
    while waiting:
        one, place = waiting.pop()
        if found.axes.setdefault(one, place) != place:
            return None
        around = [makers[one], *readers.get(one, ())]
        for node in around:
            along = _through(node, one, place)
            if along is None or found.nodes.setdefault(node, along) != along:
                if along is not None:
                    return None
                continue
            of_operands = [(v, a) for v, a in zip(node.inputs, along.operands, strict=True) if v in makers]
            of_result = (node.output, along.result)
            for v, a in (*of_operands, of_result):
                if a is not None and v not in found.axes and v.type.nbytes * _SMALL > value.type.nbytes:
                    waiting.append((v, a))
    order = {node: i for i, node in enumerate(graph.nodes)}
    found.nodes = dict(sorted(found.nodes.items(), key=lambda item: order[item[0]]))
    return found if any(_through(makers[v], v, a) for v, a in found.axes.items()) else None


def _through(node: Node, value: Value, axis: int) -> Along | None:
    """Return how an operator that makes or reads a value is separate along an axis of it, if it is."""
    for along in axes_along(node):
        places = [a for v, a in zip(node.inputs, along.operands, strict=True) if v is value]
        if along.result == axis if node.output is value else bool(places) and set(places) == {axis}:
            return along
    return None


def region_in_parts(graph: Graph, region: Region, width: int) -> Graph | None:
    """Return a graph that computes a region so many places at a time; None where it cannot.

    That is where these are all places, or a constant is read from a file.

    Before: y = Relu(Conv2D(x, w)); z = Mean(y).
    After:  z = Concatenation(Mean(Relu(Conv2D(x, w[:n]))), Mean(Relu(Conv2D(x, w[n:]))), ...).

    What adds up over the axis adds up the parts, in another order than before; nothing else changes.
    """
    parts = [slice(at, min(at + width, region.width)) for at in range(0, region.width, width)]
    return _Rewriting(graph, region, parts).graph() if len(parts) > 1 else None


@dataclass
class _Rewriting:
    given: Graph
    region: Region
    parts: Sequence[slice]
    _pieces: dict[Value, list[Value]] = field(default_factory=dict)
    _constants: dict[tuple[Value, int, int], Value] = field(default_factory=dict)
    _goals: list[Node] = field(default_factory=list)  # the parts, in order

    def graph(self) -> Graph | None:
        cut = {v for node in self.region.nodes for v, _ in self._cut(node)}
        if any(is_described(self.given.constants[v]) for v in cut & self.given.constants.keys()):
            return None
        self._b = Builder(self.given.copy())
        self._b.graph.nodes = []
        self._made = {*self.given.inputs, *self.given.constants, *self.given.parameters}
        left = dict.fromkeys(self.given.nodes, 0)  # of each, the parts that are done
        while left:
            before = len(self._b.graph.nodes)
            for node in [n for n in left if n not in self.region.nodes]:
                if self._made.issuperset(node.inputs):
                    self._b.append(node)
                    self._made.update(node.outputs)
                    del left[node]
            # One part goes as far as it can before the next begins.
            for number in range(len(self.parts)):
                for node in self.region.nodes:
                    if left.get(node) == number and self._is_ready(node, number):
                        self._add(node, number)
                        left[node] += 1
                        if left[node] == len(self.parts):
                            del left[node]
            assert len(self._b.graph.nodes) > before, "a part waits for what is made of another"
        graph = self._b.graph
        # What is not in parts is made when a part asks for it.
        graph.nodes = on_demand([*self._goals, *graph.nodes], dependencies(graph))
        return graph

    def _cut(self, node: Node) -> Iterator[tuple[Value, int]]:
        """Yield what a node of the region reads in parts and is there as a whole, with its axis."""
        for value, axis in zip(node.inputs, self.region.nodes[node].operands, strict=True):
            if axis is not None and value not in self._in_parts:
                yield value, axis

    @cached_property
    def _in_parts(self) -> set[Value]:
        """What nodes of the region make in parts."""
        return {node.output for node, along in self.region.nodes.items() if along.result is not None}

    @cached_property
    def _whole(self) -> set[Value]:
        """What is read as a whole."""
        found = set(self.given.results())
        for node in self.given.nodes:
            places = self.region.nodes[node].operands if node in self.region.nodes else (None,) * len(node.inputs)
            found.update(v for v, axis in zip(node.inputs, places, strict=True) if axis is None)
        return found

    def _is_ready(self, node: Node, number: int) -> bool:
        """Return whether all is there that a part of a node reads."""
        return all(
            len(self._pieces.get(v, ())) > number if axis is not None and v in self._in_parts else v in self._made
            for v, axis in zip(node.inputs, self.region.nodes[node].operands, strict=True)
        )

    def _add(self, node: Node, number: int) -> None:
        """Adds a part of a node, and with the last what others read of it."""
        along, part = self.region.nodes[node], self.parts[number]
        is_last = number == len(self.parts) - 1
        with self._b.at(node.origin):
            operands = [
                v if axis is None else self._part(v, axis, number)
                for v, axis in zip(node.inputs, along.operands, strict=True)
            ]
            if along.result is None and number > 0:
                operands[2:] = [self._b.constant(np.zeros(v.shape, v.dtype)) for v in operands[2:]]
            goal = self._b.node(for_places(node.op, along, part), *operands)
            self._goals.append(goal)
            made = goal.output
            pieces = self._pieces.setdefault(node.output, [])
            if along.result is not None:
                pieces.append(made)
                if is_last and node.output in self._whole:
                    self._finish(node, _moving(tfl.Concatenation(along.result), *pieces), pieces)
            elif is_last:
                self._finish(node, tfl.Add(getattr(node.op, "activation", "NONE")), [*pieces, made])
            else:
                pieces[:] = [self._b(tfl.Add(), *pieces, made) if pieces else made]

    def _finish(self, node: Node, op: Op, operands: Sequence[Value]) -> None:
        self._b.append(Node(op, tuple(operands), node.outputs, node.origin))
        self._made.update(node.outputs)

    def _part(self, value: Value, axis: int, number: int) -> Value:
        """Return some places of an operand: of a constant at once."""
        if value in self._in_parts:
            return self._pieces[value][number]
        part, rank = self.parts[number], value.type.rank
        array = self.given.constants.get(value)
        if array is not None:
            key = value, axis, number
            if key not in self._constants:
                cut, scales = array[(*axis * (slice(None),), part)], scales_of(value.type.quantization, axis, part)
                self._constants[key] = (
                    self._b.constant(cut, name=value.name)
                    if scales is None
                    else self._b.quantized(cut, scales, value.name)
                )
            return self._constants[key]
        begin = tuple(part.start if i == axis else 0 for i in range(rank))
        size = tuple(part.stop - part.start if i == axis else n for i, n in enumerate(value.shape))
        return self._b(_moving(tfl.Slice(begin, size), value), value)


def _moving(op: tfl.Movement, *operands: Value) -> Op:
    """Return what moves operands as it is for integers that stand for numbers, where theirs do."""
    scale = operands[0].type.quantization
    return op if scale is None else tfl.Int8((scale,) * len(operands), op, scale)
