"""Finiteness: which values and derivatives of a graph may be infinite or NaN though all inputs are finite.

Poles count, as of 1 / x, log(x) and the slope of sqrt(x) at 0, and e^x from 88 on; products and sums that leave
float32's range do not. If in doubt, a value may be infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType

from converter.ir import ops
from converter.ir.described import is_described
from converter.ir.extent import Extent, Pole
from converter.ir.graph import Graph, Node, Value
from converter.ir.op import Op

#: How far before a value its extent is looked for.
DEPTH = 24
_NOTHING: Mapping[Value, Extent] = MappingProxyType({})
#: Of v < c: what v is between, and what it is between where that is false; likewise for the others.
_BELOW = (ops.Less, ops.LessEqual)
_ABOVE = (ops.Greater, ops.GreaterEqual)


class Finiteness:
    """What is known of a graph's values by the arithmetic that makes them.

    Args:
        graph: of semantic ops.
        given: what is known of its inputs.
    """

    def __init__(self, graph: Graph, given: Mapping[Value, Extent] = _NOTHING) -> None:
        self._graph = graph
        self._made_by = graph.producers()
        self._known: dict[Value, Extent] = dict(given)
        self._infinite: set[Value] | None = None

    def extent(self, value: Value, depth: int = DEPTH) -> Extent:
        """Return between which numbers a value lies, as far as `depth` nodes before it say so."""
        if value in self._known:
            return self._known[value]
        array = self._graph.constants.get(value)
        node = self._made_by.get(value)
        if array is not None:
            found = Extent(nonzero=True) if is_described(array) else Extent.of_array(array)
        elif node is None or not depth or len(node.outputs) > 1:
            return Extent()
        else:
            found = self._of_node(node, depth - 1)
        self._known[value] = found
        return found

    def _of_node(self, node: Node, depth: int) -> Extent:
        operands = [self.extent(v, depth) for v in node.inputs]
        if isinstance(node.op, ops.Mul) and node.inputs[0] is node.inputs[1]:
            nearest = max(operands[0].low, -operands[0].high, 0.0)
            return Extent(nearest * nearest, nonzero=operands[0].without_zero)
        if isinstance(node.op, ops.Select):
            operands[1:] = [self._chosen(node, k, operands[k]) for k in (1, 2)]
        if node.op.moves_data:  # not by what says where to
            operands = [e for e, v in zip(operands, node.inputs, strict=True) if v.dtype == node.output.dtype]
        low, high = node.op.bounds(*(v.type for v in node.inputs))
        return node.op.extent(*operands).within(low, high)

    def _chosen(self, node: Node, place: int, extent: Extent) -> Extent:
        """Return the extent of an operand of a Select where it is chosen, by a comparison of it with a number."""
        test, value = self._made_by.get(node.inputs[0]), node.inputs[place]
        if test is None or not isinstance(test.op, ops.Comparison) or value not in test.inputs:
            return extent
        transposed = test.inputs[1] is value
        number = self.extent(test.inputs[0 if transposed else 1])
        holds, kind = place == 1, type(test.op)
        if kind in (ops.Equal, ops.NotEqual):
            other = (kind is ops.NotEqual) == holds and number == Extent(0.0, 0.0)
            return Extent(extent.low, extent.high, extent.nonzero or other)
        above = (kind in _ABOVE) == (holds != transposed)
        strict = (kind in (ops.Less, ops.Greater)) == holds
        if above:
            made, separate = extent.within(number.low, inf), number.low > 0 or (strict and number.low == 0)
        else:
            made, separate = extent.within(-inf, number.high), number.high < 0 or (strict and number.high == 0)
        return Extent(made.low, made.high, extent.nonzero or separate)

    def pole(self, node: Node) -> Pole:
        """Return what of a node, itself, may be infinite where its operands are finite."""
        if isinstance(node.op, ops.CustomGradient):
            return self._pole_of_given(node)
        bodies = node.op.bodies()
        if any(inner.has_poles() for inner in map(Finiteness, bodies)):
            return Pole.VALUE
        if type(node.op).pole is Op.pole or node.outputs[0].dtype.kind != "f":
            return Pole.NONE
        return node.op.pole(*(self.extent(v) for v in node.inputs))

    def _pole_of_given(self, node: Node) -> Pole:
        """Of a derivative that is given: it guards its own powers of e, as such are written to be stable."""
        op: ops.CustomGradient = node.op
        residuals = node.inputs[op.arguments : op.arguments + op.residuals]
        known = {v: self.extent(given) for v, given in zip(op.backward.inputs, residuals, strict=False)}
        inner = Finiteness(op.backward, known)
        powers = (ops.Exp, ops.Expm1)
        has_some = any(inner.pole(n) is not Pole.NONE for n in op.backward.nodes if not isinstance(n.op, powers))
        return Pole.SLOPE if has_some else Pole.NONE

    def has_poles(self) -> bool:
        """Return whether anything in the graph may be infinite or have an infinite derivative."""
        return any(self.pole(node) is not Pole.NONE for node in self._graph.nodes)

    def may_be_infinite(self, value: Value) -> bool:
        """Return whether a value may be infinite or NaN."""
        if self._infinite is None:
            self._infinite = set()
            for node in self._graph.nodes:
                if not self._infinite.isdisjoint(node.inputs) or self.pole(node) is Pole.VALUE:
                    self._infinite.update(v for v in node.outputs if v.dtype.kind == "f")
        return value in self._infinite

    def has_finite_slope(self, node: Node) -> bool:
        """Return whether finite cotangents of a node's results make finite ones of its operands."""
        floats = [k for k, v in enumerate(node.inputs) if v.dtype.kind == "f"]
        if not any(self.may_be_infinite(v) for v in (*node.inputs, *node.outputs)):
            return self.pole(node) is Pole.NONE
        return any(all(k in group for k in floats) for group in node.op.linear_in)
