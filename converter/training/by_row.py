"""Rows of a batch within values: the axis along which they lie, and values with one row behind the other."""

from __future__ import annotations

from converter.ir import Builder, Graph, Value
from converter.training.batch_dependence import mixing


def by_row(b: Builder, value: Value, rows_axis: int, axis: int, rows: int) -> Value:
    """Return a value of which `axis` runs over channels, and `rows_axis` over rows, as [rows, places, channels]."""
    others = (i for i in range(len(value.shape)) if i not in (rows_axis, axis))
    moved = b.transpose(value, (rows_axis, *others, axis))
    channels = value.shape[axis]
    return b.reshape(moved, (rows, value.type.size // (rows * channels), channels))


def rows_axis(graph: Graph, value: Value, axis: int, rows: int) -> int | None:
    """Return the axis along which a value has the rows of the batch, or their places.

    Args:
        graph: a forward graph, whose inputs have the batch as their first axis.
        value: of it.
        axis: that of its channels.
        rows: of the batch.

    Returns:
        None where it cannot be told which row a number belongs to.
    """
    for candidate, size in enumerate(value.shape):
        b = Builder(graph.copy())
        whole = candidate != axis and not size % rows
        if whole and mixing(b.graph, [by_row(b, value, candidate, axis, rows)]) is None:
            return candidate
    return None
