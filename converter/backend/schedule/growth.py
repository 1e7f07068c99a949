"""Order of operators by their growth of memory, and the peak memory of an order."""

from __future__ import annotations

from converter.backend.schedule.order import dependencies
from converter.ir import Graph, Node, Value


def by_growth(graph: Graph) -> Graph:
    """Return the graph with, of the nodes that can run next, the one next that adds the fewest bytes.

    That is its result less the operands that nobody else waits for.
    """
    after, readers = dependencies(graph), graph.consumers()
    waiting = {value: len(nodes) for value, nodes in readers.items()}
    kept = {*graph.results(), *graph.constants}
    needs = {node: len(before) for node, before in after.items()}
    followers: dict[Node, list[Node]] = {}
    for node, before in after.items():
        for other in before:
            followers.setdefault(other, []).append(node)
    place = {node: i for i, node in enumerate(graph.nodes)}

    def growth(node: Node) -> tuple[int, int]:
        freed = sum(v.type.nbytes for v in set(node.inputs) if waiting[v] == 1 and v not in kept)
        made = sum(v.type.nbytes for v in node.outputs if v in readers or v in kept)
        return made - freed, place[node]

    ready, ordered = [node for node in graph.nodes if not needs[node]], graph.copy()
    ordered.nodes = []
    while ready:
        node = min(ready, key=growth)
        ready.remove(node)
        ordered.nodes.append(node)
        for value in set(node.inputs):
            waiting[value] -= 1
        for other in followers.get(node, ()):
            needs[other] -= 1
            if not needs[other]:
                ready.append(other)
    return ordered


def most_at_once(ordered: Graph) -> tuple[int, list[Value]]:
    """Return the bytes of what is there when most is, and the values, the largest first.

    Inputs and parameters are there from the first node on, each value until its last reader, results until the end.
    """
    last = {value: place for place, node in enumerate(ordered.nodes) for value in node.inputs}
    last |= dict.fromkeys(ordered.results(), len(ordered.nodes))
    alive = {value: None for value in (*ordered.inputs, *ordered.parameters) if value in last}
    best, most = list(alive), 0
    for place, node in enumerate(ordered.nodes):
        alive |= dict.fromkeys(node.outputs)
        total = sum(value.type.nbytes for value in alive)
        if total > most:
            best, most = list(alive), total
        alive = {value: None for value in alive if last.get(value, -1) > place}
    return most, sorted(best, key=lambda value: -value.type.nbytes)
