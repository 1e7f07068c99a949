"""gather and scatter: the forms that jnp indexing, jnp.take and take_along_axis give."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from converter.ir import FLOAT32, Builder, Shape, Value, ops
from jax_frontend.folding import FoldingBuilder
from jax_frontend.registry import Call, NotImportable, Result, rule
from jax_frontend.rules.shape import cut_axis

_ADVICE = "index along one axis at a time (jnp.take), or with positions that are known when compiling"


@rule("gather")
def gather(call: Call, x: Value, indices: Value) -> Result:
    """Whole slices along one axis, elements along the last axis row by row, or anything at known positions.

    Indices out of range are the caller's fault: JAX fills or clamps, the compiled program need not.
    """
    numbers = call.params["dimension_numbers"]
    sizes = tuple(int(n) for n in call.params["slice_sizes"])
    if not numbers.operand_batching_dims:
        along = _single_axis(numbers, sizes, x.shape)
        if along is not None:
            return _take(call, x, indices, along, numbers)
    elif _rowwise(numbers, sizes, x.shape, indices.shape):
        return _pick(call, x, indices, numbers)
    positions = call.constant(indices)
    if positions is not None:
        places = _places(x.shape, positions, call)
        return call.b.reshape(call.b(ops.Gather(0), call.b.reshape(x, (x.type.size,)), places), call.output.shape)
    return _elements(call, x, indices, numbers, sizes)


def _single_axis(numbers: Any, sizes: Shape, shape: Shape) -> int | None:
    """The axis, if every other one is taken whole and this one is indexed by single elements."""
    if len(numbers.start_index_map) != 1:
        return None
    (axis,) = numbers.start_index_map
    whole = all(n == d for i, (n, d) in enumerate(zip(sizes, shape, strict=True)) if i != axis)
    return int(axis) if whole and sizes[axis] == 1 else None


def _take(call: Call, x: Value, indices: Value, axis: int, numbers: Any) -> Value:
    b = call.b
    batch = indices.shape[:-1]  # the last axis of the indices is the index vector, of length 1
    flat = b.reshape(indices, batch)
    positions = call.constant(flat)
    if positions is not None and positions.size == 1:
        place = min(max(int(positions.item()), 0), x.shape[axis] - 1)
        taken = cut_axis(b, x, axis, place, 1)
        return b.reshape(taken, call.output.shape)
    taken = b(ops.Gather(axis), x, flat)  # x.shape[:axis] + batch + x.shape[axis+1:]
    offsets = [int(d) for d in numbers.offset_dims]
    others = [d for d in range(len(call.output.shape)) if d not in offsets]
    kept = [i for i in range(len(x.shape)) if i != axis or axis not in numbers.collapsed_slice_dims]
    shape_with = (*x.shape[:axis], *batch, *((1,) if axis in kept else ()), *x.shape[axis + 1 :])
    taken = b.reshape(taken, shape_with)
    # Where each axis of `taken` belongs in the output.
    places = [*offsets[: axis], *others, *offsets[axis:]]
    return b.transpose(taken, tuple(int(i) for i in np.argsort(places)))


def _rowwise(numbers: Any, sizes: Shape, shape: Shape, indices: Shape) -> bool:
    """take_along_axis over the last axis: all leading axes are batch, the last one is indexed."""
    leading = tuple(range(len(shape) - 1))
    return (
        tuple(numbers.operand_batching_dims) == leading
        and tuple(numbers.start_indices_batching_dims) == leading
        and tuple(numbers.start_index_map) == (len(shape) - 1,)
        and all(n == 1 for n in sizes)
        and indices[-1] == 1
        and not numbers.offset_dims
    )


def _pick(call: Call, x: Value, indices: Value, numbers: Any) -> Value:
    """One element of each row: a product with the one-hot row and a sum, which has a plain derivative."""
    b = call.b
    many = indices.shape[len(x.shape) - 1 : -1]
    return b.reshape(_one_of_each_row(b, x, indices, many), call.output.shape)


def _one_of_each_row(b: Builder, x: Value, indices: Value, many: Shape) -> Value:
    several = prod(many) > 1
    chosen = b(ops.OneHot(x.shape[-1]), b.reshape(indices, (*x.shape[:-1], *many) if several else x.shape[:-1]))
    if x.dtype != FLOAT32:
        chosen = b(ops.Cast(x.dtype), chosen)
    rows = b.reshape(x, (*x.shape[:-1], *(1 for _ in many), x.shape[-1])) if several else x
    return b(ops.Sum((len(chosen.shape) - 1,)), b(ops.Mul(), chosen, rows))


def _elements(call: Call, x: Value, indices: Value, numbers: Any, sizes: Shape) -> Value:
    """Several axes indexed at once, the others taken whole: rows of the flattened operand at computed places."""
    b, axes = call.b, tuple(int(a) for a in numbers.start_index_map)
    others = [a for a in range(len(x.shape)) if a not in axes]
    batch = indices.shape[:-1]
    collapsed = tuple(int(a) for a in numbers.collapsed_slice_dims)
    if (
        numbers.operand_batching_dims
        or collapsed != tuple(sorted(axes))
        or any(sizes[a] != x.shape[a] for a in others)
        or tuple(numbers.offset_dims) != tuple(range(len(batch), len(call.output.shape)))
    ):
        raise NotImportable("gather of boxes at places computed at run time", _ADVICE)
    if axes == (0, 1) and len(x.shape) == 2 and _counts_rows(b, indices, x.shape[0]):
        return _one_of_each_row(b, x, cut_axis(b, indices, 1, 1, 1), ())
    strides = np.cumprod([1, *(x.shape[a] for a in reversed(axes))])[-2::-1].astype(np.int32)
    places = b(ops.Sum((len(batch),)), b(ops.Mul(), indices, strides))
    rows = b.transpose(x, (*axes, *others))
    rows = b.reshape(rows, (prod(x.shape[a] for a in axes), *(x.shape[a] for a in others)))
    return b.reshape(b(ops.Gather(0), rows, places), call.output.shape)


def _counts_rows(b: Builder, indices: Value, rows: int) -> bool:
    """Whether the first component of index vectors [rows, 2] is 0, 1, 2, ...: x[arange(n), y]."""
    assert isinstance(b, FoldingBuilder)
    joined = b.source(indices, ops.Concat)
    first = b.graph.constants.get(joined.inputs[0]) if joined else None
    return first is not None and indices.shape == (rows, 2) and np.array_equal(first.reshape(-1), np.arange(rows))


def _places(shape: Shape, positions: np.ndarray, call: Call) -> np.ndarray:
    """Flat positions in the operand that a gather at known indices reads: the gather itself, of 0, 1, 2, ..."""
    import jax

    keys = ("dimension_numbers", "slice_sizes", "unique_indices", "indices_are_sorted")
    options = {key: call.params[key] for key in keys}
    flat = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    return np.asarray(jax.lax.gather(flat, positions, mode="clip", **options), np.int32)


def _scatter(name: str, overwrites: bool) -> None:
    @rule(name)
    def apply(call: Call, x: Value, indices: Value, updates: Value) -> Result:
        """x.at[indices].add(updates) along the first axis."""
        b, numbers = call.b, call.params["dimension_numbers"]
        simple = (
            tuple(numbers.scatter_dims_to_operand_dims) == (0,)
            and tuple(numbers.inserted_window_dims) == (0,)
            and not numbers.operand_batching_dims
            and updates.shape == indices.shape[:-1] + x.shape[1:]
        )
        if not simple or (overwrites and call.constant(indices) is None):
            raise NotImportable(f"{name} along several axes or at places computed at run time", _ADVICE)
        count = prod(indices.shape[:-1])
        rows = b.reshape(updates, (count, *x.shape[1:]))
        places = b.reshape(indices, (count,))
        if overwrites:
            return _overwrite(b, x, call.known(places, name), rows)
        return b(ops.Add(), x, b(ops.ScatterAdd(x.shape[0]), places, rows))


def _overwrite(b: Builder, x: Value, places: np.ndarray, rows: Value) -> Value:
    """Row i of the result is a row of `x`, or the last update that was written there: one gather of both."""
    source = np.arange(x.shape[0], dtype=np.int32)
    for number, place in enumerate(places.tolist()):
        if 0 <= place < x.shape[0]:
            source[place] = x.shape[0] + number
    return b(ops.Gather(0), b(ops.Concat(0), x, rows), source)


_scatter("scatter-add", overwrites=False)
_scatter("scatter", overwrites=True)
