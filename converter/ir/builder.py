"""The builder of semantic graphs."""

from __future__ import annotations

from converter.ir.graph import Value
from converter.ir.graph_builder import GraphBuilder
from converter.ir.ops import BroadcastTo, Reshape, Sum, Transpose
from converter.ir.types import Shape


class Builder(GraphBuilder):
    """Appends semantic ops: `b(ops.Add(), x, 1.0)`."""

    def reshape(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == tuple(shape) else self(Reshape(tuple(shape)), x)

    def broadcast_to(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == tuple(shape) else self(BroadcastTo(tuple(shape)), x)

    def transpose(self, x: Value, perm: Shape) -> Value:
        return x if tuple(perm) == tuple(range(len(perm))) else self(Transpose(tuple(perm)), x)

    def sum(self, x: Value, axes: Shape) -> Value:
        return self(Sum(axes), x)
