"""Batch size of an exported model: a lowered graph for any number of rows, on the operators and forms of one batch.

It is found out which axis of each value holds the batch, and how. The shape of a RESHAPE and the end of a slice leave
that axis to the runtime, so all follows an input that is resized. While shapes are followed a large prime stands for
the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.state import with_own_results
from converter.driver.plain.one_row import MANY, of_one_row
from converter.driver.plain.operands import END, Batch, Fixed, Operands
from converter.ir import INT32, Graph, Node, Op, ShapeError, Value
from converter.ir.rewrite import eliminate_dead_code
from converter.ir.types import Shape


class FixedRows(Exception):
    """A graph is for its own number of rows alone; its text says why."""

    def __init__(self, node: Node | None = None) -> None:
        if node is None:
            super().__init__("the program is for one row at a time")
        else:
            super().__init__(f"{node.origin.layer or node.origin.source or 'an operator'} ({node.op.code})")


def for_any_rows(graph: Graph) -> Graph:
    """Return the graph for one row, which a runtime may resize to any number of them.

    Args:
        graph: lowered, with the batch as the first axis of its inputs; no row influences another.

    Raises:
        FixedRows: it is for its own number of rows alone.
    """
    rows = graph.inputs[0].shape[0] if graph.inputs else 1
    if rows < 2 or any(value.shape[0] != rows for value in graph.inputs):
        raise FixedRows
    graph = with_own_results(graph)
    many = _Follower(graph, rows, {value: Batch(-value.type.rank) for value in graph.inputs}).run_whole()
    return of_one_row(eliminate_dead_code(many))


def held_to_its_rows(graph: Graph) -> Graph:
    """Return a graph that a runtime refuses to resize, where it would give other numbers or none."""
    after = graph.copy()
    for place, value in enumerate(graph.inputs):
        if value.dtype.kind in "fib":
            after.inputs[place] = given = Value(value.type, value.name)
            after.nodes.insert(0, Node(tfl.Reshape(value.shape), (given,), (value,)))
    return after


class _Follower(Operands):
    """Writes a graph for very many rows."""

    def run_whole(self) -> Graph:
        """Return the graph; outputs that are the same for all rows are repeated. Raises FixedRows."""
        for node in self._graph.nodes:
            try:
                self._follow(node)
            except (Fixed, ShapeError):
                raise FixedRows(node) from None
        try:
            for name, value in self._graph.outputs.items():
                is_known = value not in self._batches and value.shape[0] == self._rows
                self._after.outputs[name] = (
                    self._repeated(value, Batch(-value.type.rank)) if is_known else self._made[value]
                )
        except (Fixed, ShapeError):
            raise FixedRows(self._producers.get(value)) from None
        return self._after

    def run(self) -> tuple[Graph, list[Batch | None]]:
        """Return the graph of a body, and where the batch is in each of its outputs. Raises Fixed or ShapeError."""
        for node in self._graph.nodes:
            self._follow(node)
        self._after.outputs = {name: self._made[value] for name, value in self._graph.outputs.items()}
        return self._after, [self._batches.get(value) for value in self._graph.outputs.values()]

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
            axes = [axis for axis, size in enumerate(after.shape) if size >= MANY]
            if len(axes) != 1 or len(outer) != 1 or before.type.rank != after.rank:
                raise Fixed
            self._batches[before] = Batch(axes[0] - after.rank, *outer)
            if self._sized(before.type, self._batches[before]) != after:
                raise Fixed
            self._made[before] = Value(after, before.name)
        outputs = tuple(self._made[value] for value in node.outputs)
        self._add(replace(node, op=op, inputs=tuple(inputs), outputs=outputs))

    def _add(self, node: Node) -> None:
        """Add a node of the graph that is written; what is made of places are places, but what a table has there."""
        self._after.nodes.append(node)
        if not self._placed.isdisjoint(node.inputs) and not isinstance(_plain(node.op), tfl.Gather):
            self._placed.update(node.outputs)

    def _as_it_is(self, node: Node) -> None:
        """An op that says nothing of the batch; operands as long as the batch in its place get its length."""
        last: Exception = ShapeError("")
        for fit in (lambda v, batch: self._made[v], self._narrowed, self._repeated, self._along):
            try:
                self._append(node, node.op, self._operands(node, fit))
            except (ShapeError, Fixed) as error:
                last = error
            else:
                return
        raise last

    def _operands(self, node: Node, fit: Callable[[Value, Batch], Value]) -> list[Value]:
        """Return the operands, those without the batch made to fit those that have it."""
        batch = next(self._batches[v] for v in node.inputs if v in self._batches)
        return [self._made[v] if v in self._batches else fit(v, batch) for v in node.inputs]

    def _reshape(self, node: Node) -> None:
        (x,) = node.inputs
        batch, after = self._batches[x], node.output.shape
        if not x.type.size:
            raise Fixed
        before = prod(x.shape[: batch.axis]) * batch.outer  # elements in front of the batch
        for axis, size in enumerate(after):
            outer, rest = divmod(before, prod(after[:axis]))
            if not rest and outer and size % (outer * self._rows) == 0:
                break
        else:
            raise Fixed
        shape = (*after[:axis], after[axis] // self._rows * MANY, *after[axis + 1 :])
        op = _like(node.op, tfl.Reshape(shape, free=axis))
        self._batches[node.output] = Batch(axis - len(after), outer)
        self._made[node.output] = Value(replace(node.output.type, shape=shape), node.output.name)
        self._add(replace(node, op=op, inputs=(self._made[x],), outputs=(self._made[node.output],)))

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
            raise Fixed
        whole = tfl.StridedSlice(begin, (*end[:axis], END, *end[axis + 1 :]), strides)
        self._append(node, _like(node.op, whole), [self._made[x]])

    def _broadcast_to(self, node: Node) -> None:
        """TILE, which takes no sizes but how often what is there is repeated."""
        (x,) = node.inputs
        shape, batch, made = node.op.shape, self._batches[x], self._made[x]
        if shape[batch.axis] != x.shape[batch.axis]:
            raise Fixed
        full = (*(1,) * (len(shape) - x.type.rank), *made.shape)
        if full != made.shape:
            made = self._emit(tfl.Reshape(full, free=len(full) + batch.axis), made)
        sizes = zip(shape, (*(1,) * (len(shape) - x.type.rank), *x.shape), strict=True)
        self._append(node, tfl.Tile(tuple(new // old for new, old in sizes)), [made])

    def _transpose_conv(self, node: Node) -> None:
        """The shape of its result as the runtime finds it, which takes it for a number of rows otherwise."""
        op, x = _plain(node.op), node.inputs[1]
        made = [self._made[v] for v in node.inputs]
        if x not in self._batches or isinstance(node.op, tfl.Wrapped):
            raise Fixed
        rows = self._emit(tfl.StridedSlice((0,), (1,), (1,)), self._emit(tfl.Sizes(), made[1]))
        shape = self._emit(tfl.Concatenation(0), rows, self._constant(np.array(op.output_shape[1:], INT32)))
        size = (made[1].shape[0], *op.output_shape[1:])
        self._append(node, tfl.TransposeConvOfShape(size, op.strides, op.padding), [*made, shape])

    def _tile(self, node: Node) -> None:
        (x,) = node.inputs
        times = _plain(node.op).multiples[x.type.rank + self._batches[x].axis]
        self._as_it_is(node)
        made = self._batches[node.output]
        self._batches[node.output] = replace(made, outer=made.outer * times)

    def _fully_connected(self, node: Node) -> None:
        """All axes but the last become one where they are not kept."""
        x = node.inputs[0]
        self._as_it_is(node)
        if node.output.type.rank < x.type.rank:
            batch = self._batches[x]
            self._batches[node.output] = Batch(-2, prod(x.shape[: batch.axis]) * batch.outer)

    def _gather(self, node: Node) -> None:
        """Of a constant that holds the same for each row what a row asks for by its place among all of them."""
        table = node.inputs[0]
        self._as_it_is(node)
        array, last = self._graph.constants.get(table), self._after.nodes[-1]
        if table in self._batches or self._placed.isdisjoint(last.inputs):
            return
        if array is None or node.op.axis != 0 or len(array) % self._rows:
            raise Fixed
        size = len(array) // self._rows
        if not np.array_equal(np.tile(array[:size], (self._rows, *(1 for _ in array.shape[1:]))), array):
            raise Fixed
        self._after.nodes.pop()
        own = self._emit(tfl.FloorMod(), last.inputs[1], self._constant(np.array([size], INT32)))
        self._append(node, node.op, [self._constant(array[:size]), own])

    def _unpack(self, node: Node) -> None:
        (x,) = node.inputs
        if _plain(node.op).axis == x.type.rank + self._batches[x].axis:
            raise Fixed
        self._as_it_is(node)

    def _concatenation(self, node: Node) -> None:
        axis = self._batches[next(v for v in node.inputs if v in self._batches)].axis
        if _plain(node.op).axis % node.output.type.rank == node.output.type.rank + axis:
            raise Fixed
        self._as_it_is(node)

    def _while(self, node: Node) -> None:
        """The body for as many rows as go in; what it carries has the batch where what comes out of it has it."""
        results = list(node.op.body.outputs.values())
        carried: list[Batch | None] = [self._batches.get(v) for v in node.inputs]
        for i, (value, inner) in enumerate(zip(node.inputs, node.op.body.inputs, strict=True)):
            # A first state is the same for all rows; what the body makes of it is not, or `found` says otherwise.
            if carried[i] is None and results[i] is not inner and value.type.rank > 1:
                # [batch, units] or, of all steps, [steps, batch, units].
                axes = (axis for axis in (-2, -value.type.rank) if value.shape[axis] == self._rows)
                carried[i] = next(map(Batch, axes), None)
        while True:
            given = [dict(_present(zip(graph.inputs, carried, strict=True))) for graph in node.op.bodies()]
            body, found = _Follower(node.op.body, self._rows, given[1]).run()
            merged = [batch or other for batch, other in zip(carried, found, strict=True)]
            if merged == carried:
                break
            carried = merged
        if found != carried:
            raise Fixed
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
            raise Fixed
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


def _present(pairs: Any) -> list[tuple[Value, Batch]]:
    return [(value, batch) for value, batch in pairs if batch is not None]


_RULES: Mapping[type[Op], Callable[[_Follower, Node], None]] = {
    tfl.Reshape: _Follower._reshape,
    tfl.Slice: _Follower._slice,
    tfl.StridedSlice: _Follower._strided_slice,
    tfl.BroadcastTo: _Follower._broadcast_to,
    tfl.TransposeConv: _Follower._transpose_conv,
    tfl.Tile: _Follower._tile,
    tfl.FullyConnected: _Follower._fully_connected,
    tfl.Unpack: _Follower._unpack,
    tfl.Gather: _Follower._gather,
    tfl.Concatenation: _Follower._concatenation,
    tfl.While: _Follower._while,
}
