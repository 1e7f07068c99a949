"""Simplification of updates: scalar factors are multiplied with each other before a big tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from converter.ir import Builder, Graph, Node, Value, ops
from converter.ir.rewrite import eliminate_dead_code


@dataclass(frozen=True)
class Scale:
    """A scalar factor: number * product(over) / product(under), of rank-0 values."""

    number: float = 1.0
    over: tuple[Value, ...] = ()
    under: tuple[Value, ...] = ()

    def __mul__(self, other: Scale) -> Scale:
        return Scale(self.number * other.number, self.over + other.over, self.under + other.under)

    def __truediv__(self, other: Scale) -> Scale:
        return Scale(self.number / other.number, self.over + other.under, self.under + other.over)

    def __neg__(self) -> Scale:
        return replace(self, number=-self.number)


#: A value as a sum of scaled tensors.
Terms = list[tuple[Scale, Value]]
ONE = Scale()


def simplify(graph: Graph) -> Graph:
    """Return the same function with fewer operations on big tensors.

    Every big value is kept as a sum of scaled tensors for as long as that costs nothing, so that
    `(m / c) * -1 * learning_rate` is one multiplication of `m`. Results agree to rounding.
    """
    return _Simplifier(graph).run()


class _Simplifier:
    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.b = Builder(Graph(inputs=list(graph.inputs), constants=dict(graph.constants)))
        self.terms: dict[Value, Terms] = {}  # of values of the old graph, over values of the new one
        self.whole: dict[Value, Value] = {}
        readers = graph.consumers()
        self.shared = set(graph.outputs.values()) | {v for v, nodes in readers.items() if len(nodes) > 1}

    def run(self) -> Graph:
        for node in self.old.nodes:
            with self.b.at(node.origin):
                terms = self._combine(node)
                if terms is None:
                    copy = self.b.node(node.op, *(self.value(v) for v in node.inputs))
                    self.whole |= zip(node.outputs, copy.outputs, strict=True)
                else:
                    self.terms[node.output] = terms
                    if len(terms) > 1 and node.output in self.shared:
                        self.value(node.output)
        self.b.graph.outputs = {name: self.value(v) for name, v in self.old.outputs.items()}
        return eliminate_dead_code(self.b.graph)

    def value(self, old: Value) -> Value:
        """Return the new value, computed in full."""
        if old not in self.whole and old in self.terms:
            self.whole[old] = self._sum(self.terms.pop(old))
        return self.whole.get(old, old)

    def _of(self, old: Value) -> Terms:
        return self.terms.get(old) or [(ONE, self.value(old))]

    def _scalar(self, old: Value) -> Scale | None:
        """Return a rank-0 value as a factor."""
        if old.shape != ():
            return None
        number = self.old.constants.get(old)
        return Scale(over=(self.value(old),)) if number is None else Scale(float(number))

    def _combine(self, node: Node) -> Terms | None:
        """Return the sum of scaled tensors that a node makes, or None where it does something else."""
        if node.outputs[0].shape == () or node.outputs[0].dtype.kind != "f":
            return None
        x, y = (*node.inputs, node.inputs[0])[:2] if node.inputs else (None, None)
        if x is None or y is None:
            return None
        if isinstance(node.op, ops.Neg):
            return [(-s, v) for s, v in self._of(x)]
        if isinstance(node.op, ops.Mul | ops.Div):
            return self._product(node, x, y)
        if isinstance(node.op, ops.Add | ops.Sub) and x.shape == y.shape == node.output.shape:
            minus = isinstance(node.op, ops.Sub)
            return [*self._of(x), *((-s if minus else s, v) for s, v in self._of(y))]
        return None

    def _product(self, node: Node, x: Value, y: Value) -> Terms | None:
        divides = isinstance(node.op, ops.Div)
        factor = self._scalar(y)
        if factor is not None and not (divides and factor.number == 0):
            return [(s / factor if divides else s * factor, v) for s, v in self._of(x)]
        factor = self._scalar(x)
        if factor is not None and not divides:
            return [(s * factor, v) for s, v in self._of(y)]
        if x.shape != y.shape:
            return None
        left, right = (self._of(v) if len(self._of(v)) == 1 else [(ONE, self.value(v))] for v in (x, y))
        (p, u), (q, v) = left[0], right[0]
        if divides and q.number == 0:
            return None
        return [(p / q if divides else p * q, self.b(node.op, u, v))]

    def _sum(self, terms: Terms) -> Value:
        """Emits the sum; terms that are taken as they are come first, so that small steps add up before."""
        plain = [v for s, v in terms if s == ONE]
        rest = [(s, v) for s, v in terms if s != ONE]
        if not plain:
            return self._scaled_sum(rest)
        total = plain[0]
        for v in plain[1:]:
            total = self.b(ops.Add(), total, v)
        if not rest:
            return total
        if all(s.number < 0 for s, _ in rest):
            return self.b(ops.Sub(), total, self._scaled_sum([(-s, v) for s, v in rest]))
        return self.b(ops.Add(), total, self._scaled_sum(rest))

    def _scaled_sum(self, terms: Terms) -> Value:
        terms = sorted(terms, key=lambda term: term[0].number < 0)
        total = self._scaled(*terms[0])
        for s, v in terms[1:]:
            if s.number < 0:
                total = self.b(ops.Sub(), total, self._scaled(-s, v))
            else:
                total = self.b(ops.Add(), total, self._scaled(s, v))
        return total

    def _scaled(self, scale: Scale, v: Value) -> Value:
        if scale == ONE:
            return v
        if scale == -ONE:
            return self.b(ops.Neg(), v)
        return self.b(ops.Mul(), v, self._factor(scale))

    def _factor(self, scale: Scale) -> Value:
        """Computes the factor itself, a rank-0 value."""
        number = np.float32(scale.number)
        if not scale.over:
            total = self.b.constant(number)
        else:
            total = scale.over[0]
            for v in scale.over[1:]:
                total = self.b(ops.Mul(), total, v)
            total = total if number == 1 else self.b(ops.Mul(), total, self.b.constant(number))
        for v in scale.under:
            total = self.b(ops.Div(), total, v)
        return total
