"""Graph rewriting: a pass is a rule applied to every node once, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from converter.ir import Graph, Node, Value
from converter.ir.builder import LookingBuilder


class Rewriter(LookingBuilder):
    """Builds the rewritten graph and lets a rule look at what stands before a value."""

    def __init__(self, before: Graph) -> None:
        super().__init__(Graph(list(before.inputs), dict(before.constants), dict(before.parameters)))
        self._replaced: dict[Value, Value] = {}
        self._uses = Counter(value for node in before.nodes for value in node.inputs)
        self._uses.update(before.results())

    def current(self, value: Value) -> Value:
        """Return what stands for a value of the graph before."""
        return self._replaced.get(value, value)

    def replace(self, node: Node, results: tuple[Value, ...]) -> None:
        """From here on, `results` stand for the outputs of `node`; those that are new are read where these were."""
        for old, new in zip(node.outputs, results, strict=True):
            self._replaced[old] = new
            if new not in self._uses:
                self._uses[new] = self._uses[old]

    def used_once(self, value: Value) -> bool:
        """Return whether at most one node before reads `value`, or the value that it replaces.

        Steps inside of a rule are unread.
        """
        return self._uses[value] <= 1


#: Returns the replacement of the node's outputs (one Value, or a tuple), or None to keep the node.
Rule = Callable[[Rewriter, Node], Value | tuple[Value, ...] | None]


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Applies a rule to every node in order; the rule sees operands that are already rewritten."""
    b = Rewriter(graph)
    for node in graph.nodes:
        inputs = tuple(map(b.current, node.inputs))
        if inputs != node.inputs:
            node = replace(node, inputs=inputs)
        with b.at(node.origin):
            result = rule(b, node)
        if result is None:
            b.append(node)
        else:
            b.replace(node, result if isinstance(result, tuple) else (result,))
    b.graph.outputs = {name: b.current(v) for name, v in graph.outputs.items()}
    b.graph.updates = {p: b.current(v) for p, v in graph.updates.items()}
    return eliminate_dead_code(b.graph)


def eliminate_dead_code(graph: Graph) -> Graph:
    """Keeps what the outputs and updates depend on, all inputs and all parameters."""
    needed = set(graph.results())
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if node.outputs and needed.isdisjoint(node.outputs):
            continue
        if not needed.issuperset(node.outputs):
            node = _reading(node, needed)
        needed.update(node.inputs)
        nodes.append(node)
    return Graph(
        list(graph.inputs),
        {v: a for v, a in graph.constants.items() if v in needed},
        dict(graph.parameters),
        nodes[::-1],
        dict(graph.outputs),
        dict(graph.updates),
    )


def _reading(node: Node, needed: set[Value]) -> Node:
    """Return the node without results that nobody reads, where its op can do without."""
    smaller = node.op.reading(tuple(v in needed for v in node.outputs))
    if smaller is None:
        return node
    op, operands, results = smaller
    return Node(op, tuple(node.inputs[k] for k in operands), tuple(node.outputs[k] for k in results), node.origin)


def map_bodies(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """Return the graph with each body of an op in it changed, once for all ops that share it.

    The same graph where there are none.
    """
    if not any(node.op.bodies() for node in graph.nodes):
        return graph
    after, change = graph.copy(), cache(change)
    after.nodes = [
        replace(node, op=node.op.with_bodies(*map(change, bodies))) if (bodies := node.op.bodies()) else node
        for node in graph.nodes
    ]
    return after
