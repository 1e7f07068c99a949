"""Operands for any number of rows: values that depend on no row, repeated for as many rows as needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.driver.plain.one_row import MANY
from converter.ir import BOOL, INT32, Graph, Node, Op, TensorType, Value

#: The end of a slice that is that of the axis.
END = (1 << 31) - 1
#: Rows of a graph whose constants show what grows from row to row: two show no law.
ENOUGH_ROWS = 3


class Fixed(Exception):
    """An operator is for the graph's own number of rows alone."""


@dataclass(frozen=True)
class Batch:
    """Where the batch is in a value: the elements along an axis are [outer, batch, inner].

    Attributes:
        axis: which, counted from the last, which is -1.
        outer: how often the whole batch stands there, one after the other.
    """

    axis: int
    outer: int = 1


class Operands:
    """A graph that is written for very many rows, with the values of the one that it is made of.

    Args:
        graph: the other, lowered.
        rows: of that.
        inputs: where the batch is in its inputs.
    """

    def __init__(self, graph: Graph, rows: int, inputs: Mapping[Value, Batch]) -> None:
        self._graph, self._rows = graph, rows
        self._batches = dict(inputs)  # of the values of the graph
        self._made = {v: v for v in (*graph.inputs, *graph.parameters, *graph.constants)}
        self._made |= {v: Value(self._sized(v.type, batch), v.name) for v, batch in inputs.items()}
        self._producers = graph.producers()
        #: Of the graph that is written: places in a table of all rows, and what is made of them.
        self._placed = set[Value]()
        self._after = Graph(
            [self._made[v] for v in graph.inputs], dict(graph.constants), dict(graph.parameters), [], {}, {}
        )

    def _sized(self, type: TensorType, batch: Batch) -> TensorType:
        shape = list(type.shape)
        if shape[batch.axis] % (self._rows * batch.outer):
            raise Fixed
        shape[batch.axis] = shape[batch.axis] // self._rows * MANY
        return replace(type, shape=tuple(shape))

    def _emit(self, op: Op, *inputs: Value, name: str = "") -> Value:
        made = op.infer(*(v.type for v in inputs))
        assert isinstance(made, TensorType)
        value = Value(made, name)
        self._after.nodes.append(Node(op, inputs, (value,)))
        return value

    def _narrowed(self, value: Value, batch: Batch) -> Value:
        """Return a value that is the same for all rows, for one row, which broadcasts."""
        if value.type.rank < -batch.axis or value.shape[batch.axis] == 1:
            return self._made[value]
        if batch.outer != 1 or value.shape[batch.axis] != self._rows:
            raise Fixed
        shape = (*value.shape[: batch.axis], 1, *value.shape[batch.axis :][1:])
        if (array := self._graph.constants.get(value)) is not None:
            one = array.take([0], batch.axis)
            if not np.array_equal(np.broadcast_to(one, array.shape), array):
                raise Fixed
            narrow = Value(replace(value.type, shape=shape), value.name)
            self._after.constants[narrow] = np.ascontiguousarray(one)
            return narrow
        if (node := self._producers.get(value)) is None or len(node.outputs) > 1:
            raise Fixed
        op = node.op
        if isinstance(op, tfl.Zeros):
            op = replace(op, type=op.type.with_shape(shape))
        elif isinstance(op, tfl.BroadcastTo | tfl.Reshape):
            op = replace(op, shape=shape)
        elif isinstance(op, tfl.Slice):
            op = replace(op, size=shape)
        if isinstance(op, tfl.Reshape):
            batch = self._before(node.inputs[0], prod(value.shape[: batch.axis]))
        # The first row of a slice is that of all rows only where all rows of what it cuts are the same.
        narrowed = self._narrowed if isinstance(op, tfl.Slice) else self._narrowed_where_it_can
        made = self._emit(op, *(narrowed(v, batch) for v in node.inputs), name=value.name)
        if made.shape != shape:
            raise Fixed
        return made

    def _before(self, x: Value, elements: int) -> Batch:
        """Return the axis of the rows in a value, of so many elements before them. Raise Fixed for none."""
        for axis, size in enumerate(x.shape):
            if size == self._rows and prod(x.shape[:axis]) == elements:
                return Batch(axis - x.type.rank)
        raise Fixed

    def _narrowed_where_it_can(self, value: Value, batch: Batch) -> Value:
        """Return an operand of a value that is the same for all rows: another one may be as long by chance."""
        try:
            return self._narrowed(value, batch)
        except Fixed:
            return self._made[value]

    def _repeated(self, value: Value, batch: Batch) -> Value:
        """Return a value that is the same for all rows, for as many as an input has."""
        narrow = self._narrowed(value, batch)
        if value.type.rank < -batch.axis or value.shape[batch.axis] != self._rows or value.dtype.kind not in "fi":
            return narrow
        axis = value.type.rank + batch.axis
        return self._emit(tfl.Add(), narrow, self._zeros(value.dtype, value.type.rank, axis), name=value.name)

    def _zeros(self, dtype: np.dtype, rank: int, axis: int) -> Value:
        """Return a zero for each row, along one of so many axes; the others are of size 1."""
        source = next((v for v in self._graph.inputs if v in self._batches and v.dtype.kind in "fi"), None)
        if source is None or self._batches[source] != Batch(-source.type.rank):
            raise Fixed
        x = self._made[source]
        ones = (1,) * (x.type.rank - 1)
        row = self._emit(tfl.StridedSlice((0,) * x.type.rank, (END, *ones), (1, *ones)), x)
        # No number is less than itself, so this is 0 for each row, whatever it holds.
        zero = self._emit(tfl.Cast(dtype), self._emit(tfl.Less(), row, row))
        shape = tuple(MANY if i == axis else 1 for i in range(rank))
        return self._emit(tfl.Reshape(shape, free=axis), zero)

    def _along(self, value: Value, batch: Batch) -> Value:
        """Return a constant for as many rows as an input has.

        It is the same for all, or whole numbers that grow by one step, as places in a table of all rows do.
        """
        array, rank = self._graph.constants.get(value), value.type.rank
        if array is None or rank < -batch.axis or batch.outer != 1:
            raise Fixed
        axis = rank + batch.axis
        inner, rest = divmod(array.shape[axis], self._rows)
        if rest or not inner:
            raise Fixed
        dtype = INT32 if value.dtype == BOOL else value.dtype
        blocks = array.astype(dtype).reshape(*array.shape[:axis], self._rows, inner, *array.shape[axis + 1 :])
        first, second = blocks.take([0], axis), blocks.take([1], axis)
        grows = dtype == INT32 and bool((first != second).any())
        steps = np.diff(blocks, axis=axis) if grows else blocks
        if (steps != steps.take([0], axis)).any() or (grows and self._rows < ENOUGH_ROWS):
            raise Fixed
        made = self._zeros(dtype, rank + 1, axis)
        if grows:
            numbers = self._emit(tfl.CumSum(axis), self._emit(tfl.Add(), made, self._constant(np.ones(1, INT32))))
            made, first = self._emit(tfl.Mul(), numbers, self._constant(second - first)), 2 * first - second
        made = self._emit(tfl.Add(), made, self._constant(first))
        made = made if value.dtype == dtype else self._emit(tfl.Cast(value.dtype), made)
        shape = (*array.shape[:axis], inner * MANY, *array.shape[axis + 1 :])
        made = self._emit(tfl.Reshape(shape, free=axis), made, name=value.name)
        self._placed |= {made} if grows else set()
        return made

    def _constant(self, array: np.ndarray) -> Value:
        value = Value(TensorType(array.shape, array.dtype), "")
        self._after.constants[value] = array
        return value
