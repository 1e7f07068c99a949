"""Reshape elimination: dense layers and the operators between them on flattened rows, [rows, N], for all readers."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from converter.backend import builtins as tfl
from converter.ir import FLOAT32, Graph, Node, Shape, Value
from converter.ir.rewrite import Rewriter, map_bodies, rewrite

_REDUCTIONS = (tfl.Sum, tfl.Mean, tfl.ReduceMax, tfl.ReduceMin)


def contracted_as_rows(graph: Graph) -> Graph:
    """Operators that treat all rows of their operands alike, or sum them up, compute on [rows, N] around dense layers.

    Before: y = x @ w; z = y + b; dw = x' @ Reshape(dy); db = Sum(dy); dx = dy @ w'.
    After:  rows = Reshape(x); y = rows @ w; z = y + b; dw = rows' @ dys; db = Sum(dys); dx = dys @ w'.

    XNNPACK makes a copy of what is multiplied in two shapes, and views what is in one; and one product of all rows has
    fewer tiles that are not whole. A value that another operator reads as it is stays so for all.
    """
    return rewrite(map_bodies(graph, contracted_as_rows), _Rows(graph).read)


class _Rows:
    def __init__(self, graph: Graph) -> None:
        operands = {node: contracted for node in graph.nodes if (contracted := _rows_contracted(node))}
        readers, results = graph.consumers(), set(graph.results())
        while split := {
            value
            for contracted in operands.values()
            for value in contracted
            if value in results or any(_reads_as_it_is(node, value, operands) for node in readers[value])
        }:
            operands = {node: contracted for node, contracted in operands.items() if split.isdisjoint(contracted)}
        kept = _around_products(operands, readers)
        #: By what a node makes: which operands are rows.
        self._places = {node.outputs[0]: [v in operands[node] for v in node.inputs] for node in kept}
        rows = {value for node in kept for value in (*operands[node], *(v for v in node.outputs if _has_rows(v.shape)))}
        views = (node for value in rows for node in readers.get(value, ()) if isinstance(node.op, tfl.Reshape))
        #: What the RESHAPEs of such values make.
        self._views = {node.outputs[0] for node in views}
        #: By what stands for a value, its rows.
        self._rows: dict[Value, Value] = {}

    def read(self, b: Rewriter, node: Node) -> Value | None:
        """What stands for a node that reads rows."""
        made = node.outputs[0]
        if made in self._views:
            return _reshaped(b, self._view(b, node.inputs[0]), made.shape)
        if made not in self._places:
            return None
        operands = [
            self._view(b, value) if rows else _reshaped(b, value, value.shape[-1:]) if _repeats(node, value) else value
            for value, rows in zip(node.inputs, self._places[made], strict=True)
        ]
        op = node.op
        if isinstance(op, _REDUCTIONS):
            along_rows = not _is_last(op.axes, len(node.inputs[0].shape))
            op = type(op)((0,) if along_rows else (1,), keepdims=not along_rows)
        rows = b(op, *operands)
        back = _reshaped(b, rows, made.shape)
        if rows.shape == _rows(made):  # sums along the last axis have another one as their last
            self._rows[back] = rows
        return back

    def _view(self, b: Rewriter, value: Value) -> Value:
        """The value as rows; what was rows, or had another shape, before is not reshaped twice."""
        if value not in self._rows:
            maker = b.producer(value, tfl.Reshape)
            self._rows[value] = _reshaped(b, maker.inputs[0] if maker else value, _rows(value))
        return self._rows[value]


def _reshaped(b: Rewriter, value: Value, shape: Shape) -> Value:
    return value if value.shape == shape else b(tfl.Reshape(shape), value)


def _rows(value: Value) -> Shape:
    return prod(value.shape[:-1]), value.shape[-1]


def _is_last(axes: Iterable[int], rank: int) -> bool:
    return [axis % rank for axis in axes] == [rank - 1]


def _rows_contracted(node: Node) -> list[Value]:
    """The operands that the operator takes as rows where it can compute on rows: it treats all alike, or sums them."""
    op, x = node.op, node.inputs[0] if node.inputs else None
    if x is None or any(v.dtype != FLOAT32 for v in (*node.inputs, *node.outputs)):
        return []
    if isinstance(op, tfl.BatchMatmul):
        w = node.inputs[1]
        return [x] if _has_rows(x.shape) and x is not w and len(w.shape) == 2 and not op.adj_x else []
    if isinstance(op, _REDUCTIONS):
        rank = len(x.shape)
        others = sorted(axis % rank for axis in op.axes) == list(range(rank - 1))
        return [x] if _has_rows(x.shape) and (_is_last(op.axes, rank) or others) else []
    if not isinstance(op, tfl.Pointwise | tfl.Softmax) or not _has_rows(node.output.shape):
        return []
    contracted = [v for v in node.inputs if v.shape[:-1] == node.output.shape[:-1]]
    return contracted if all(v in contracted or _repeats(node, v) or len(v.shape) == 1 for v in node.inputs) else []


def _has_rows(shape: Shape) -> bool:
    """Whether there is a choice: more than two axes, and more than one row."""
    return len(shape) > 2 and prod(shape[:-1]) > 1


def _repeats(node: Node, value: Value) -> bool:
    """Whether it is one row for all, of as many axes as there are."""
    return isinstance(node.op, tfl.Pointwise) and len(value.shape) > 1 and prod(value.shape[:-1]) == 1


def _reads_as_it_is(node: Node, value: Value, operands: dict[Node, list[Value]]) -> bool:
    return not isinstance(node.op, tfl.Reshape) and value not in operands.get(node, ())


def _around_products(operands: dict[Node, list[Value]], readers: dict[Value, list[Node]]) -> set[Node]:
    """Those of the nodes that are connected, by what is rows, to a product or to something that was made rows."""
    values: dict[Value, list[Node]] = {}
    for node, contracted in operands.items():
        for value in (*contracted, *node.outputs):
            values.setdefault(value, []).append(node)

    def begins(node: Node) -> bool:
        return isinstance(node.op, tfl.BatchMatmul) or any(
            isinstance(reader.op, tfl.Reshape) and reader.output.shape == _rows(value)
            for value in operands[node]
            for reader in readers[value]
        )

    left = [node for node in operands if begins(node)]
    kept = set(left)
    while left:
        node = left.pop()
        for value in (*operands[node], *node.outputs):
            near = [other for other in values[value] if other not in kept]
            kept.update(near)
            left += near
    return kept
