"""Batch dependence analysis: which row of the batch each element of a value depends on.

Arrays here are compact: of the rank of the value, with size 1 on each axis along which all elements are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.types import Shape

if TYPE_CHECKING:
    from converter.ir.graph import Graph, Node, Value

#: Of an element that depends on no row: a weight, a constant.
NO_ROW = -1
#: From here on a bound says nothing.
UNBOUNDED = float(1 << 40)


class RowsMixed(Exception):
    """An element depends on several rows."""


@dataclass(frozen=True)
class Rows:
    """The rows of a value's elements.

    Attributes:
        of: for each element the row that it depends on, or NO_ROW; compact.
        bounds: least and largest number that each element of an integer or bool value can be, compact; None for
            unknown, and infinite where one of them is. What is fed in is taken to be at least 0 and, added to a place,
            not to leave the row that is there.
    """

    of: np.ndarray
    bounds: tuple[np.ndarray, np.ndarray] | None = None

    @staticmethod
    def none(rank: int) -> Rows:
        """Return what is known of a value that depends on no row."""
        return Rows(np.full((1,) * rank, NO_ROW))

    @staticmethod
    def first_axis(shape: Shape) -> Rows:
        """Return what is known of a value whose first axis is the batch."""
        return Rows(np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1)))

    @staticmethod
    def number(array: np.ndarray) -> Rows:
        """Return what is known of a constant."""
        if array.dtype.kind != "i":
            return Rows.none(array.ndim)
        if array.itemsize == 1:  # a weight: what its numbers are says nothing of rows
            return Rows.none(array.ndim).within(np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)
        known = compact(array).astype(np.float64)
        return replace(Rows.none(array.ndim), bounds=(known, known))

    def within(self, least: float, largest: float) -> Rows:
        """Return the same rows of an integer value with known bounds."""
        one = (1,) * self.of.ndim
        return Rows(self.of, (np.full(one, least), np.full(one, largest)))

    def known(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the bounds, where both are known."""
        return None if self.bounds is None or any(np.isinf(end).any() for end in self.bounds) else self.bounds

    def moved(self, move: Callable[[np.ndarray], np.ndarray]) -> Rows:
        """Return what is known of the same elements in other places."""
        return Rows(move(self.of), None if self.bounds is None else (move(self.bounds[0]), move(self.bounds[1])))

    def along(self, axes: Sequence[int], keepdims: bool = True) -> Rows:
        """Return what is known of a value made of all elements along some axes. Raises RowsMixed."""
        axes = tuple(axis % self.of.ndim for axis in axes)
        merged = self.of.max(axes, keepdims=True)
        if ((self.of != merged) & (self.of != NO_ROW)).any():
            raise RowsMixed
        return Rows(merged if keepdims else merged.squeeze(axes))


def rows_through(node: Node, known: Mapping[Value, Rows]) -> tuple[Rows, ...]:
    """Return what is known of a node's results. Raises RowsMixed."""
    if not all(value.type.size for value in node.outputs):
        return tuple(Rows.none(len(value.shape)) for value in node.outputs)
    made = node.op.batch_rows(tuple(v.type for v in node.inputs), *(known[v] for v in node.inputs))
    return made if isinstance(made, tuple) else (made,)


def rows_of_body(body: Graph, operands: Sequence[Rows]) -> list[Rows]:
    """Return what is known of the results of a graph that an op runs. Raises RowsMixed."""
    known = dict(zip(body.inputs, operands, strict=True))
    known |= {value: Rows.number(array) for value, array in body.constants.items()}
    for node in body.nodes:
        known |= zip(node.outputs, rows_through(node, known), strict=True)
    return [known[value] for value in body.outputs.values()]


def together(*operands: Rows) -> Rows:
    """Return what is known of a value made of elements at the same place, after broadcasting. Raises RowsMixed."""

    def both(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        if ((one != other) & (one != NO_ROW) & (other != NO_ROW)).any():
            raise RowsMixed
        return np.maximum(one, other)

    return Rows(reduce(both, (operand.of for operand in operands)))


def corners(function: Callable[[np.ndarray, np.ndarray], np.ndarray], x: Rows, y: Rows) -> Rows:
    """Return the rows of `function(x, y)`, and its bounds where they lie at the ends of both operands."""
    rows = together(x, y)
    if (of_x := x.known()) is None or (of_y := y.known()) is None:
        return rows
    results = (function(a, b).astype(np.float64) for a in of_x for b in of_y)
    ends = np.broadcast_arrays(*(np.clip(result, -UNBOUNDED, UNBOUNDED) for result in results))
    return Rows(rows.of, (compact(np.min(ends, axis=0)), compact(np.max(ends, axis=0))))


def clamped(function: Callable[[np.ndarray, np.ndarray], np.ndarray], x: Rows, y: Rows) -> Rows:
    """Return the rows of the larger or smaller of two; what is known of one bounds the other."""
    rows = together(x, y)
    if x.bounds is None and y.bounds is None:
        return rows
    unknown = np.full((1,) * rows.of.ndim, -np.inf), np.full((1,) * rows.of.ndim, np.inf)
    least, largest = (function(a, b) for a, b in zip(x.bounds or unknown, y.bounds or unknown, strict=True))
    return Rows(rows.of, (compact(least), compact(largest)))


def remainders(x: Rows, y: Rows) -> Rows:
    """Return the rows of the remainders of x by y, which lie below y where that is positive."""
    rows = together(x, y)
    if (ends := y.known()) is None or ends[0].min() <= 0:
        return rows
    return rows.within(0, ends[1].max() - 1)


def chosen(condition: Rows, x: Rows, y: Rows) -> Rows:
    """Of x where the condition holds, else of y; its bounds are those of what can be chosen. Raises RowsMixed."""
    rows = together(condition, x, y)
    if (of_x := x.known()) is None or (of_y := y.known()) is None:
        return rows
    surely, perhaps = (np.zeros(()), np.ones(())) if condition.bounds is None else condition.bounds
    (a, b), (c, d) = of_x, of_y
    least = np.where(perhaps == 0, c, np.where(surely == 1, a, np.minimum(a, c)))
    return Rows(rows.of, (least, np.where(perhaps == 0, d, np.where(surely == 1, b, np.maximum(b, d)))))


def taken(table: Rows, indices: Rows, axis: int, size: int) -> Rows:
    """Return what is known of elements taken along an axis of `size` elements, as numpy.take. Raises RowsMixed."""
    many = indices.of.ndim
    where = Rows(indices.of.reshape(*(1,) * axis, *indices.of.shape, *(1,) * (table.of.ndim - axis - 1)))
    if table.of.shape[axis] == 1:
        shape = (*table.of.shape[:axis], *(1,) * many, *table.of.shape[axis + 1 :])
        return together(Rows(table.of.reshape(shape)), where)
    if (bounds := indices.known()) is None:
        raise RowsMixed
    least, largest = (end.astype(np.int64) for end in np.broadcast_arrays(*bounds))
    if least.min(initial=0) < 0 or least.max(initial=0) >= size:
        raise RowsMixed
    ahead = np.moveaxis(table.of, axis, 0)
    changes = (ahead[1:] != ahead[:-1]).any(tuple(range(1, ahead.ndim)))
    block = np.concatenate([[0], np.cumsum(changes)])
    known = largest < UNBOUNDED
    if (block[least] != block[np.where(known, np.minimum(largest, size - 1), least)]).any():
        raise RowsMixed
    return together(Rows(np.take(table.of, least, axis)), where)


def scattered(indices: Rows, updates: Rows, count: int, rows: int) -> Rows:
    """Of `rows` rows, each made of those of `count` updates whose index it is. Raises RowsMixed."""
    made = together(updates, Rows(indices.of.reshape(-1, *(1,) * (updates.of.ndim - 1)))).of
    if len(made) == 1:  # so is every row to which one goes
        return Rows(made)
    if (bounds := indices.known()) is None:
        raise RowsMixed
    least, largest = (np.broadcast_to(end, count).astype(np.int64) for end in bounds)
    if least.min() < 0 or largest.max() >= rows:
        raise RowsMixed
    result = np.full((rows, *made.shape[1:]), NO_ROW)
    for row, first, last in zip(made, least, largest, strict=True):
        there = slice(first, last + 1)
        result[there] = together(Rows(result[there]), Rows(row[None])).of
    return Rows(compact(result))


def compact(array: np.ndarray) -> np.ndarray:
    """Return the array with size 1 on each axis along which its elements do not change."""
    for axis in range(array.ndim):
        first = array.take([0], axis) if array.shape[axis] > 1 else array
        array = first if (array == first).all() else array
    return array


def reshaped(array: np.ndarray, before: Shape, after: Shape) -> np.ndarray:
    """Return a compact array of a value whose shape changes. Axes that are as before stay compact."""
    full: list[int] = []
    made: list[int] = []
    for old, new in _groups(before, after):
        varies = any(array.shape[axis] > 1 for axis in old)
        full += [before[axis] if varies else 1 for axis in old]
        made += [after[axis] if varies else 1 for axis in new]
    return compact(np.broadcast_to(array, full).reshape(made))


def _groups(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the axes of two shapes in the smallest groups that hold the same elements."""
    i = j = 0
    while i < len(before) or j < len(after):
        old: list[int] = []
        new: list[int] = []
        left = right = 1
        while not (old or new) or left != right:
            if j == len(after) or (i < len(before) and left <= right):
                left, i = left * before[i], i + 1
                old.append(i - 1)
            else:
                right, j = right * after[j], j + 1
                new.append(j - 1)
        yield old, new


def sliced(array: np.ndarray, cut: tuple[slice, ...]) -> np.ndarray:
    """Return a compact array of a value that is cut."""
    return array[tuple(s if d > 1 else slice(None) for d, s in zip(array.shape, cut, strict=True))]


def joined(arrays: Sequence[np.ndarray], sizes: Sequence[int], axis: int) -> np.ndarray:
    """Compact arrays of values that stand one after the other along an axis."""
    shape = [max(array.shape[i] for array in arrays) for i in range(arrays[0].ndim)]
    parts = [np.broadcast_to(a, (*shape[:axis], n, *shape[axis + 1 :])) for a, n in zip(arrays, sizes, strict=True)]
    return compact(np.concatenate(parts, axis))
