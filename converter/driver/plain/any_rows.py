"""Batch size of an exported model: a lowered graph for any number of rows, on the operators and forms of one batch.

It is found out which axis of each value holds the batch, and how. The shape of a RESHAPE and the end of a slice leave
that axis to the runtime, so all follows an input that is resized. While shapes are followed a large prime stands for
the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

import numpy as np

from converter.ir import Graph, Node, Op, ShapeError, TensorType, Value
from converter.ir.types import Shape
from converter.tflite import builtins as tfl

#: No size of anything else, nor are its multiples.
_MANY = 1_000_003
#: The end of a slice that is that of the axis.
_END = (1 << 31) - 1


class _Fixed(Exception):
    """The graph is for its own number of rows alone."""


@dataclass(frozen=True)
class _Batch:
    """Where the batch is in a value: the elements along an axis are [outer, batch, inner].

    Attributes:
        axis: which, counted from the last, which is -1.
        outer: how often the whole batch stands there, one after the other.
    """

    axis: int
    outer: int = 1


def for_any_rows(graph: Graph) -> Graph | None:
    """Return the graph for one row, which a runtime may resize to any number of them; None where that cannot be.

    Args:
        graph: lowered, with the batch as the first axis of its inputs; no row influences another.
    """
    rows = graph.inputs[0].shape[0] if graph.inputs else 1
    if rows < 2 or any(value.shape[0] != rows for value in graph.inputs):
        return None
    try:
        many, _ = _Follower(graph, rows, {value: _Batch(-value.type.rank) for value in graph.inputs}).run()
    except (_Fixed, ShapeError):
        return None
    return _of_one_row(many)


class _Follower:
    """Writes a graph for very many rows."""

    def __init__(self, graph: Graph, rows: int, inputs: Mapping[Value, _Batch]) -> None:
        self._graph, self._rows = graph, rows
        self._batches = dict(inputs)  # of the values of the graph
        self._made = {v: v for v in (*graph.inputs, *graph.parameters, *graph.constants)}
        self._made |= {v: Value(self._sized(v.type, batch), v.name) for v, batch in inputs.items()}
        self._producers = graph.producers()
        self._after = Graph(
            [self._made[v] for v in graph.inputs], dict(graph.constants), dict(graph.parameters), [], {}, {}
        )

    def run(self) -> tuple[Graph, list[_Batch | None]]:
        """Return the graph, and where the batch is in each of its outputs. Raises _Fixed or ShapeError."""
        for node in self._graph.nodes:
            self._follow(node)
        self._after.outputs = {name: self._made[value] for name, value in self._graph.outputs.items()}
        return self._after, [self._batches.get(value) for value in self._graph.outputs.values()]

    def _sized(self, type: TensorType, batch: _Batch) -> TensorType:
        shape = list(type.shape)
        if shape[batch.axis] % (self._rows * batch.outer):
            raise _Fixed
        shape[batch.axis] = shape[batch.axis] // self._rows * _MANY
        return replace(type, shape=tuple(shape))

    def _emit(self, op: Op, *inputs: Value, name: str = "") -> Value:
        made = op.infer(*(v.type for v in inputs))
        assert isinstance(made, TensorType)
        value = Value(made, name)
        self._after.nodes.append(Node(op, inputs, (value,)))
        return value

    def _follow(self, node: Node) -> None:
        if not any(v in self._batches for v in node.inputs):
            self._after.nodes.append(node)
            self._made |= {v: v for v in node.outputs}
            return
        rule = _RULES.get(type(_plain(node.op)), _Follower._as_it_is)
        rule(self, node)

    def _append(self, node: Node, op: Op, inputs: list[Value]) -> None:
        """The node with another op and other operands; whose results have the batch where its sizes show it."""
        types = op.infer(*(v.type for v in inputs))
        made = types if isinstance(types, tuple) else (types,)
        outer = {batch.outer for v in node.inputs if (batch := self._batches.get(v)) is not None}
        for before, after in zip(node.outputs, made, strict=True):
            axes = [axis for axis, size in enumerate(after.shape) if size >= _MANY]
            if len(axes) != 1 or len(outer) != 1 or before.type.rank != after.rank:
                raise _Fixed
            self._batches[before] = _Batch(axes[0] - after.rank, *outer)
            if self._sized(before.type, self._batches[before]) != after:
                raise _Fixed
            self._made[before] = Value(after, before.name)
        outputs = tuple(self._made[value] for value in node.outputs)
        self._after.nodes.append(replace(node, op=op, inputs=tuple(inputs), outputs=outputs))

    def _as_it_is(self, node: Node) -> None:
        """An op that says nothing of the batch; operands as long as the batch in its place get its length."""
        last = ShapeError("")
        for fit in (lambda v, batch: self._made[v], self._narrowed, self._repeated):
            try:
                self._append(node, node.op, self._operands(node, fit))
            except ShapeError as error:
                last = error
            else:
                return
        raise last

    def _operands(self, node: Node, fit: Callable[[Value, _Batch], Value]) -> list[Value]:
        """Return the operands, those without the batch made to fit those that have it."""
        batch = next(self._batches[v] for v in node.inputs if v in self._batches)
        return [self._made[v] if v in self._batches else fit(v, batch) for v in node.inputs]

    def _narrowed(self, value: Value, batch: _Batch) -> Value:
        """Return a value that is the same for all rows, for one row, which broadcasts."""
        if value.type.rank < -batch.axis or value.shape[batch.axis] == 1:
            return self._made[value]
        if batch.outer != 1 or value.shape[batch.axis] != self._rows:
            raise _Fixed
        shape = (*value.shape[: batch.axis], 1, *value.shape[batch.axis :][1:])
        if (array := self._graph.constants.get(value)) is not None:
            one = array.take([0], batch.axis)
            if not np.array_equal(np.broadcast_to(one, array.shape), array):
                raise _Fixed
            narrow = Value(replace(value.type, shape=shape), value.name)
            self._after.constants[narrow] = np.ascontiguousarray(one)
            return narrow
        if (node := self._producers.get(value)) is None or len(node.outputs) > 1:
            raise _Fixed
        op = node.op
        if isinstance(op, tfl.Zeros):
            op = replace(op, type=op.type.with_shape(shape))
        elif isinstance(op, tfl.BroadcastTo | tfl.Reshape):
            op = replace(op, shape=shape)
        elif isinstance(op, tfl.Slice):
            op = replace(op, size=shape)
        made = self._emit(op, *(self._narrowed_where_it_can(v, batch) for v in node.inputs), name=value.name)
        if made.shape != shape:
            raise _Fixed
        return made

    def _narrowed_where_it_can(self, value: Value, batch: _Batch) -> Value:
        """Return an operand of a value that is the same for all rows: another one may be as long by chance."""
        try:
            return self._narrowed(value, batch)
        except _Fixed:
            return self._made[value]

    def _repeated(self, value: Value, batch: _Batch) -> Value:
        """Return a value that is the same for all rows, for as many as an input has."""
        narrow = self._narrowed(value, batch)
        if value.type.rank < -batch.axis or value.shape[batch.axis] != self._rows or value.dtype.kind not in "fi":
            return narrow
        source = next((v for v in self._graph.inputs if v in self._batches and v.dtype.kind in "fi"), None)
        if source is None or self._batches[source] != _Batch(-source.type.rank):
            raise _Fixed
        x = self._made[source]
        ones = (1,) * (x.type.rank - 1)
        row = self._emit(tfl.StridedSlice((0,) * x.type.rank, (_END, *ones), (1, *ones)), x)
        # No number is less than itself, so this is 0 for each row, whatever it holds.
        zero = self._emit(tfl.Cast(value.dtype), self._emit(tfl.Less(), row, row))
        axis = value.type.rank + batch.axis
        shape = tuple(_MANY if i == axis else 1 for i in range(value.type.rank))
        return self._emit(tfl.Add(), narrow, self._emit(tfl.Reshape(shape, free=axis), zero), name=value.name)

    def _reshape(self, node: Node) -> None:
        (x,) = node.inputs
        batch, after = self._batches[x], node.output.shape
        if not x.type.size:
            raise _Fixed
        before = prod(x.shape[: batch.axis]) * batch.outer  # elements in front of the batch
        for axis, size in enumerate(after):
            outer, rest = divmod(before, prod(after[:axis]))
            if not rest and outer and size % (outer * self._rows) == 0:
                break
        else:
            raise _Fixed
        shape = (*after[:axis], after[axis] // self._rows * _MANY, *after[axis + 1 :])
        op = _like(node.op, tfl.Reshape(shape, free=axis))
        self._batches[node.output] = _Batch(axis - len(after), outer)
        self._made[node.output] = Value(replace(node.output.type, shape=shape), node.output.name)
        self._after.nodes.append(replace(node, op=op, inputs=(self._made[x],), outputs=(self._made[node.output],)))

    def _slice(self, node: Node) -> None:
        """STRIDED_SLICE: SLICE keeps to the shape of the file."""
        begin, size = _plain(node.op).begin, _plain(node.op).size
        self._cut(node, begin, tuple(b + n for b, n in zip(begin, size, strict=True)), (1,) * len(begin))

    def _strided_slice(self, node: Node) -> None:
        op = _plain(node.op)
        self._cut(node, op.begin, op.end, op.strides)

    def _cut(self, node: Node, begin: Shape, end: Shape, strides: Shape) -> None:
        (x,) = node.inputs
        axis = x.type.rank + self._batches[x].axis
        if begin[axis] or end[axis] < x.shape[axis] or strides[axis] != 1:
            raise _Fixed
        whole = tfl.StridedSlice(begin, (*end[:axis], _END, *end[axis + 1 :]), strides)
        self._append(node, _like(node.op, whole), [self._made[x]])

    def _broadcast_to(self, node: Node) -> None:
        """TILE, which takes no sizes but how often what is there is repeated."""
        (x,) = node.inputs
        shape, batch, made = node.op.shape, self._batches[x], self._made[x]
        if shape[batch.axis] != x.shape[batch.axis]:
            raise _Fixed
        full = (*(1,) * (len(shape) - x.type.rank), *made.shape)
        if full != made.shape:
            made = self._emit(tfl.Reshape(full, free=len(full) + batch.axis), made)
        sizes = zip(shape, (*(1,) * (len(shape) - x.type.rank), *x.shape), strict=True)
        self._append(node, tfl.Tile(tuple(new // old for new, old in sizes)), [made])

    def _transpose_conv(self, node: Node) -> None:
        op = _plain(node.op)
        op = replace(op, output_shape=(op.output_shape[0] // self._rows * _MANY, *op.output_shape[1:]))
        self._append(node, _like(node.op, op), [self._made[v] for v in node.inputs])

    def _concatenation(self, node: Node) -> None:
        axis = self._batches[next(v for v in node.inputs if v in self._batches)].axis
        if _plain(node.op).axis % node.output.type.rank == node.output.type.rank + axis:
            raise _Fixed
        self._as_it_is(node)

    def _while(self, node: Node) -> None:
        """The body for as many rows as go in; what it carries has the batch where what comes out of it has it."""
        results = list(node.op.body.outputs.values())
        carried: list[_Batch | None] = [self._batches.get(v) for v in node.inputs]
        for i, (value, inner) in enumerate(zip(node.inputs, node.op.body.inputs, strict=True)):
            # A first state is the same for all rows; what the body makes of it is not, or `found` says otherwise.
            if carried[i] is None and results[i] is not inner and value.type.rank > 1:
                # [batch, units] or, of all steps, [steps, batch, units].
                axes = (axis for axis in (-2, -value.type.rank) if value.shape[axis] == self._rows)
                carried[i] = next(map(_Batch, axes), None)
        while True:
            given = [dict(_present(zip(graph.inputs, carried, strict=True))) for graph in node.op.bodies()]
            body, found = _Follower(node.op.body, self._rows, given[1]).run()
            merged = [batch or other for batch, other in zip(carried, found, strict=True)]
            if merged == carried:
                break
            carried = merged
        if found != carried:
            raise _Fixed
        condition, _ = _Follower(node.op.condition, self._rows, given[0]).run()
        operands = [
            self._made[v] if batch is None or v in self._batches else self._repeated(v, batch)
            for v, batch in zip(node.inputs, carried, strict=True)
        ]
        for value, batch in zip(node.outputs, carried, strict=True):
            self._made[value] = value
            if batch is not None:
                self._batches[value] = batch
                self._made[value] = Value(self._sized(value.type, batch), value.name)
        if [v.type for v in operands] != [self._made[v].type for v in node.outputs]:
            raise _Fixed
        op = node.op.with_bodies(condition, body)
        self._after.nodes.append(
            replace(node, op=op, inputs=tuple(operands), outputs=tuple(self._made[v] for v in node.outputs))
        )


def _plain(op: Any) -> Any:
    """Return the builtin, also of one that computes on integers."""
    return op.op if isinstance(op, tfl.Wrapped) else op


def _like(op: Any, plain: Any) -> Any:
    """Return a builtin, on integers where `op` computes on them."""
    return replace(op, op=plain) if isinstance(op, tfl.Wrapped) else plain


def _present(pairs: Any) -> list[tuple[Value, _Batch]]:
    return [(value, batch) for value, batch in pairs if batch is not None]


_RULES: Mapping[type[Op], Callable[[_Follower, Node], None]] = {
    tfl.Reshape: _Follower._reshape,
    tfl.Slice: _Follower._slice,
    tfl.StridedSlice: _Follower._strided_slice,
    tfl.BroadcastTo: _Follower._broadcast_to,
    tfl.TransposeConv: _Follower._transpose_conv,
    tfl.Concatenation: _Follower._concatenation,
    tfl.While: _Follower._while,
}


def _of_one_row(graph: Graph) -> Graph:
    """Return a graph for very many rows, for one."""
    made: dict[Value, Value] = {}

    def one(value: Value) -> Value:
        if value not in made:
            shape = _numbers_of_one(value.shape)
            made[value] = value if shape == value.shape else Value(replace(value.type, shape=shape), value.name)
        return made[value]

    nodes = [
        replace(n, op=_op_of_one(n.op), inputs=tuple(map(one, n.inputs)), outputs=tuple(map(one, n.outputs)))
        for n in graph.nodes
    ]
    outputs = {name: one(value) for name, value in graph.outputs.items()}
    return Graph(list(map(one, graph.inputs)), graph.constants, graph.parameters, nodes, outputs, {})


def _numbers_of_one(numbers: Shape) -> Shape:
    return tuple(n // _MANY if n and n % _MANY == 0 else n for n in numbers)


def _op_of_one(op: Any) -> Any:
    if isinstance(op, tfl.While):
        return op.with_bodies(*map(_of_one_row, op.bodies()))
    changed: dict[str, Any] = {}
    for field in fields(op):
        value = getattr(op, field.name)
        if isinstance(value, Op):
            changed[field.name] = _op_of_one(value)
        elif isinstance(value, tuple) and value and all(isinstance(n, int) for n in value):
            changed[field.name] = _numbers_of_one(value)
    return replace(op, **changed)
