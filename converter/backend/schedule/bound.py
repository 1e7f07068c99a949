"""Lower bound of the memory that a graph needs in an order of its nodes, so that poor orders need no plan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from converter.backend.builtins.base import Delegated
from converter.backend.schedule.memory import scratch_of
from converter.ir import Graph, Node, Value
from converter.ir.types import RESOURCE


class Bound:
    """The most bytes that are alive at once in the arena, and in the delegate's workspace: both without any gap.

    Counted is what lies in memory whatever the plan: no view of a tensor, no new value of a parameter, which the
    delegate may write to the variable at once, and no zeros around a window's input, which it may leave out.
    """

    def __init__(self, graph: Graph, runs: Mapping[Node, Delegated | None]) -> None:
        """Takes what all orders have in common.

        Args:
            graph: lowered; its state is not exported yet.
            runs: how the delegate runs each node, None where it does not.
        """
        self._place = {node: i for i, node in enumerate(graph.nodes)}
        self._inputs = sum(value.type.nbytes for value in graph.inputs)
        read = {v for node in graph.nodes for v in node.inputs} | set(graph.outputs.values())
        new = set(graph.updates.values())
        tensors: dict[Value, int] = {}  # the number of the tensor that a value is, or is a view of
        made: list[tuple[int, int, bool]] = []  # of each tensor its bytes, its maker, whether it may replace an operand
        reads: list[tuple[int, int]] = []  # tensor, reader
        scratch: list[int] = []
        for i, node in enumerate(graph.nodes):
            op, run = node.op, runs[node]
            reads += ((tensors[v], i) for v in node.inputs if v in tensors)
            if run is None:
                scratch.append(sum(scratch_of(graph, node)))
            else:
                scratch.append(run.scratch)
            if run is None and op.keeps_data and node.inputs[0] in tensors and node.output not in new:
                tensors[node.output] = tensors[node.inputs[0]]
                continue
            in_place, left_out = (bool(op.in_place()), False) if run is None else (run.in_place, run.pads)
            for value in node.outputs:
                tensors[value] = len(made)
                counts = value in read and value not in new and value.dtype != RESOURCE and not left_out
                made.append((value.type.nbytes if counts else 0, i, in_place))
        reads += ((tensors[v], len(graph.nodes)) for v in graph.outputs.values() if v in tensors)
        self._sizes, self._makers, self._later = np.array(made, np.int64).reshape(-1, 3).T
        self._read, self._readers = np.array(reads, np.int64).reshape(-1, 2).T
        self._scratch = np.array(scratch, np.int64)
        self._delegated = np.array([runs[node] is not None for node in graph.nodes], bool)

    def __call__(self, ordered: Graph) -> int:
        """Return bytes that the graph takes at least while it runs in the order in which its nodes stand here."""
        order = np.array([self._place[node] for node in ordered.nodes], np.int64)
        end = len(order)
        when = np.empty(end + 1, np.int64)
        when[order], when[end] = np.arange(end), end  # outputs are there to the end
        first = when[self._makers]
        last = first.copy()
        np.maximum.at(last, self._read, when[self._readers])
        scratch, delegated = self._scratch[order], self._delegated[order]
        # To the arena a partition is one operator: neighbours that the delegate takes run at one time. Variables cut
        # none in two: those that it does not take are read and set beside operators that it does not take either.
        begins = np.append(~delegated, True)
        begins[1:] |= begins[:-1]
        time = begins.cumsum()
        inside = delegated[first] & (time[first] == time[last])
        begin = (first + self._later)[inside]
        workspace = _peak(self._sizes[inside], begin, last[inside], np.where(delegated, scratch, 0))
        separate = np.zeros(time[end] + 1, np.int64)
        separate[time[:end][~delegated]] = scratch[~delegated]
        outside = ~inside
        begin = time[first] + np.where(delegated[first], 0, self._later)
        return self._inputs + workspace + _peak(self._sizes[outside], begin[outside], time[last][outside], separate)


def _peak(sizes: np.ndarray, first: np.ndarray, last: np.ndarray, more: np.ndarray) -> int:
    """Return the most bytes of what is alive from `first` to `last`, and of `more` at each time."""
    change = np.zeros(len(more) + 2, np.int64)
    np.add.at(change, first, sizes)
    np.subtract.at(change, last + 1, sizes)
    return int((change.cumsum()[: len(more)] + more).max(initial=0))
