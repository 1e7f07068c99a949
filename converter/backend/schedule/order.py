"""Operator order: the one that needs the least memory, with every update right after its gradient.

The runtime's memory planners (TFLite's arena, XNNPACK's workspace) follow the order of operators in the file, so the
order decides how many tensors are alive at once, and which of them lie at the border of a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from converter.ir import Graph, Node, Value

#: How many times the bytes of its operands a node makes, to be called much of little.
_MUCH = 8
#: How many times the bytes that a node makes it reads, to be run as soon as it can be.
_MUCH_READ = 2


def schedule(
    graph: Graph,
    memory: Callable[[Graph], int],
    stays: Callable[[Node], bool],
    least: Callable[[Graph], int] = lambda ordered: 0,
    in_parts: bool = False,
) -> Graph:
    """Return the same graph in the order that needs the least memory among the candidates.

    A parameter is overwritten as soon as its new value is known, so nodes that read the old value come before.

    Args:
        graph: in any topological order.
        memory: bytes that a graph needs in the order in which its nodes stand.
        stays: whether the delegate does not take a node.
        least: never more bytes than `memory`, told quicker.
        in_parts: whether the backward pass of a part of the loss may run before the next part.
    """
    after = dependencies(graph)
    program_order = on_demand(graph.nodes, after)
    at_gradients = _updates_at_gradients(graph, after, _for_one_weight(graph))
    # A gradient that is large beside what it is made of, as that of a head of many classes, is better made late.
    by_phase = _updates_at_gradients(graph, after, {node for node in graph.nodes if node.origin.phase == "update"})
    depth_first = _depth_first(graph, after)
    growers_late = _growers_late(graph, after, at_gradients)
    candidates = [at_gradients, program_order, depth_first, growers_late]
    by_parts = [_shrinkers_soon(graph, after, at_gradients)] if in_parts else []
    candidates += by_parts
    staying, late = _staying(graph, program_order, after, stays), _much_of_little(graph, program_order, stays)
    makers = graph.producers()
    makers_late = {node: [makers[v] for v in node.inputs if makers.get(v) in late] for node in graph.nodes}
    for order in (at_gradients, by_phase, depth_first, growers_late, *by_parts):
        staying_first = sorted(order, key=lambda node: node not in staying)
        candidates.append(on_demand(sorted(staying_first, key=late.__contains__), makers_late))
    return _smallest([_ordered(graph, order) for order in dict.fromkeys(map(tuple, candidates))], memory, least)


def _smallest(candidates: list[Graph], memory: Callable[[Graph], int], least: Callable[[Graph], int]) -> Graph:
    """Return the first of those that need the least memory.

    What cannot be better than one that is known is not asked.
    """
    bounds = [least(candidate) for candidate in candidates]
    best: tuple[int, int] | None = None
    for i in sorted(range(len(bounds)), key=bounds.__getitem__):
        if best is None or bounds[i] <= best[0]:
            found = memory(candidates[i]), i
            best = found if best is None else min(best, found)
    assert best is not None
    return candidates[best[1]]


def _ordered(graph: Graph, order: Iterable[Node]) -> Graph:
    scheduled = graph.copy()
    scheduled.nodes = list(order)
    return scheduled


def dependencies(graph: Graph) -> dict[Node, list[Node]]:
    """Return for each node, those that must run before it: its producers, and readers of a parameter it overwrites.

    Each in program order.
    """
    makers, readers = graph.producers(), graph.consumers()
    before = {node: {makers[v] for v in node.inputs if v in makers} for node in graph.nodes}
    position = {node: i for i, node in enumerate(graph.nodes)}
    for parameter, new in graph.updates.items():
        writer = makers.get(new)
        if writer is None:
            continue
        others = [reader for reader in readers.get(parameter, []) if reader is not writer]
        later = any(position[reader] > position[writer] for reader in others)
        depends = _descendants(graph, writer, position[writer]) if later else set()
        for reader in others:
            if reader not in depends:
                before[writer].add(reader)
    return {node: sorted(needs, key=position.__getitem__) for node, needs in before.items()}


def _descendants(graph: Graph, writer: Node, start: int) -> set[Node]:
    reached, found = set(writer.outputs), set()
    for node in graph.nodes[start + 1 :]:
        if any(v in reached for v in node.inputs):
            reached.update(node.outputs)
            found.add(node)
    return found


def on_demand(goals: Iterable[Node], after: dict[Node, list[Node]]) -> list[Node]:
    """Return the goals in order, each right after the nodes that must run before it and have not run yet.

    `after` is of all nodes.
    """
    done: dict[Node, None] = {}
    _run(goals, after, done)
    return list(done)


def _run(goals: Iterable[Node], after: dict[Node, list[Node]], done: dict[Node, None]) -> None:
    """Adds the goals to what has run already, each after what must run before it.

    Args:
        goals: what to run.
        after: what must run before each node, in the order in which these needs are met.
        done: what has run already; the nodes are added.
    """
    for goal in goals:
        if goal in done:
            continue
        stack = [(goal, iter(after[goal]))]
        while stack:
            node, needs = stack[-1]
            need = next((n for n in needs if n not in done), None)
            if need is not None:
                stack.append((need, iter(after[need])))
            else:
                stack.pop()
                done.setdefault(node)


def _depth_first(graph: Graph, after: dict[Node, list[Node]]) -> list[Node]:
    """From each result back to what it needs, in the order in which the results appear."""
    makers = graph.producers()
    results = {makers[v] for v in graph.results() if v in makers}
    return on_demand([n for n in graph.nodes if n in results], after)


def _updates_at_gradients(graph: Graph, after: dict[Node, list[Node]], own: set[Node]) -> list[Node]:
    """Program order, but updates, and what is their `own`, run as soon as all is there that these need of others."""
    makers = graph.producers()
    last_need: dict[Node, Node | None] = {}  # the last node for others that an update waits for
    position: dict[Node | None, int] = {None: -1}
    for i, node in enumerate(on_demand(graph.nodes, after)):
        position[node] = i
        waits_for = max((last_need[n] for n in after[node]), key=position.__getitem__, default=None)
        last_need[node] = waits_for if node in own else node
    due: dict[Node | None, list[Node]] = {}
    for new in graph.updates.values():
        if new in makers:
            due.setdefault(last_need[makers[new]], []).append(makers[new])
    done: dict[Node, None] = {}
    _run(due.get(None, []), after, done)
    for node in graph.nodes:
        if node not in own:
            _run([node, *due.get(node, [])], after, done)
    _run(graph.nodes, after, done)
    return list(done)


def _for_one_weight(graph: Graph) -> set[Node]:
    """Return the nodes that nothing waits for but the new value of one weight, or its accumulator, and of its slots."""
    waiting: dict[Value, int] = {}  # a bit for each weight; an output is nobody's own
    for i, (parameter, new) in enumerate(graph.updates.items()):
        if graph.parameters[parameter].kind in ("weight", "accumulator"):
            waiting[new] = waiting.get(new, 0) | 1 << i + 2
    for value in graph.outputs.values():
        waiting[value] = waiting.get(value, 0) | 3
    own = set()
    for node in reversed(graph.nodes):
        those = 0
        for value in node.outputs:
            those |= waiting.get(value, 0)
        for value in node.inputs:
            waiting[value] = waiting.get(value, 0) | those
        if those.bit_count() <= 1:
            own.add(node)
    return own


def _shrinkers_soon(graph: Graph, after: dict[Node, list[Node]], order: list[Node]) -> list[Node]:
    """Return an order in which what reads more than it makes runs as soon as the forward pass is far enough.

    So a loss in parts goes on from part to part, forward and backward.
    """
    forward = [node for node in order if not node.origin.is_late]
    place = {node: float(i) for i, node in enumerate(forward)}  # of others: that of the last which they wait for
    soon: list[Node] = []
    for node in order:
        if node.origin.is_late:
            place[node] = max((place[need] for need in after[node]), default=-1.0)
            made = sum(v.type.nbytes for v in node.outputs)
            if 0 <= place[node] < len(forward) - 1 and _MUCH_READ * made <= _read(graph, node):
                soon.append(node)
    return on_demand([*sorted([*forward, *soon], key=place.__getitem__), *order], after)


def _read(graph: Graph, node: Node) -> int:
    return sum(v.type.nbytes for v in node.inputs if v not in graph.constants and v not in graph.parameters)


def _growers_late(graph: Graph, after: dict[Node, list[Node]], order: list[Node]) -> list[Node]:
    """Return an order in which what makes more bytes than it frees runs right before its first reader."""
    position = {node: i for i, node in enumerate(order)}
    persistent = {*graph.inputs, *graph.constants, *graph.parameters}
    last_reader = {v: max(nodes, key=position.__getitem__) for v, nodes in graph.consumers().items()}
    deadline: dict[Node, float] = {}  # a node runs before all that wait for it
    for node in reversed(order):
        latest = deadline.get(node, float(len(order)))
        freed = sum(v.type.nbytes for v in dict.fromkeys(node.inputs) if v not in persistent and last_reader[v] is node)
        grows = sum(v.type.nbytes for v in node.outputs) > freed
        deadline[node] = latest if grows and latest < len(order) else min(float(position[node]), latest)
        for need in after[node]:
            # A little earlier than the node itself; positions are integers, so chains stay in order.
            deadline[need] = min(deadline.get(need, float(len(order))), deadline[node] - 1e-6)
    return sorted(order, key=lambda n: (deadline[n], position[n]))


def _staying(
    graph: Graph, nodes: Iterable[Node], after: dict[Node, list[Node]], stays: Callable[[Node], bool]
) -> set[Node]:
    """Return what waits for nothing that the delegate takes: labels, indices. First, they cut no partition in two.

    But weights that are unpacked wait for what meets them.
    """
    found: set[Node] = set()
    for node in nodes:
        if stays(node) and not all(v in graph.constants for v in node.inputs) and found.issuperset(after[node]):
            found.add(node)
    return found


def _much_of_little(graph: Graph, nodes: Iterable[Node], stays: Callable[[Node], bool]) -> set[Node]:
    """Return what makes much of little, as labels of narrow ones: it had better run right before its first reader."""
    made = graph.producers()
    found: set[Node] = set()
    for node in nodes:
        read = [v for v in node.inputs if v not in graph.constants and made.get(v) not in found]
        nbytes = sum([v.type.nbytes for v in read])
        little = _MUCH * nbytes <= sum([v.type.nbytes for v in node.outputs])
        if little and graph.parameters.keys().isdisjoint(node.inputs) and not stays(node):
            found.add(node)
    return found
