"""scatter: x.at[...].add, .set, .max, .min and .multiply of boxes, at places known or computed at run time."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from converter.ir import Builder, Op, Shape, Value, ops
from jax_frontend.registry import Call, NotImportable, Result, rule
from jax_frontend.rules.indexing import Boxes, bounded_starts, known_places, unpromised
from jax_frontend.rules.shape import overwritten
from jax_frontend.rules.spelled import with_derivative

#: What makes one row of all that go to the same place.
_SEGMENTS: dict[type[Op], type[ops.Segment]] = {
    ops.Mul: ops.SegmentProd,
    ops.Maximum: ops.SegmentMax,
    ops.Minimum: ops.SegmentMin,
}


def _scatter(name: str, combine: Op | None, sign: int = 1) -> None:
    @rule(name)
    def apply(call: Call, x: Value, indices: Value, updates: Value) -> Result:
        """What comes is put in the place of, or combined with, what is there; elements outside are dropped."""
        given = call.params.get("update_jaxpr")
        if combine is None and given is not None and given.outvars[0] is not given.invars[1]:
            raise NotImportable("scatter by a function of one's own", "write x.at[i].set(f(x[i])) for x.at[i].apply(f)")
        call = unpromised(call, jax.lax.GatherScatterMode.FILL_OR_DROP) if call.is_primal else call
        b, numbers, positions = call.b, call.params["dimension_numbers"], call.constant(indices)
        updates = updates if sign > 0 else b(ops.Neg(), updates)
        sizes = _window(numbers, x.shape, updates.shape)
        if positions is not None and positions.size == len(numbers.scatter_dims_to_operand_dims):
            made = _one_box(b, x, updates, positions, numbers, sizes, combine)
            if made is not None:
                return made
        if positions is None:
            rows, places, moved, boxes = _at_run_time(call, x, indices, updates, numbers, sizes)
            made = boxes.unrow(_combined(b, rows, places, moved, combine, bool(call.params["unique_indices"])))
            # Which of several updates is the largest, the place knows: JAX's derivative reads it again.
            extreme = isinstance(combine, ops.Maximum | ops.Minimum)
            return with_derivative(call, (x, indices, updates), (made,)) if extreme else made
        elements = b.reshape(updates, (updates.type.size,))
        known = known_places(x.shape, positions, _reads(numbers), sizes, outside="fill").reshape(-1)
        if (known < 0).any():  # what lies outside is dropped
            elements = b(ops.Gather(0), elements, b.constant(np.flatnonzero(known >= 0)))
            known = known[known >= 0]
        unique = len(np.unique(known)) == len(known)
        flat = b.reshape(x, (x.type.size,))
        return b.reshape(_combined(b, flat, b.constant(known), elements, combine, unique), x.shape)


def _reads(numbers: Any) -> Any:
    """The gather that reads what a scatter writes."""
    return jax.lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )


def _window(numbers: Any, shape: Shape, updates: Shape) -> Shape:
    """Size along each axis of the operand of what one index overwrites."""
    sizes = iter(updates[a] for a in numbers.update_window_dims)
    single = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    return tuple(1 if axis in single else next(sizes) for axis in range(len(shape)))


def _one_box(
    b: Builder, x: Value, updates: Value, positions: np.ndarray, numbers: Any, sizes: Shape, combine: Op | None
) -> Value | None:
    """A single box at a known place within the operand, added or written; None for others."""
    corner = [0] * len(x.shape)
    for axis, place in zip(numbers.scatter_dims_to_operand_dims, positions.reshape(-1).tolist(), strict=True):
        corner[axis] = place
    after = [d - c - n for d, c, n in zip(x.shape, corner, sizes, strict=True)]
    if min((*corner, *after), default=0) < 0 or numbers.operand_batching_dims:
        return None
    box = b.reshape(updates, sizes)
    if combine is None:
        return overwritten(b, x, box, corner)
    if isinstance(combine, ops.Add):
        return b(combine, x, b(ops.Pad(tuple(zip(corner, after, strict=True))), box))
    return overwritten(b, x, b(combine, b(ops.Slice(tuple(corner), sizes), x), box), corner)


def _at_run_time(
    call: Call, x: Value, indices: Value, updates: Value, numbers: Any, sizes: Shape
) -> tuple[Value, Value, Value, Boxes]:
    """The operand as rows, and the updates [n, ...] with the number of the row that each goes to.

    What lies outside and is to be dropped goes to a row behind the last.
    """
    b, single = call.b, (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    batching = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    indexed = tuple(int(a) for a in numbers.scatter_dims_to_operand_dims)
    boxes = Boxes(b, x.shape, sizes, indexed, batching, single)
    starts, inside = bounded_starts(call, boxes, indices)
    places, rows = boxes.places(starts), boxes.rows(x)
    if inside is not None:
        kept = b.reshape(inside, (*inside.shape, *(1 for _ in places.shape[len(inside.shape) :])))
        places = b(ops.Select(), kept, places, b.constant(np.int32(rows.shape[0])))
    order = boxes.order(len(updates.shape), numbers.update_window_dims)
    moved = b.transpose(updates, tuple(int(i) for i in np.argsort(order)))
    count = places.type.size
    return rows, b.reshape(places, (count,)), b.reshape(moved, (count, *rows.shape[1:])), boxes


def _combined(b: Builder, x: Value, places: Value, updates: Value, combine: Op | None, unique: bool) -> Value:
    """Rows of x, each with the updates that go there; places past the end are dropped."""
    count, known = x.shape[0], b.graph.constants.get(places)

    def by_row(op: Op, values: Value) -> Value:
        """What `op` makes of all values that go to a row; the row behind the last takes what is dropped."""
        total = b(op, places, values)
        return b(ops.Slice((0,) * len(total.shape), (count, *total.shape[1:])), total)

    if isinstance(combine, ops.Add):
        return b(
            combine,
            x,
            by_row(ops.ScatterAdd(count + 1), updates) if known is None else b(ops.ScatterAdd(count), places, updates),
        )
    if known is not None and (combine is None or unique):
        source = np.arange(count, dtype=np.int32)
        source[known] = count + np.arange(len(known), dtype=np.int32)  # the last one wins
        came = updates if combine is None else b(combine, b(ops.Gather(0), x, places), updates)
        return b(ops.Gather(0), b(ops.Concat(0), x, came), b.constant(source))
    # Which update comes to a row, counted from 1, the last of several; where none does, the lowest integer.
    numbers = b.constant(np.arange(1, updates.shape[0] + 1, dtype=np.int32))
    last = by_row(ops.SegmentMax(count + 1), numbers)
    mask = b.reshape(b(ops.Greater(), last, 0), (count, *(1 for _ in x.shape[1:])))
    if combine is None or unique:
        row = b(ops.Gather(0), updates, b(ops.Sub(), b(ops.Maximum(), last, 1), 1))
    else:
        row = by_row(_SEGMENTS[type(combine)](count + 1), updates)
    return b(ops.Select(), mask, row if combine is None else b(combine, x, row), x)


_scatter("scatter-add", ops.Add())
_scatter("scatter-sub", ops.Add(), sign=-1)
_scatter("scatter", None)
_scatter("scatter-mul", ops.Mul())
_scatter("scatter-min", ops.Minimum())
_scatter("scatter-max", ops.Maximum())
