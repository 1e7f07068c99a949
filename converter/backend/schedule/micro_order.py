"""Order of operators for TensorFlow Lite Micro: the one that its planner finds the smallest arena for."""

from __future__ import annotations

from collections.abc import Mapping

from converter.backend.schedule.micro_graph import arena_of
from converter.backend.schedule.order import schedule
from converter.backend.schedule.recompute import recompute
from converter.ir import Graph, Node

#: Bytes of a value that may be worth an operator, whose records take a hundred.
_SMALLEST = 512


def in_micro_order(lowered: Graph, records: Mapping[str, int]) -> Graph:
    """Return the graph in the order with the smallest arena, values computed twice where that makes it smaller.

    Args:
        lowered: in program order.
        records: of a board, see `micro_arena`.
    """
    known: dict[tuple[Node, ...], int] = {}

    def memory(ordered: Graph) -> int:
        order = tuple(ordered.nodes)
        if order not in known:
            known[order] = arena_of(ordered, records).size
        return known[order]

    def scheduled(graph: Graph) -> Graph:
        return schedule(graph, memory, lambda node: False)

    again = recompute(lowered, _SMALLEST)
    tried = [lowered] if again is lowered else [lowered, again]
    return min([scheduled(graph) for graph in tried], key=memory)
