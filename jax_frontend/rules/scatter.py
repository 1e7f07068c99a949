"""scatter: x.at[...].add, .set, .max, .min and .multiply of boxes, at places known or computed at run time."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from converter.ir import Builder, Op, Shape, Value, ops
from converter.support.errors import NotImportable
from jax_frontend.registry import Equation, ImportRules, Result
from jax_frontend.rules.indexing import Boxes, bounded_starts, known_places, unpromised
from jax_frontend.rules.shape import overwritten
from jax_frontend.rules.spelled import with_derivative
from jax_frontend.unsupported import UnsupportedForm

rule = ImportRules()

_OWN_FUNCTION = UnsupportedForm("scatter by a function of one's own", "write x.at[i].set(f(x[i])) for x.at[i].apply(f)")

#: What makes one row of all that go to the same place.
_SEGMENTS: dict[type[Op], type[ops.Segment]] = {
    ops.Mul: ops.SegmentProd,
    ops.Maximum: ops.SegmentMax,
    ops.Minimum: ops.SegmentMin,
}


def _scatter(name: str, combine: Op | None, sign: int = 1) -> None:
    @rule(name, refuses=[_OWN_FUNCTION])
    def apply(call: Equation, x: Value, indices: Value, updates: Value) -> Result:
        """What comes is put in the place of, or combined with, what is there; elements outside are dropped."""
        given = call.params.get("update_jaxpr")
        if combine is None and given is not None and given.outvars[0] is not given.invars[1]:
            raise NotImportable(*_OWN_FUNCTION)
        call = unpromised(call, jax.lax.GatherScatterMode.FILL_OR_DROP)
        b, numbers, positions = call.b, call.params["dimension_numbers"], call.constant(indices)
        updates = updates if sign > 0 else b(ops.Neg(), updates)
        sizes = _window(numbers, x.shape, updates.shape)
        if positions is not None and positions.size == len(numbers.scatter_dims_to_operand_dims):
            made = _one_box(b, x, updates, positions, numbers, sizes, combine)
            if made is not None:
                return made
        if positions is None:
            rows, coming, boxes = _at_run_time(call, x, indices, updates, numbers, sizes)
            made = boxes.unrow(_combined(b, rows, coming, combine, bool(call.params["unique_indices"])))
        else:
            made = _at_known_places(call, x, positions, updates, sizes, combine)
        # Which of several updates is the largest, the place knows: JAX's derivative reads it again.
        extreme = isinstance(combine, ops.Maximum | ops.Minimum)
        return with_derivative(call, (x, indices, updates), (made,)) if extreme else made


def _at_known_places(
    call: Equation, x: Value, positions: np.ndarray, updates: Value, sizes: Shape, combine: Op | None
) -> Value:
    """The operand with what comes, element by element."""
    b, clips = call.b, call.params["mode"] == jax.lax.GatherScatterMode.CLIP
    reads, outside = _reads(call.params["dimension_numbers"]), "clip" if clips else "fill"
    elements = b.reshape(updates, (updates.type.size,))
    known = known_places(x.shape, positions, reads, sizes, outside).reshape(-1)
    if (known < 0).any():  # what lies outside is dropped
        elements = b(ops.Gather(0), elements, b.constant(np.flatnonzero(known >= 0)))
        known = known[known >= 0]
    unique = len(np.unique(known)) == len(known)
    flat = b.reshape(x, (x.type.size,))
    return b.reshape(_combined(b, flat, _Updates(b.constant(known), elements), combine, unique), x.shape)


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


class _Updates(NamedTuple):
    """What comes to rows.

    Attributes:
        places: int32[n], the row that each goes to.
        values: [n, ...].
        kept: bool[n], those that lie within; the others are dropped. None for all.
    """

    places: Value
    values: Value
    kept: Value | None = None

    def or_else(self, b: Builder, values: Value, other: float) -> Value:
        """Of n values those that are kept, and a number in the place of the others."""
        if self.kept is None:
            return values
        mask = b.reshape(self.kept, (*self.kept.shape, *(1 for _ in values.shape[1:])))
        return b(ops.Select(), mask, values, b.constant(np.asarray(other, values.dtype)))


def _at_run_time(
    call: Equation, x: Value, indices: Value, updates: Value, numbers: Any, sizes: Shape
) -> tuple[Value, _Updates, Boxes]:
    """The operand as rows, and what comes to them."""
    b, single = call.b, (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    batching = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    indexed = tuple(int(a) for a in numbers.scatter_dims_to_operand_dims)
    boxes = Boxes(b, x.shape, sizes, indexed, batching, single)
    starts, inside = bounded_starts(call, boxes, indices)
    places, rows = boxes.places(starts), boxes.rows(x)
    count, kept = places.type.size, None
    if inside is not None:
        of_boxes = b.reshape(inside, (*inside.shape, *(1 for _ in places.shape[len(inside.shape) :])))
        kept = b.reshape(b.broadcast_to(of_boxes, places.shape), (count,))
    order = boxes.order(len(updates.shape), numbers.update_window_dims)
    moved = b.transpose(updates, tuple(int(i) for i in np.argsort(order)))
    return rows, _Updates(b.reshape(places, (count,)), b.reshape(moved, (count, *rows.shape[1:])), kept), boxes


def _combined(b: Builder, x: Value, updates: _Updates, combine: Op | None, unique: bool) -> Value:
    """Rows of x, each with the updates that go there."""
    count, places, values = x.shape[0], updates.places, updates.values
    if isinstance(combine, ops.Add):
        return b(combine, x, b(ops.ScatterAdd(count), places, updates.or_else(b, values, 0)))
    if (known := b.graph.constants.get(places)) is not None and (combine is None or unique):
        source = np.arange(count, dtype=np.int32)
        source[known] = count + np.arange(len(known), dtype=np.int32)  # the last one wins
        came = values if combine is None else b(combine, b(ops.Gather(0), x, places), values)
        return b(ops.Gather(0), b(ops.Concat(0), x, came), b.constant(source))
    # Which update comes to a row, counted from 1, the last of several; where none does, 0 or the lowest integer.
    numbers = b.constant(np.arange(1, values.shape[0] + 1, dtype=np.int32))
    last = b(ops.SegmentMax(count), places, updates.or_else(b, numbers, 0))
    mask = b.reshape(b(ops.Greater(), last, 0), (count, *(1 for _ in x.shape[1:])))
    if combine is None or unique:
        row = b(ops.Gather(0), values, b(ops.Sub(), b(ops.Maximum(), last, 1), 1))
    else:
        segment = _SEGMENTS[type(combine)](count)
        row = b(segment, places, updates.or_else(b, values, segment.start(values.dtype)))
    return b(ops.Select(), mask, row if combine is None else b(combine, x, row), x)


_scatter("scatter-add", ops.Add())
_scatter("scatter-sub", ops.Add(), sign=-1)
_scatter("scatter", None)
_scatter("scatter-mul", ops.Mul())
_scatter("scatter-min", ops.Minimum())
_scatter("scatter-max", ops.Maximum())
