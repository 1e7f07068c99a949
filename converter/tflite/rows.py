"""Cotangents of dense layers: met as rows by all that read them, where the weight's gradient does."""

from __future__ import annotations

from math import prod

from converter.ir import Graph, Node, Value
from converter.passes.loops import map_bodies
from converter.passes.rewrite import Rewriter, rewrite
from converter.tflite import builtins as tfl


def met_as_rows(graph: Graph) -> Graph:
    """One RESHAPE of a cotangent, [..., N] to [rows, N], for the weight's, the bias' and the input's gradient.

    Before: dw = x' @ Reshape(dy); db = Sum(dy); dx = dy @ w'.
    After:  rows = Reshape(dy); dw = x' @ rows; db = Sum(rows); dx = Reshape(rows @ w').

    XNNPACK makes a copy of what is met in two shapes, and views what is met in one.
    """
    return rewrite(map_bodies(graph, met_as_rows), _Rows(graph).read)


class _Rows:
    def __init__(self, graph: Graph) -> None:
        results = set(graph.results())
        #: What the readers make of a value that some of them read as rows, and all can.
        self._made = {
            made
            for value, readers in graph.consumers().items()
            if len(value.shape) > 2
            and value not in results
            and any(_is_view(node, value) for node in readers)
            and all(_is_view(node, value) or _goes_by_rows(node, value) for node in readers)
            for node in readers
            for made in node.outputs
        }
        self._views: dict[Value, Value] = {}

    def read(self, b: Rewriter, node: Node) -> Value | None:
        """What stands for a reader of such a value."""
        if node.outputs[0] not in self._made:
            return None
        before, *others = node.inputs
        rows = self._view(b, before)
        if isinstance(node.op, tfl.Reshape):
            return rows
        made = b(node.op, rows, *others) if others else b(tfl.Sum((0,)), rows)
        return made if made.shape == node.output.shape else b(tfl.Reshape(node.output.shape), made)

    def _view(self, b: Rewriter, value: Value) -> Value:
        """The value as rows; what was rows before is that again."""
        if value not in self._views:
            maker = b.producer(value, tfl.Reshape)
            is_back = maker is not None and maker.inputs[0].shape == _rows(value)
            self._views[value] = maker.inputs[0] if maker and is_back else b(tfl.Reshape(_rows(value)), value)
        return self._views[value]


def _rows(value: Value) -> tuple[int, int]:
    return prod(value.shape[:-1]), value.shape[-1]


def _is_view(node: Node, value: Value) -> bool:
    return isinstance(node.op, tfl.Reshape) and node.output.shape == _rows(value) and _is_late(node)


def _goes_by_rows(node: Node, value: Value) -> bool:
    """Whether the operator treats all rows alike, or sums them up."""
    if not _is_late(node):
        return False
    if isinstance(node.op, tfl.BatchMatmul):
        x, w = node.inputs
        return x is value and w is not value and len(w.shape) == 2 and not node.op.adj_x
    return isinstance(node.op, tfl.Sum) and sorted(node.op.axes) == list(range(len(value.shape) - 1))


def _is_late(node: Node) -> bool:
    return node.origin.phase != "forward"
