"""Outlining: a long step as a row of subgraphs, each of which runs once.

Of each partition XNNPACK's delegate keeps a table of all tensors of the subgraph that it is in. A step of thousands of
partitions and tens of thousands of tensors would be resident as hundreds of megabytes of such tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import numpy as np

from converter.ir import BOOL, INT32, Graph, Node, TensorType, Value
from converter.ir.types import RESOURCE
from converter.tflite import builtins as tfl

#: Operators of a graph that stays in one piece, and of the shortest and the longest piece of a longer one.
LONGEST, SHORTEST_PIECE, LONGEST_PIECE = 3000, 200, 800
_COUNTER = TensorType((1,), INT32)


def outlined(graph: Graph) -> Graph:
    """Return a long scheduled graph in pieces, cut where few bytes cross.

    Before: a = f(x, w); b = g(a); ...
    After:  a = While(x, w: f); b = While(a: g); ..., each of one step.

    WHILE gives what it takes: what a piece makes for others takes the place of something of the same type that it
    reads, as the next state that of the last, or of zeros.
    """
    if len(graph.nodes) <= LONGEST:
        return graph
    cuts = [0, *_cuts(graph), len(graph.nodes)]
    after = graph.copy()
    after.nodes = []
    read = _last_readers(graph)
    for first, end in pairwise(cuts):
        piece = graph.nodes[first:end]
        if all(_fits(node) for node in piece):
            made = [v for node in piece for v in node.outputs if read.get(v, -1) >= end]
            after.nodes.append(_once(after, piece, made))
        else:
            after.nodes += piece
    return after


def in_one(graph: Graph) -> Graph:
    """Return an outlined graph as it was: what is counted of a step does not depend on its pieces."""
    after = graph.copy()
    after.nodes = []
    for node in graph.nodes:
        body = node.op.body if isinstance(node.op, tfl.While) and node.op.is_outlined else None
        if body is None:
            after.nodes.append(node)
        else:
            after.constants |= body.constants
            after.nodes += body.nodes[:-1]  # but for the counter
    return after


def _last_readers(graph: Graph) -> dict[Value, int]:
    """Return where each value is read last; behind all nodes what the graph gives."""
    read = {value: i for i, node in enumerate(graph.nodes) for value in node.inputs}
    return read | dict.fromkeys(graph.results(), len(graph.nodes))


def _cuts(graph: Graph) -> list[int]:
    """Return where pieces begin, but for the first: in reach of the one before where the fewest bytes cross."""
    read, change = _last_readers(graph), [0] * (len(graph.nodes) + 1)
    for i, node in enumerate(graph.nodes):
        for value in node.outputs:
            if (last := read.get(value, i)) > i:
                change[i + 1] += value.type.nbytes
                if last < len(graph.nodes):
                    change[last + 1] -= value.type.nbytes
    crossing = list(accumulate(change))
    found, start = [], 0
    while len(graph.nodes) - start > LONGEST_PIECE:
        start = min(range(start + SHORTEST_PIECE, start + LONGEST_PIECE), key=crossing.__getitem__)
        found.append(start)
    return found


def _fits(node: Node) -> bool:
    return all(v.dtype != RESOURCE for v in (*node.inputs, *node.outputs))


def _once(graph: Graph, piece: Sequence[Node], made: Sequence[Value]) -> Node:
    """Return the operator that runs a piece of a graph; constants that it needs are added to the graph."""
    inside = {v for node in piece for v in node.outputs}
    taken = [v for v in dict.fromkeys(v for node in piece for v in node.inputs) if v not in inside]
    known = {v: graph.constants[v] for v in taken if v in graph.constants}
    operands = [v for v in taken if v not in known]
    places = _places(operands, made)
    for value in (v for v in made if v not in places):
        zeros = Value(value.type, f"{value.name}/before")
        graph.constants[zeros] = np.zeros(value.shape, value.dtype)
        places[value] = len(operands)
        operands.append(zeros)
    results = {place: value for value, place in places.items()}
    counter = Value(_COUNTER, "counter")
    graph.constants[counter] = np.zeros(1, np.int32)
    body = Graph([Value(_COUNTER, "operand_0"), *operands], known, {}, list(piece))
    count, one = Value(_COUNTER, "result_0"), Value(_COUNTER, "one")
    body.constants[one] = np.ones(1, np.int32)
    body.nodes.append(Node(tfl.Add(), (body.inputs[0], one), (count,), piece[-1].origin))
    given = [count, *(results.get(i, v) for i, v in enumerate(operands))]
    body.outputs = {f"result_{i}": value for i, value in enumerate(given)}
    outputs = [Value(_COUNTER, "counter"), *(results.get(i, Value(v.type, v.name)) for i, v in enumerate(operands))]
    return Node(
        tfl.While(_is_first(operands), body, is_outlined=True), (counter, *operands), tuple(outputs), piece[-1].origin
    )


def _places(operands: Sequence[Value], made: Iterable[Value]) -> dict[Value, int]:
    """Return the operand of the same type in whose place each value is given, each once, as far as there are any."""
    free: dict[TensorType, list[int]] = {}
    for i, value in reversed(list(enumerate(operands))):
        free.setdefault(value.type, []).append(i)
    return {value: free[value.type].pop() for value in made if free.get(value.type)}


def _is_first(operands: Sequence[Value]) -> Graph:
    """Return the condition: the counter is 0."""
    counter, one = (Value(_COUNTER, name) for name in ("operand_0", "one"))
    holds = Value(TensorType((1,), BOOL), "is_first")
    inputs = [counter, *(Value(v.type, f"operand_{i + 1}") for i, v in enumerate(operands))]
    less = Node(tfl.Less(), (counter, one), (holds,))
    return Graph(inputs, {one: np.ones(1, np.int32)}, {}, [less], {"is_first": holds})
