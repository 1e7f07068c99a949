"""Slice hoisting: computes no more of a value than is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from converter.ir import Builder, Graph, Node, Op, Shape, ShapeError, TensorType, Value, ops
from converter.ir.row_dependence import NO_ROW, Rows, RowsMixed

#: The share of an axis up to which it is cut early: what an operator of three operands then copies of them is no more
#: than what it saves.
_LARGEST_SHARE = 1 / 4

#: What is read of a value: from where to where on each axis.
Box = tuple[tuple[int, int], ...]


class Parts(NamedTuple):
    """What a node computes of its result, and of what parts of its operands."""

    result: Box
    operands: tuple[Box, ...]

    @staticmethod
    def whole(node: Node) -> Parts:
        """Return all of the first result from all of the operands."""
        return Parts(_whole(node.outputs[0].shape), tuple(_whole(v.shape) for v in node.inputs))


def propagate_slices(graph: Graph) -> Graph:
    """Return the graph in which operators whose results are read in part compute that part.

    Before: y = Slice(Add(MatMul(x, w), b)).   After: y = Add(MatMul(Slice(x), w), b).

    So the last layer of a transformer of which only the first token is read mixes all tokens, and computes all else
    for that one; its backward pass, made of this graph, does the same. Weights that train are never cut.
    """
    read = {value: _whole(value.shape) for value in graph.results()}
    parts: dict[Node, Parts] = {}
    for node in reversed(graph.nodes):
        if read.keys().isdisjoint(node.outputs):
            continue
        single = len(node.outputs) == 1
        parts[node] = made = _parts(graph, node, read[node.output]) if single else Parts.whole(node)
        for value, box in zip(node.inputs, made.operands, strict=True):
            read[value] = _around(read[value], box) if value in read else box
    narrower = (made.result != Parts.whole(node).result for node, made in parts.items() if not _is_slice(node))
    return _Narrowed(graph, parts).graph if any(narrower) else graph


class _Narrowed:
    """The graph, of which each node that is read makes a part, from parts of its operands."""

    def __init__(self, before: Graph, parts: dict[Node, Parts]) -> None:
        b = self._b = Builder(Graph(list(before.inputs), dict(before.constants), dict(before.parameters)))
        #: What stands for a value, and the part of it that this is.
        self._now: dict[Value, tuple[Value, Box]] = {}
        self._cut: dict[tuple[Value, Box, Shape], Value] = {}
        for node in (node for node in before.nodes if node in parts):
            made = parts[node]
            with b.at(node.origin):
                if _is_slice(node):
                    part = self._part(node.inputs[0], made.operands[0], node.op.strides)
                    self._now[node.output] = part, made.result
                    continue
                inputs = tuple(map(self._part, node.inputs, made.operands))
                if made == Parts.whole(node):
                    b.append(replace(node, inputs=inputs))
                else:
                    self._now[node.output] = b(_of_shape(node.op, _shape(made.result)), *inputs), made.result
        b.graph.outputs = {name: self._part(v, _whole(v.shape)) for name, v in before.outputs.items()}
        b.graph.updates = {p: self._part(v, _whole(v.shape)) for p, v in before.updates.items()}
        self.graph = b.graph

    def _part(self, value: Value, box: Box, strides: Shape = ()) -> Value:
        """Return this part of a value, of each axis every so many elements."""
        now, held = self._now.get(value, (value, _whole(value.shape)))
        if box == held and not strides:
            return now
        if (value, box, strides) not in self._cut:
            begin = tuple(start - first for (start, _), (first, _) in zip(box, held, strict=True))
            steps = strides or (1,) * len(box)
            size = tuple(-(-n // step) for n, step in zip(_shape(box), steps, strict=True))
            self._cut[value, box, strides] = self._b(ops.Slice(begin, size, strides), now)
        return self._cut[value, box, strides]


def _is_slice(node: Node) -> bool:
    return isinstance(node.op, ops.Slice)


def _parts(graph: Graph, node: Node, read: Box) -> Parts:
    """Return what a node of one result makes where `read` is read, and the parts of its operands for that."""
    shape = node.output.shape
    if isinstance(node.op, ops.Slice):
        return Parts(read, (_before(node.op, read),))
    whole = Parts.whole(node)
    cut = [axis for axis, (start, end) in enumerate(read) if 0 < end - start <= shape[axis] * _LARGEST_SHARE]
    if not cut or not node.op.in_parts:
        return whole
    result, boxes = list(whole.result), [list(box) for box in whole.operands]
    for axis in cut:
        for k, value in enumerate(node.inputs):
            contracted = None if value in graph.parameters else _axis_contracted(node, k, axis)
            if contracted is not None:
                boxes[k][contracted] = result[axis] = read[axis]
    made = Parts(tuple(result), tuple(map(tuple, boxes)))
    types = [v.type.with_shape(_shape(box)) for v, box in zip(node.inputs, made.operands, strict=True)]
    return made if _makes(node.op, types, _shape(made.result)) else whole


def _before(op: ops.Slice, read: Box) -> Box:
    """Return the part of a slice's operand where a part of its result is."""
    places = zip(read, op.begin, op.step(len(read)), strict=True)
    return tuple(
        (first + start * step, first + max(end - 1, start) * step + (end > start))
        for (start, end), first, step in places
    )


def _axis_contracted(node: Node, k: int, axis: int) -> int | None:
    """Return the axis of an operand that elements of the result meet only at their own place on `axis`."""
    size = node.output.shape[axis]
    known = [Rows.none(len(v.shape)) for v in node.inputs]
    for contracted, there in enumerate(node.inputs[k].shape):
        if there != size:
            continue
        known[k] = _numbered(len(node.inputs[k].shape), contracted, size)
        try:
            made = node.op.batch_rows(tuple(v.type for v in node.inputs), *known)
        except RowsMixed:
            continue
        assert isinstance(made, Rows)
        same = made.of == _numbered(len(node.output.shape), axis, size).of
        if (same | (made.of == NO_ROW)).all() and same.any():
            return contracted
    return None


def _numbered(rank: int, axis: int, size: int) -> Rows:
    """Of a value whose elements are told apart by where they stand on one axis."""
    return Rows(np.arange(size).reshape(tuple(size if i == axis else 1 for i in range(rank))))


def _makes(op: Op, types: Sequence[TensorType], shape: Shape) -> bool:
    try:
        made = _of_shape(op, shape).infer(*types)
    except ShapeError:
        return False
    return isinstance(made, TensorType) and made.shape == shape


def _of_shape(op: Op, shape: Shape) -> Op:
    """Return the op that makes a result of this shape."""
    return replace(op, shape=shape) if isinstance(op, ops.Reshape | ops.BroadcastTo) else op


def _whole(shape: Shape) -> Box:
    return tuple((0, size) for size in shape)


def _around(one: Box, other: Box) -> Box:
    """Return the least part that holds both."""
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def _shape(box: Box) -> Shape:
    return tuple(end - start for start, end in box)
