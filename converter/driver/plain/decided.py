"""Constant folding for export: values that depend only on the weights of an inference model, computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from converter.backend import builtins as tfl
from converter.ir import Graph, Node, Op, Value
from converter.ir.types import FLOAT32
from converter.program.assembly import MOST_AXES, TIMES, Known, Source

#: What gives the same bits wherever it is computed.
_SOURCES: Mapping[type[Op], Source] = {tfl.Add: "add", tfl.Mul: "multiply", tfl.Reshape: "reshape"}


class Decided(NamedTuple):
    """A graph without the nodes that it need not run.

    Attributes:
        graph: what is left; its values that are known are read by it, and made by no node.
        values: those that are computed at export, with the place of each in `known`.
        known: how they are computed.
    """

    graph: Graph
    values: dict[Value, int]
    known: list[Known]


def decided(graph: Graph, stored: Callable[[np.ndarray], int]) -> Decided:
    """Takes out what parameters and constants decide by sums and products of numbers, such as folded scales.

    Nothing is taken out that would make the model larger: of what a result is computed from, one as large as it is
    needed for nothing else. Nor what takes so many steps that they, with all that is stored, would be more than an
    export may make (`TIMES`).

    Args:
        graph: lowered.
        stored: the buffer of the program that a constant has.
    """
    nodes, leaves, nbytes = _computable(graph)
    rest = [node for node in graph.nodes if node.outputs[0] not in nodes]
    outputs = set(graph.outputs.values())
    wanted = dict.fromkeys([*(v for node in rest for v in node.inputs), *outputs])
    uses = Counter(leaf for value in wanted for leaf in leaves.get(value, ()))
    chosen = set[Value]()
    for value in nodes.keys() & wanted.keys() - outputs:
        own = [leaf.type.nbytes for leaf in leaves[value] if uses[leaf] == 1]
        if max(own, default=-1) >= value.type.nbytes and nbytes[value] <= (TIMES - 1) * sum(own):
            chosen.add(value)
    left = _without(graph, chosen)
    records = _Records(graph, nodes, stored)
    return Decided(left, {value: records.place(value) for value in wanted if value in chosen}, records.known)


def _computable(graph: Graph) -> tuple[dict[Value, Node], dict[Value, frozenset[Value]], Counter[Value]]:
    """Return the nodes that could be run at export by their result.

    What each known value is made of, and its steps' bytes.
    """
    nodes: dict[Value, Node] = {}
    nbytes = Counter[Value]()
    leaves = {v: frozenset([v]) for v in (*graph.parameters, *graph.constants) if _is_plain(v)}
    for node in graph.nodes:
        if type(node.op) not in _SOURCES or getattr(node.op, "activation", "NONE") != "NONE":
            continue
        (result,) = node.outputs
        sizes = [value.type.size for value in node.inputs]
        if all(v in leaves for v in node.inputs) and result.type.size == max(sizes) and _is_plain(result):
            nodes[result] = node
            nbytes[result] = result.type.nbytes + sum(nbytes[value] for value in node.inputs)
            leaves[result] = frozenset().union(*(leaves[value] for value in node.inputs))
    return nodes, leaves, nbytes


def _is_plain(value: Value) -> bool:
    return value.dtype == FLOAT32 and value.type.quantization is None and value.type.rank <= MOST_AXES


def _without(graph: Graph, chosen: Collection[Value]) -> Graph:
    """Return the graph where these values are known, with the nodes, parameters and constants that are still needed."""
    after, needed = graph.copy(), set(graph.outputs.values())
    after.nodes = []
    for node in reversed(graph.nodes):
        if node.outputs[0] not in chosen and needed.intersection(node.outputs):
            after.nodes.append(node)
            needed.update(node.inputs)
    after.nodes.reverse()
    after.parameters = {value: p for value, p in graph.parameters.items() if value in needed}
    after.constants = {value: array for value, array in graph.constants.items() if value in needed}
    return after


class _Records:
    """How values are computed, each once and after what it is computed from."""

    def __init__(self, graph: Graph, nodes: dict[Value, Node], stored: Callable[[np.ndarray], int]) -> None:
        self._graph, self._nodes, self._stored = graph, nodes, stored
        self._places: dict[Value, int] = {}
        self.known: list[Known] = []

    def place(self, value: Value) -> int:
        """Return where the record of a value is; it is written if it is not there yet."""
        if value not in self._places:
            record = self._record(value)
            self._places[value] = len(self.known)
            self.known.append(record)
        return self._places[value]

    def _record(self, value: Value) -> Known:
        if (node := self._nodes.get(value)) is not None:
            first, *others = sorted(node.inputs, key=lambda operand: -operand.type.size)
            places = tuple(self.place(operand) for operand in (first, *others))
            return Known(_SOURCES[type(node.op)], value.shape, operands=places)
        if (parameter := self._graph.parameters.get(value)) is not None:
            return Known("merged" if parameter.kind == "merged" else "state", value.shape, name=parameter.name)
        return Known("buffer", value.shape, number=self._stored(self._graph.constants[value]))
