"""gather and scatter: the forms that jnp indexing, jnp.take and take_along_axis give."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import numpy as np

from converter.ir import FLOAT32, Builder, Shape, Value, ops
from jax_frontend.folding import FoldingBuilder
from jax_frontend.registry import Call, NotImportable, Result, rule
from jax_frontend.rules.shape import cut_axis, overwritten

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
        places = call.b.constant(_places(x.shape, positions, numbers, sizes))
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
    places = [*offsets[:axis], *others, *offsets[axis:]]
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


def _places(shape: Shape, positions: np.ndarray, numbers: Any, sizes: Shape, outside: str = "clip") -> np.ndarray:
    """Flat positions in the operand that a gather at known indices reads: the gather itself, of 0, 1, 2, ..."""
    flat = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    return np.asarray(jax.lax.gather(flat, positions, numbers, sizes, mode=outside, fill_value=-1), np.int32)


def _scatter(name: str, overwrites: bool, sign: int = 1) -> None:
    @rule(name)
    def apply(call: Call, x: Value, indices: Value, updates: Value) -> Result:
        """x.at[...].add or .set: of a box, of rows of the first axis, or of anything at known positions."""
        b, numbers, positions = call.b, call.params["dimension_numbers"], call.constant(indices)
        updates = updates if sign > 0 else b(ops.Neg(), updates)
        if positions is None and (overwrites or not _is_of_rows(numbers, x.shape, indices.shape, updates.shape)):
            raise NotImportable(f"{name} at places computed at run time", _ADVICE)
        sizes = _window(numbers, x.shape, updates.shape)
        if positions is not None and positions.size == len(numbers.scatter_dims_to_operand_dims):
            corner = [0] * len(x.shape)
            for axis, place in zip(numbers.scatter_dims_to_operand_dims, positions.reshape(-1).tolist(), strict=True):
                corner[axis] = place
            after = [d - c - n for d, c, n in zip(x.shape, corner, sizes, strict=True)]
            if min((*corner, *after), default=0) >= 0 and not numbers.operand_batching_dims:
                box = b.reshape(updates, sizes)
                if overwrites:
                    return overwritten(b, x, box, corner)
                return b(ops.Add(), x, b(ops.Pad(tuple(zip(corner, after, strict=True))), box))
        if _is_of_rows(numbers, x.shape, indices.shape, updates.shape):
            count = prod(indices.shape[:-1])
            return _scattered(b, x, b.reshape(indices, (count,)), b.reshape(updates, (count, *x.shape[1:])), overwrites)
        assert positions is not None
        reads = jax.lax.GatherDimensionNumbers(
            offset_dims=numbers.update_window_dims,
            collapsed_slice_dims=numbers.inserted_window_dims,
            start_index_map=numbers.scatter_dims_to_operand_dims,
            operand_batching_dims=numbers.operand_batching_dims,
            start_indices_batching_dims=numbers.scatter_indices_batching_dims,
        )
        places = _places(x.shape, positions, reads, sizes, outside="fill").reshape(-1)
        flat, elements = b.reshape(x, (x.type.size,)), b.reshape(updates, (updates.type.size,))
        if (places < 0).any():  # what lies outside is dropped
            elements = b(ops.Gather(0), elements, b.constant(np.flatnonzero(places >= 0)))
            places = places[places >= 0]
        return b.reshape(_scattered(b, flat, b.constant(places), elements, overwrites), x.shape)


def _is_of_rows(numbers: Any, shape: Shape, indices: Shape, updates: Shape) -> bool:
    """x.at[indices] with whole rows of the first axis."""
    many = len(indices) - 1
    return (
        tuple(numbers.scatter_dims_to_operand_dims) == (0,)
        and tuple(numbers.inserted_window_dims) == (0,)
        and not numbers.operand_batching_dims
        and tuple(numbers.update_window_dims) == tuple(range(many, len(updates)))
        and updates == indices[:-1] + shape[1:]
    )


def _window(numbers: Any, shape: Shape, updates: Shape) -> Shape:
    """Size along each axis of the operand of what one index overwrites."""
    sizes = iter(updates[a] for a in numbers.update_window_dims)
    single = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    return tuple(1 if axis in single else next(sizes) for axis in range(len(shape)))


def _scattered(b: Builder, x: Value, places: Value, rows: Value, overwrites: bool) -> Value:
    """Rows added to those of x at `places`, or written over them: then one gather of both, the last one wins."""
    if not overwrites:
        return b(ops.Add(), x, b(ops.ScatterAdd(x.shape[0]), places, rows))
    source, known = np.arange(x.shape[0], dtype=np.int32), b.graph.constants[places]
    inside = (known >= 0) & (known < x.shape[0])
    source[known[inside]] = x.shape[0] + np.flatnonzero(inside)
    return b(ops.Gather(0), b(ops.Concat(0), x, rows), b.constant(source))


_scatter("scatter-add", overwrites=False)
_scatter("scatter-sub", overwrites=False, sign=-1)
_scatter("scatter", overwrites=True)
