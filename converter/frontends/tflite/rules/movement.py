"""Operators that move elements, and those that compute shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from converter.frontends.tflite.folding import checked_size
from converter.frontends.tflite.registry import Call, OneRowOnly, Result, Rules
from converter.ir import Value, ops
from converter.support.errors import NotImportable

rule = Rules()


def _batched(call: Call, shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the shape that the file says of a result, whose first axis holds a row, for the rows that there are.

    Elements keep their order, and rows come first in it, so that the first axis is so many times as long.
    """
    for rows in (1, call.rows):
        if prod(shape) * rows == size:
            return (shape[0] * rows, *shape[1:]) if shape else (rows,) if rows > 1 else ()
    what = f"{call.operator.kind} to {list(shape)} of {size} numbers"
    raise NotImportable(what) if call.rows == 1 else OneRowOnly(what, "export the model with an open first axis")


def moves_batch(given: Sequence[int], said: Sequence[int], shape: Sequence[int], rows: int) -> bool:
    """Return whether a reshape of the file is the transpose of its one row and its steps, as recurrent layers have it.

    Args:
        given: the shape of the operand in the file, [1, T, ...] or [T, 1, ...].
        said: that of the result, the other one.
        shape: that of the operand for the rows that there are.
        rows: how many these are.
    """
    one = next((axis for axis in (0, 1) if len(given) > 2 and given[axis] == 1 and shape[axis] == rows), None)
    if rows == 1 or one is None or len(shape) != len(given):
        return False
    return tuple(said) == (given[1], given[0], *given[2:]) and shape[1 - one] == given[1 - one] != 1


@rule("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def reshape(call: Call, x: Value, *_: Value) -> Result:
    """The elements in the shape that the file says of the result, of as many rows as there are."""
    said = call.types[0].shape
    if call.operator.kind == "RESHAPE" and moves_batch(call.given[0], said, x.shape, call.rows):
        return call.b.transpose(x, (1, 0, *range(2, len(said))))
    if _ and call.operator.kind == "RESHAPE" and (given := call.b.graph.constants.get(_[0])) is not None:
        wanted = [int(n) for n in given.reshape(-1)]
        if -1 not in wanted and prod(wanted) == x.type.size:
            return call.b.reshape(x, tuple(wanted))  # computed of the rows that there are
    if call.operator.kind == "EXPAND_DIMS" and call.rows == 1 and prod(said) != x.type.size:
        # What the runtime alone knows the size of is no longer as the file says.
        at = int(call.known(_[0], "axes").reshape(())) % (x.type.rank + 1)
        return call.b.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))
    return call.b.reshape(x, _batched(call, said, x.type.size))


@rule("TRANSPOSE")
def transpose(call: Call, x: Value, perm: Value) -> Result:
    """Axes in another order."""
    return call.b.transpose(x, tuple(int(i) for i in call.known(perm, "axes")))


@rule("PAD", "PADV2")
def pad(call: Call, x: Value, widths: Value, value: Value | None = None) -> Result:
    """Zeros, or one number, around."""
    filled = 0.0 if value is None else float(call.known(value, "values").reshape(()))
    return call.b(ops.Pad(tuple((int(a), int(b)) for a, b in call.known(widths, "paddings")), filled), x)


@rule("CONCATENATION")
def concatenation(call: Call, *values: Value) -> Result:
    """Along an axis; what is the same for all rows is repeated for each."""
    axis = int(call.option("axis")) % len(values[0].shape)
    rows = max(v.shape[0] for v in values)
    if axis:
        values = tuple(v if v.shape[0] == rows else call.b.broadcast_to(v, (rows, *v.shape[1:])) for v in values)
    return call.b(ops.Concat(axis), *values)


@rule("PACK")
def pack(call: Call, *values: Value) -> Result:
    """Along a new axis."""
    axis = int(call.option("axis")) % (len(values[0].shape) + 1)
    wide = [call.b.reshape(v, (*v.shape[:axis], 1, *v.shape[axis:])) for v in values]
    return call.b(ops.Concat(axis), *wide) if len(wide) > 1 else wide[0]


@rule("UNPACK")
def unpack(call: Call, x: Value) -> Result:
    """Each place of an axis."""
    axis = int(call.option("axis")) % len(x.shape)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    if x.shape[axis] != len(call.types):
        raise NotImportable(f"UNPACK of {x.shape[axis]} into {len(call.types)}")
    return [call.b.reshape(call.b.part(x, i, i + 1, axis), shape) for i in range(x.shape[axis])]


@rule("SPLIT")
def split(call: Call, axis: Value, x: Value) -> Result:
    """Equal parts."""
    along, parts = int(call.known(axis, "axes").reshape(())) % len(x.shape), len(call.types)
    if int(call.option("numSplits")) != parts or x.shape[along] % parts:
        raise NotImportable(f"SPLIT of {x.shape[along]} into {call.option('numSplits')} for {parts} results")
    size = x.shape[along] // parts
    return [call.b.part(x, i * size, (i + 1) * size, along) for i in range(parts)]


@rule("SPLIT_V")
def split_v(call: Call, x: Value, sizes: Value, axis: Value) -> Result:
    """Parts of given sizes."""
    along = int(call.known(axis, "axes").reshape(())) % len(x.shape)
    given = [int(n) for n in call.known(sizes, "sizes").reshape(-1)]
    given = [x.shape[along] - sum(n for n in given if n >= 0) if n < 0 else n for n in given]
    ends = np.cumsum(given)
    return [call.b.part(x, int(end) - n, int(end), along) for end, n in zip(ends, given, strict=True)]


@rule("SLICE")
def slice_(call: Call, x: Value, begin: Value, size: Value) -> Result:
    """From a corner; -1 is all that is left."""
    starts = [int(n) for n in call.known(begin, "corners").reshape(-1)]
    sizes = [int(n) for n in call.known(size, "sizes").reshape(-1)]
    sizes = [d - a if n == -1 else n for n, a, d in zip(sizes, starts, x.shape, strict=True)]
    whole = [n == 1 and call.is_batch(0, x, axis) for axis, n in enumerate(sizes)]
    sizes = [call.rows if is_batch else n for n, is_batch in zip(sizes, whole, strict=True)]
    return call.b(ops.Slice(tuple(starts), tuple(sizes)), x)


@rule("STRIDED_SLICE")
def strided_slice(call: Call, x: Value, begin: Value, end: Value, strides: Value) -> Result:
    """As NumPy's; masks say which bounds are left open, which axes are new or go, and where an ellipsis stands."""
    if call.option("offset", False):
        raise NotImportable("STRIDED_SLICE by offsets")
    bounds = [[int(n) for n in call.known(v, "bounds").reshape(-1)] for v in (begin, end, strides)]
    b, shape = call.b, list[int]()
    starts, sizes, steps, flipped = list[int](), list[int](), list[int](), list[int]()
    for place in _places(call, bounds, len(x.shape)):
        if place is None:
            shape.append(1)
            continue
        axis = len(starts)
        dim = x.shape[axis]
        first, last, step, shrinks = place
        if shrinks:
            assert first is not None
            if call.rows > 1 and call.is_batch(0, x, axis):
                raise OneRowOnly("STRIDED_SLICE of the only row")
            one, step = slice(first % dim, first % dim + 1), 1
        elif (first or 0) == 0 and last == 1 and call.is_batch(0, x, axis):
            one = slice(None)  # the one row that the file has
        else:
            one = slice(first, last, step)
        range_ = range(*one.indices(dim))
        if step < 0:
            flipped.append(axis)
            range_ = range_[::-1]
        starts.append(range_[0] if range_ else 0)
        sizes.append(len(range_))
        steps.append(abs(step))
        if not shrinks:
            shape.append(len(range_))
    cut = b(ops.Slice(tuple(starts), tuple(sizes), tuple(steps)), x)
    if flipped:
        cut = b(ops.Reverse(tuple(flipped)), cut)
    return b.reshape(cut, tuple(shape))


def _places(
    call: Call, bounds: Sequence[Sequence[int]], rank: int
) -> list[tuple[int | None, int | None, int, bool] | None]:
    """Return first, last, step and whether the axis goes, of each axis; None for a new one."""
    masks = {name: int(call.option(f"{name}Mask")) for name in ("begin", "end", "ellipsis", "newAxis", "shrinkAxis")}
    whole = (None, None, 1, False)
    said = len(bounds[0])
    new = sum(masks["newAxis"] >> i & 1 and not masks["ellipsis"] >> i & 1 for i in range(said))
    dots = masks["ellipsis"] & ((1 << said) - 1) != 0
    rest = rank - (said - new - dots)
    places: list[tuple[int | None, int | None, int, bool] | None] = []
    for i, (first, last, step) in enumerate(zip(*bounds, strict=True)):
        if masks["ellipsis"] >> i & 1:
            places += [whole] * rest
        elif masks["newAxis"] >> i & 1:
            places.append(None)
        else:
            shrinks = bool(masks["shrinkAxis"] >> i & 1)
            places.append(
                (
                    None if masks["begin"] >> i & 1 and not shrinks else first,
                    None if masks["end"] >> i & 1 else last,
                    step,
                    shrinks,
                )
            )
    return places if dots else places + [whole] * rest


@rule("REVERSE_V2")
def reverse(call: Call, x: Value, axes: Value) -> Result:
    """From the other end."""
    return call.b(ops.Reverse(tuple(int(a) % len(x.shape) for a in call.known(axes, "axes").reshape(-1))), x)


@rule("SHAPE")
def shape(call: Call, x: Value) -> Result:
    """The shape, which is known."""
    return call.b.constant(np.array(x.shape, np.int32))


@rule("RANK")
def rank(call: Call, x: Value) -> Result:
    """The number of axes."""
    return call.b.constant(np.array(len(x.shape), np.int32))


@rule("FILL")
def fill(call: Call, dims: Value, value: Value) -> Result:
    """One number everywhere."""
    return call.b.broadcast_to(value, tuple(int(n) for n in call.known(dims, "shapes").reshape(-1)))


@rule("ZEROS_LIKE")
def zeros_like(call: Call, x: Value) -> Result:
    """Zeros in the shape of x."""
    return call.b.broadcast_to(call.b.constant(np.zeros((), x.dtype)), x.shape)


@rule("BROADCAST_TO")
def broadcast_to(call: Call, x: Value, dims: Value) -> Result:
    """Repeated; to the rows that there are where the file says one."""
    wanted = tuple(int(n) for n in call.known(dims, "shapes").reshape(-1))
    full = (1,) * (len(wanted) - len(x.shape)) + x.shape
    if wanted and wanted[0] == 1 and full[0] == call.rows and call.is_batch(0, x):
        wanted = (call.rows, *wanted[1:])
    return call.b.broadcast_to(x, wanted)


@rule("BROADCAST_ARGS")
def broadcast_args(call: Call, first: Value, second: Value) -> Result:
    """The shape to which two shapes are repeated."""
    shapes = [tuple(int(n) for n in call.known(v, "shapes").reshape(-1)) for v in (first, second)]
    return call.b.constant(np.array(np.broadcast_shapes(*shapes), np.int32))


@rule("TILE")
def tile(call: Call, x: Value, multiples: Value) -> Result:
    """Repeated along axes so many times."""
    b, times = call.b, [int(n) for n in call.known(multiples, "multiples").reshape(-1)]
    pairs = list(zip(x.shape, times, strict=True))
    separate = [number for size, n in pairs for number in ((1, size) if n > 1 else (size,))]
    repeated = [number for size, n in pairs for number in ((n, size) if n > 1 else (size,))]
    whole = tuple(size * n for size, n in pairs)
    return b.reshape(b.broadcast_to(b.reshape(x, tuple(separate)), tuple(repeated)), whole)


@rule("RANGE")
def range_(call: Call, start: Value, limit: Value, delta: Value) -> Result:
    """Known numbers in a row."""
    first, last, step = (call.known(v, "bounds").reshape(()).item() for v in (start, limit, delta))
    checked_size(call.b, "RANGE", int(abs((last - first) / step)))
    return call.b.constant(np.arange(first, last, step))


@rule("MIRROR_PAD")
def mirror_pad(call: Call, x: Value, widths: Value) -> Result:
    """What is inside once more around it, with the edge or without."""
    given = call.known(widths, "paddings")
    without_edge = int(call.option("mode", 0)) == 0
    for axis, (before, after) in enumerate(given):
        dim, edge = x.shape[axis], int(without_edge)
        if not before and not after:
            continue
        if max(before, after) > dim:
            raise NotImportable(f"MIRROR_PAD of {dim} by {before} and {after}")
        checked_size(call.b, "MIRROR_PAD", int(before) + dim + int(after))
        places = np.arange(-int(before), dim + int(after))
        places = np.where(places < 0, -places - 1 + edge, places)
        places = np.where(places >= dim, 2 * dim - 1 - edge - places, places)
        x = call.b(ops.Gather(axis), x, call.b.constant(places.astype(np.int32)))
    return x


@rule("RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR")
def resize(call: Call, x: Value, size: Value) -> Result:
    """By a product with a matrix for each axis, of the weights that the kernel has."""
    wanted = [int(n) for n in call.known(size, "sizes").reshape(-1)]
    bilinear = call.operator.kind == "RESIZE_BILINEAR"
    corners, centers = bool(call.option("alignCorners", False)), bool(call.option("halfPixelCenters", False))
    b = call.b
    for axis, to in enumerate(wanted, start=1):
        checked_size(b, "RESIZE", x.shape[axis] * to)
        weights = _weights(x.shape[axis], to, corners, centers, bilinear)
        if to == x.shape[axis] and np.array_equal(weights, np.eye(to, dtype=np.float32)):
            continue
        if axis == 1:
            rows, h, w, c = x.shape
            x = b.reshape(b(ops.MatMul(), b.constant(weights), b.reshape(x, (rows, h, w * c))), (rows, to, w, c))
        else:
            x = b(ops.MatMul(), b.constant(weights), x)
    return x


def _weights(size: int, to: int, corners: bool, centers: bool, bilinear: bool) -> np.ndarray:
    """Return float32 [to, size], what each place is made of: as TFLite's reference kernels count."""
    scale = (size - 1) / (to - 1) if corners and to > 1 else size / to
    places = np.arange(to)
    weights = np.zeros((to, size), np.float32)
    if bilinear:
        at = np.maximum((places + 0.5) * scale - 0.5, 0) if centers else places * scale
        low = np.minimum(np.floor(at).astype(int), size - 1)
        high = np.minimum(low + 1, size - 1)
        np.add.at(weights, (places, low), (1 - (at - low)).astype(np.float32))
        np.add.at(weights, (places, high), (at - low).astype(np.float32))
        return weights
    at = (places + (0.5 if centers else 0.0)) * scale
    nearest = np.floor(at + 0.5) if corners else np.floor(at)
    weights[places, np.minimum(nearest.astype(int), size - 1)] = 1
    return weights
