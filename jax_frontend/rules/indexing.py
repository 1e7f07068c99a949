"""gather: the forms that jnp indexing, jnp.take and take_along_axis give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import numpy as np

from converter.ir import FLOAT32, INT32, Builder, Shape, Value, ops
from converter.ir.folding import FoldingBuilder
from jax_frontend.registry import Equation, ImportRules, Result
from jax_frontend.rules.shape import cut_axis

rule = ImportRules()


@rule("gather")
def gather(call: Equation, x: Value, indices: Value) -> Result:
    """Whole slices along one axis, elements along the last axis row by row, or anything at known positions.

    Of an index out of range the mode says what is read: another number (JAX's is NaN where nothing is said), or the
    nearest element. What a user promises to lie within is the nearest element, too, without a derivative, as in XLA.
    """
    numbers = call.params["dimension_numbers"]
    call = unpromised(call, jax.lax.GatherScatterMode.CLIP) if call.is_primal else call
    sizes, positions = tuple(int(n) for n in call.params["slice_sizes"]), call.constant(indices)
    if not numbers.operand_batching_dims:
        along = _single_axis(numbers, sizes, x.shape)
        if along is not None:
            return _take(call, x, indices, along, numbers)
    elif _rowwise(numbers, sizes, x.shape, indices.shape):
        return _pick(call, x, indices)
    if positions is not None:
        return _at_known_places(call, x, positions)
    return _elements(call, x, indices, numbers, sizes)


def _single_axis(numbers: Any, sizes: Shape, shape: Shape) -> int | None:
    """The axis, if every other one is taken whole and this one is indexed by single elements."""
    if len(numbers.start_index_map) != 1:
        return None
    (axis,) = numbers.start_index_map
    whole = all(n == d for i, (n, d) in enumerate(zip(sizes, shape, strict=True)) if i != axis)
    return int(axis) if whole and sizes[axis] == 1 else None


def _take(call: Equation, x: Value, indices: Value, axis: int, numbers: Any) -> Value:
    b = call.b
    batch = indices.shape[:-1]  # the last axis of the indices is the index vector, of length 1
    boxes = Boxes(b, x.shape, tuple(call.params["slice_sizes"]), (axis,), {}, ())
    bounded, inside = bounded_starts(call, boxes, indices)
    place = call.constant(bounded)
    if place is not None and place.size == 1:
        taken = b.reshape(cut_axis(b, x, axis, int(place.item()), 1), call.output.shape)
    else:
        taken = b(ops.Gather(axis), x, b.reshape(bounded, batch or (1,)))
        taken = b.reshape(taken, (*x.shape[:axis], *batch, *x.shape[axis + 1 :]))
        offsets = [int(d) for d in numbers.offset_dims]
        others = [d for d in range(len(call.output.shape)) if d not in offsets]
        kept = [i for i in range(len(x.shape)) if i != axis or axis not in numbers.collapsed_slice_dims]
        shape_with = (*x.shape[:axis], *batch, *((1,) if axis in kept else ()), *x.shape[axis + 1 :])
        taken = b.reshape(taken, shape_with)
        # Where each axis of `taken` belongs in the output.
        places = [*offsets[:axis], *others, *offsets[axis:]]
        taken = b.transpose(taken, tuple(int(i) for i in np.argsort(places)))
    return taken if inside is None else _outside(call, x, taken, _of_boxes(b, inside, taken, numbers))


def unpromised(call: Equation, mode: Any) -> Equation:
    """With a mode where JAX promises to stay within: it breaks that in derivatives, where XLA then does `mode`."""
    promised = call.params["mode"] == jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return replace(call, params={**call.params, "mode": mode}) if promised else call


def _at_known_places(call: Equation, x: Value, positions: np.ndarray) -> Value:
    """Anything, flat."""
    b, params = call.b, call.params
    of = x.shape, positions, params["dimension_numbers"], params["slice_sizes"]
    places = known_places(*of)
    flat = b(ops.Gather(0), b.reshape(x, (x.type.size,)), b.constant(places.reshape(-1)))
    taken = b.reshape(flat, call.output.shape)
    inside = known_places(*of, outside="fill") >= 0
    clips = params["mode"] == jax.lax.GatherScatterMode.CLIP
    return taken if clips or inside.all() else _outside(call, x, taken, b.constant(inside))


def _outside(call: Equation, x: Value, taken: Value, inside: Value) -> Value:
    """What is taken of x, and elsewhere what the mode says, which has no derivative by x."""
    b, mode = call.b, call.params["mode"]
    if mode == jax.lax.GatherScatterMode.FILL_OR_DROP:
        return b(ops.Select(), inside, taken, b.constant(_filler(call, taken.dtype)))
    known = taken.dtype.kind != "f" or call.constant(x) is not None
    return taken if known else b(ops.DerivedWhere(), taken, inside)


def _filler(call: Equation, dtype: np.dtype) -> np.ndarray:
    """What JAX reads outside where nothing is given: NaN, true, the lowest integer, of unsigned ones the largest."""
    given = call.params["fill_value"]
    if given is None and dtype.kind == "i":
        info = np.iinfo(call.dtypes[0])
        given = info.min if info.min else info.max
    elif given is None:
        given = True if dtype.kind == "b" else np.nan
    return np.asarray(given).astype(dtype)


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


def _pick(call: Equation, x: Value, indices: Value) -> Value:
    """One element of each row: a product with the one-hot row and a sum, which has a plain derivative."""
    many = indices.shape[len(x.shape) - 1 : -1]
    boxes = Boxes(call.b, x.shape, (1,) * len(x.shape), (len(x.shape) - 1,), {}, ())
    bounded, inside = bounded_starts(call, boxes, indices)
    fills = call.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP
    # Outside, the row is of zeros: what reads it, as a cross entropy, has no derivative there.
    taken = call.b.reshape(_one_of_each_row(call.b, x, indices if fills else bounded, many), call.output.shape)
    return taken if inside is None else _outside(call, x, taken, call.b.reshape(inside, call.output.shape))


def _one_of_each_row(b: Builder, x: Value, indices: Value, many: Shape) -> Value:
    several = prod(many) > 1
    chosen = b(ops.OneHot(x.shape[-1]), b.reshape(indices, (*x.shape[:-1], *many) if several else x.shape[:-1]))
    if x.dtype != FLOAT32:
        chosen = b(ops.Cast(x.dtype), chosen)
    rows = b.reshape(x, (*x.shape[:-1], *(1 for _ in many), x.shape[-1])) if several else x
    return b(ops.Sum((len(chosen.shape) - 1,)), b(ops.Chosen(), chosen, rows))


def _elements(call: Equation, x: Value, indices: Value, numbers: Any, sizes: Shape) -> Value:
    """Boxes at places computed at run time: rows of the operand, flat along all axes that are not taken whole."""
    b, axes = call.b, tuple(int(a) for a in numbers.start_index_map)
    of_a_matrix = axes == (0, 1) == tuple(numbers.collapsed_slice_dims) and len(x.shape) == 2
    if of_a_matrix and _counts_rows(b, indices, x.shape[0]):
        return _pick(call, x, cut_axis(b, indices, 1, 1, 1))
    single = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    batching = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    boxes = Boxes(b, x.shape, sizes, axes, batching, single)
    bounded, inside = bounded_starts(call, boxes, indices)
    rows, places = boxes.rows(x), boxes.places(bounded)
    taken = b(ops.Gather(0), rows, b.reshape(places, places.shape or (1,)))
    taken = b.reshape(taken, (*places.shape, *rows.shape[1:]))
    taken = b.transpose(taken, boxes.order(len(call.output.shape), numbers.offset_dims))
    return taken if inside is None else _outside(call, x, taken, _of_boxes(b, inside, taken, numbers))


def bounded_starts(call: Equation, boxes: Boxes, indices: Value) -> tuple[Value, Value | None]:
    """Starts within the operand, and which of them were so before; None where all were, or the nearest ones are meant.

    Args:
        call: an equation of one of JAX's modes.
        boxes: what is read or written.
        indices: int32[..., components of a start].
    """
    b = call.b
    last = np.array([boxes.shape[a] - boxes.sizes[a] for a in boxes.indexed], np.int32)
    bounded = b(ops.Minimum(), b(ops.Maximum(), indices, 0), last)
    if call.params["mode"] == jax.lax.GatherScatterMode.CLIP:
        return bounded, None
    if len(last) == 1:
        inside = b.reshape(b(ops.Equal(), bounded, indices), indices.shape[:-1])
    else:  # one number an index vector: whether all of its components lie within
        moved = b(ops.Sum((len(indices.shape) - 1,)), b(ops.Cast(INT32), b(ops.NotEqual(), bounded, indices)))
        inside = b(ops.Equal(), moved, 0)
    known = call.constant(inside)
    return bounded, None if known is not None and known.all() else inside


def _of_boxes(b: Builder, inside: Value, taken: Value, numbers: Any) -> Value:
    """What is known of each box, for its elements."""
    shape = enumerate(taken.shape)
    return b.reshape(inside, tuple(1 if d in numbers.offset_dims else n for d, n in shape))


@dataclass(frozen=True)
class Boxes:
    """Boxes of one size in a tensor, at starts known at run time only: what gather reads and scatter writes.

    Attributes:
        b: where index arithmetic is emitted.
        shape: of the tensor.
        sizes: of a box.
        indexed: the axes that the components of a start stand for.
        batching: axes that go along with an axis of the starts, and which.
        single: axes, of size 1 in a box, that the boxes' own shape leaves out.
    """

    b: Builder
    shape: Shape
    sizes: Shape
    indexed: Shape
    batching: dict[int, int]
    single: Sequence[int]

    @property
    def flat(self) -> list[int]:
        """The axes that are not taken whole, or not always."""
        axes = {*self.indexed, *self.batching}
        return [a for a in range(len(self.shape)) if a in axes or self.sizes[a] != self.shape[a]]

    @property
    def whole(self) -> list[int]:
        """The others."""
        return [a for a in range(len(self.shape)) if a not in self.flat]

    def rows(self, x: Value) -> Value:
        """The tensor with the flat axes as one, in front."""
        moved = self.b.transpose(x, (*self.flat, *self.whole))
        return self.b.reshape(moved, (prod(self.shape[a] for a in self.flat), *(self.shape[a] for a in self.whole)))

    def unrow(self, rows: Value) -> Value:
        """The inverse."""
        moved = self.b.reshape(rows, tuple(self.shape[a] for a in (*self.flat, *self.whole)))
        return self.b.transpose(moved, tuple(int(i) for i in np.argsort([*self.flat, *self.whole])))

    def places(self, starts: Value) -> Value:
        """Which rows the boxes are made of: [batch axes of the starts..., flat axes of a box...]."""
        b, batch = self.b, starts.shape[:-1]
        window = [a for a in self.flat if a not in self.single]
        grid = (*batch, *(self.sizes[a] for a in window))
        total, stride = b.constant(np.zeros((1,) * len(grid), np.int32)), 1
        for axis in reversed(self.flat):
            if axis in self.indexed:
                component = cut_axis(b, starts, len(batch), self.indexed.index(axis), 1)
                start = b.reshape(component, (*batch, *(1 for _ in window)))
                total = b(ops.Add(), total, b(ops.Mul(), start, stride) if stride != 1 else start)
            if axis in self.batching:
                total = b(ops.Add(), total, _line(grid, self.batching[axis], self.shape[axis], stride))
            if axis in window and self.sizes[axis] > 1:
                place = len(batch) + window.index(axis)
                total = b(ops.Add(), total, _line(grid, place, self.sizes[axis], stride))
            stride *= self.shape[axis]
        return b.broadcast_to(total, grid)

    def order(self, rank: int, box_axes: Sequence[int]) -> tuple[int, ...]:
        """How [batch..., flat axes of a box..., whole axes] is transposed to where the boxes' axes are `box_axes`."""
        batch = [d for d in range(rank) if d not in box_axes]
        kept = [a for a in range(len(self.shape)) if a not in self.single]
        place = dict(zip(kept, box_axes, strict=True))
        here = [*batch, *(place[a] for a in self.flat if a in place), *(place[a] for a in self.whole)]
        return tuple(int(i) for i in np.argsort(here))


def _line(grid: Shape, axis: int, size: int, stride: int) -> np.ndarray:
    """0, stride, 2 stride, ... along one axis of a grid."""
    return (np.arange(size, dtype=np.int32) * stride).reshape([size if d == axis else 1 for d in range(len(grid))])


def _counts_rows(b: Builder, indices: Value, rows: int) -> bool:
    """Whether the first component of index vectors [rows, 2] is 0, 1, 2, ...: x[arange(n), y]."""
    assert isinstance(b, FoldingBuilder)
    joined = b.producer(indices, ops.Concat)
    first = b.graph.constants.get(joined.inputs[0]) if joined else None
    return first is not None and indices.shape == (rows, 2) and np.array_equal(first.reshape(-1), np.arange(rows))


def known_places(shape: Shape, positions: np.ndarray, numbers: Any, sizes: Shape, outside: str = "clip") -> np.ndarray:
    """Flat positions in the operand that a gather at known indices reads: the gather itself, of 0, 1, 2, ..."""
    flat = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    return np.asarray(jax.lax.gather(flat, positions, numbers, sizes, mode=outside, fill_value=-1), np.int32)
