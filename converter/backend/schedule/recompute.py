"""Rematerialization: computes cheap forward values again in the backward pass, where that keeps less alive.

A GELU's output is kept for the gradient of the next weight, and its input for its own: the output can be made again
from the input in one elementwise pass (rematerialisation; Chen et al., arXiv 1604.06174, here without any product).
"""

from __future__ import annotations

from dataclasses import replace

from converter.ir import Graph, Node, Value
from converter.passes import eliminate_dead_code

#: Values smaller than this are not worth an operator.
SMALLEST = 1 << 16
#: Operators in a row that may be run again for one value.
LONGEST = 3


def recompute(graph: Graph, smallest: int = SMALLEST) -> Graph:
    """Return the lowered graph with residuals recomputed that cheap operators make of what is kept anyway.

    Before: y = Gelu(x); z = y @ W; ...; dW = y' @ dz; dx = GeluGrad(x, dz).
    After:  y = Gelu(x); z = y @ W; ...; y2 = Gelu(x); dW = y2' @ dz; dx = GeluGrad(x, dz).

    Nothing lives longer than before, or only what is a small part of the residual. The same graph when there is nothing
    to be won.
    """
    return _Recomputation(graph, smallest).graph()


class _Recomputation:
    def __init__(self, graph: Graph, smallest: int) -> None:
        self.given, self.smallest = graph, smallest
        self.makers = graph.producers()
        readers = graph.consumers()
        self.before = graph.copy()
        self.before.nodes = self._soon(graph.nodes, readers)
        self.position = {node: i for i, node in enumerate(self.before.nodes)}
        self.late = {v: [n for n in nodes if n.origin.is_late] for v, nodes in readers.items()}
        self.again: dict[Value, Value] = {}  # residual -> its second computation
        self.inserted: dict[Node, list[Node]] = {}  # node -> what runs right before it

    def graph(self) -> Graph:
        results = set(self.before.results())
        residuals = [
            v
            for v, late in self.late.items()
            if late and v.type.nbytes >= self.smallest and v not in results and self._is_forward(v)
        ]
        # From the input on: what is recomputed already can be read by the next.
        for value in sorted(residuals, key=lambda v: self.position[self.makers[v]]):
            self._try(value)
        if not self.again:
            return self.given
        after = self.before.copy()
        after.nodes = []
        for node in self.before.nodes:
            after.nodes += self.inserted.get(node, [])
            if node.origin.is_late:
                node = replace(node, inputs=tuple(self.again.get(v, v) for v in node.inputs))
            after.nodes.append(node)
        return eliminate_dead_code(after)  # the first computation of what only the backward pass reads

    def _soon(self, nodes: list[Node], readers: dict[Value, list[Node]]) -> list[Node]:
        """Return the nodes with those of updates, which stand last, where the last cotangent that they need is there.

        What of them waits for no cotangent, as a residual times the learning rate, stands before what reads it.
        """
        place = {node: i for i, node in enumerate(nodes)}
        order = dict(place)
        updates = nodes[next((i for i, node in enumerate(nodes) if node.origin.phase == "update"), len(nodes)) :]
        for node in updates:
            place[node] = max((place[self.makers[v]] for v in node.inputs if v in self.makers), default=0)
        for node in reversed(updates):
            if all(self._is_forward(v) for v in node.inputs if v in self.makers):
                place[node] = min((place[n] for v in node.outputs for n in readers.get(v, [])), default=place[node])
        return sorted(nodes, key=lambda node: (place[node], order[node]))

    def _is_forward(self, value: Value) -> bool:
        return value in self.makers and not self.makers[value].origin.is_late

    def _try(self, value: Value) -> None:
        """Recomputes a residual before its first reader in the backward pass, if all it is made of is there then."""
        first = min(self.late[value], key=self.position.__getitem__)
        chain = self._chain(value, self.position[first], value.type.nbytes, LONGEST)
        if chain is None:
            return
        copies: dict[Value, Value] = {}
        for node in chain:
            made = Value(node.output.type, f"{node.output.name}/again")
            inputs = tuple(copies.get(v, v) for v in node.inputs)
            self.inserted.setdefault(first, []).append(Node(node.op, inputs, (made,), node.origin.in_phase("backward")))
            copies[node.output] = made
        self.again[value] = copies[value]

    def _chain(self, value: Value, when: int, spare: int, longest: int) -> list[Node] | None:
        """Return the cheap nodes that make a value from what is kept until `when`, in order.

        None if there are none such.
        """
        node = self.makers.get(value)
        if node is None or not longest or len(node.outputs) != 1 or not node.op.is_cheap:
            return None
        chain: list[Node] = []
        for operand in node.inputs:
            if self._is_kept(operand, when) or operand.type.nbytes * 16 <= spare:
                continue
            before = self._chain(operand, when, spare, longest - 1 - len(chain))
            if before is None:
                return None
            chain += [n for n in before if n not in chain]
        return [*chain, node] if len(chain) < longest else None

    def _is_kept(self, value: Value, when: int) -> bool:
        """Return whether a value is there at that node of the backward pass whatever is recomputed."""
        if value not in self.makers:
            return True
        if value in self.again:
            return False
        return any(self.position[n] >= when for n in self.late.get(value, []))
