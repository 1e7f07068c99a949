"""The builder of semantic graphs."""

from __future__ import annotations

import numpy as np

from converter.ir.described import is_described
from converter.ir.graph import Graph, Node, Value
from converter.ir.graph_builder import GraphBuilder
from converter.ir.op import Op
from converter.ir.ops import BroadcastTo, Reshape, Slice, Sum, Transpose
from converter.ir.types import Shape


class Builder(GraphBuilder):
    """Appends semantic ops: `b(ops.Add(), x, 1.0)`."""

    def reshape(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == tuple(shape) else self(Reshape(tuple(shape)), x)

    def part(self, x: Value, start: int, stop: int, axis: int = 0) -> Value:
        """Return the places of an axis from `start` to before `stop`."""
        begin, size = [0] * len(x.shape), list(x.shape)
        begin[axis], size[axis] = start, stop - start
        return x if x.shape == tuple(size) else self(Slice(tuple(begin), tuple(size)), x)

    def broadcast_to(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == tuple(shape) else self(BroadcastTo(tuple(shape)), x)

    def transpose(self, x: Value, perm: Shape) -> Value:
        return x if tuple(perm) == tuple(range(len(perm))) else self(Transpose(tuple(perm)), x)

    def sum(self, x: Value, axes: Shape) -> Value:
        return self(Sum(axes), x)


class LookingBuilder(Builder):
    """A Builder that knows what stands before a value."""

    def __init__(self, graph: Graph | None = None) -> None:
        super().__init__(graph)
        self._made_by: dict[Value, Node] = self.graph.producers()

    def append(self, node: Node) -> Node:
        super().append(node)
        self._made_by |= dict.fromkeys(node.outputs, node)
        return node

    def producer(self, value: Value, *kinds: type[Op]) -> Node | None:
        """Return the node that makes `value` if its op is of one of these classes, else None."""
        node = self._made_by.get(value)
        return node if node is not None and isinstance(node.op, kinds) else None

    def array(self, value: Value) -> np.ndarray | None:
        """Return the array of a constant, else None."""
        return self.graph.constants.get(value)

    def scalar(self, value: Value) -> float | None:
        """Return the number that a constant holds in all its elements, else None."""
        array = self.graph.constants.get(value)
        if array is None or array.size == 0 or is_described(array) or (array != array.flat[0]).any():
            return None
        return float(array.flat[0])
