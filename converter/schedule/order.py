"""Order of execution: the smallest arena, and every update right after its gradient.

The runtime's memory planners (TFLite's arena, XNNPACK's workspace) follow the order of operators in the file, so the
order decides how many tensors are alive at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from converter.ir import Graph, Node, Value
from converter.schedule.memory import peak_of_order


def schedule(graph: Graph) -> Graph:
    """The same graph in the order with the lowest peak of live bytes among the candidates.

    A parameter is overwritten as soon as its new value is known, so nodes that read the old value come before.
    """
    after = dependencies(graph)
    candidates = [
        _list_schedule(graph, after, _frees_most(graph)),
        _list_schedule(graph, after, _updates_first(graph)),
        _depth_first(graph, after),
    ]
    best = min(candidates, key=lambda order: peak_of_order(graph, order))
    scheduled = graph.copy()
    scheduled.nodes = list(best)
    return scheduled


def dependencies(graph: Graph) -> dict[Node, set[Node]]:
    """For each node, those that must run before it: its producers, and readers of a parameter it overwrites."""
    makers, readers = graph.producers(), graph.consumers()
    after = {node: {makers[v] for v in node.inputs if v in makers} for node in graph.nodes}
    position = {node: i for i, node in enumerate(graph.nodes)}
    for parameter, new in graph.updates.items():
        writer = makers.get(new)
        if writer is None:
            continue
        depends = _descendants(graph, writer, position[writer])
        for reader in readers.get(parameter, []):
            if reader is not writer and reader not in depends:
                after[writer].add(reader)
    return after


def _descendants(graph: Graph, writer: Node, start: int) -> set[Node]:
    reached, found = set(writer.outputs), set()
    for node in graph.nodes[start + 1 :]:
        if any(v in reached for v in node.inputs):
            reached.update(node.outputs)
            found.add(node)
    return found


#: Sort key of a ready node given how many readers each value still has; the lowest runs next.
Priority = Callable[[Node, dict[Value, int]], tuple]


def _list_schedule(graph: Graph, after: dict[Node, set[Node]], priority: Priority) -> list[Node]:
    position = {node: i for i, node in enumerate(graph.nodes)}
    before: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    waiting = {node: len(needs) for node, needs in after.items()}
    for node, needs in after.items():
        for need in needs:
            before[need].append(node)
    left = {v: len(nodes) for v, nodes in graph.consumers().items()}
    ready = [(priority(n, left), position[n], n) for n in graph.nodes if waiting[n] == 0]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        # Priorities change as readers run: look at the best few again before choosing.
        again = [heapq.heappop(ready) for _ in range(min(8, len(ready)))]
        fresh = sorted((priority(n, left), i, n) for _, i, n in again)
        for item in fresh[1:]:
            heapq.heappush(ready, item)
        node = fresh[0][2]
        order.append(node)
        for value in dict.fromkeys(node.inputs):
            left[value] -= 1
        for follower in before[node]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (priority(follower, left), position[follower], follower))
    return order


def _frees_most(graph: Graph) -> Priority:
    """Least growth of live bytes first; program order among equals."""
    persistent = {*graph.inputs, *graph.constants, *graph.parameters}
    kept = set(graph.outputs.values())

    def key(node: Node, left: dict[Value, int]) -> tuple:
        made = sum(v.type.nbytes for v in node.outputs)
        freed = sum(
            v.type.nbytes
            for v in dict.fromkeys(node.inputs)
            if left.get(v) == 1 and v not in persistent and v not in kept
        )
        return (max(made - freed, 0) > 0, made - freed)

    return key


def _updates_first(graph: Graph) -> Priority:
    """Program order, but what belongs to an optimizer update runs as soon as it can."""

    def key(node: Node, left: dict[Value, int]) -> tuple:
        return (node.origin.phase != "update",)

    return key


def _depth_first(graph: Graph, after: dict[Node, set[Node]]) -> list[Node]:
    """From each result back to what it needs, updates in the order in which their gradients appear."""
    makers = graph.producers()
    position = {node: i for i, node in enumerate(graph.nodes)}
    goals = sorted({makers[v] for v in graph.results() if v in makers}, key=position.__getitem__)
    done: dict[Node, None] = {}
    for goal in goals:
        stack = [(goal, iter(sorted(after[goal], key=position.__getitem__)))]
        while stack:
            node, needs = stack[-1]
            need = next((n for n in needs if n not in done), None)
            if need is not None:
                stack.append((need, iter(sorted(after[need], key=position.__getitem__))))
            else:
                stack.pop()
                done.setdefault(node)
    return list(done)
