"""Operators that move elements, and those that compute shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from converter.ir import BOOL, Value, ops
from tflite_frontend.registry import Call, NotImportable, Result, Rules

rule = Rules()


def _batched(call: Call, shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the shape that the file says of a result, whose first axis holds a row, for the rows that there are.

    Elements keep their order, and rows come first in it, so that the first axis is so many times as long.
    """
    for rows in (1, call.rows):
        if prod(shape) * rows == size:
            return (shape[0] * rows, *shape[1:]) if shape else ()
    raise NotImportable(
        f"{call.operator.kind} to {list(shape)} of {size} numbers: the file is for one row at a time there",
        "train with batch=1, or export the model with an open first axis",
    )


@rule("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def reshape(call: Call, x: Value, *_: Value) -> Result:
    """The elements in the shape that the file says of the result, of as many rows as there are."""
    said = call.types[0].shape
    if _ and call.operator.kind == "RESHAPE" and (given := call.b.graph.constants.get(_[0])) is not None:
        wanted = [int(n) for n in given.reshape(-1)]
        if -1 not in wanted and prod(wanted) == x.type.size:
            return call.b.reshape(x, tuple(wanted))  # computed of the rows that there are
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


def _cut(call: Call, x: Value, axis: int, start: int, stop: int) -> Value:
    starts = [0] * len(x.shape)
    stops = list(x.shape)
    starts[axis], stops[axis] = start, stop
    return call.b(ops.Slice(tuple(starts), tuple(b - a for a, b in zip(starts, stops, strict=True))), x)


@rule("UNPACK")
def unpack(call: Call, x: Value) -> Result:
    """Each place of an axis."""
    axis = int(call.option("axis")) % len(x.shape)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return [call.b.reshape(_cut(call, x, axis, i, i + 1), shape) for i in range(x.shape[axis])]


@rule("SPLIT")
def split(call: Call, axis: Value, x: Value) -> Result:
    """Equal parts."""
    along, parts = int(call.known(axis, "axes").reshape(())) % len(x.shape), int(call.option("numSplits"))
    size = x.shape[along] // parts
    return [_cut(call, x, along, i * size, (i + 1) * size) for i in range(parts)]


@rule("SPLIT_V")
def split_v(call: Call, x: Value, sizes: Value, axis: Value) -> Result:
    """Parts of given sizes."""
    along = int(call.known(axis, "axes").reshape(())) % len(x.shape)
    given = [int(n) for n in call.known(sizes, "sizes").reshape(-1)]
    given = [x.shape[along] - sum(n for n in given if n >= 0) if n < 0 else n for n in given]
    ends = np.cumsum(given)
    return [_cut(call, x, along, int(end) - n, int(end)) for end, n in zip(ends, given, strict=True)]


@rule("SLICE")
def slice_(call: Call, x: Value, begin: Value, size: Value) -> Result:
    """From a corner; -1 is all that is left."""
    starts = [int(n) for n in call.known(begin, "corners").reshape(-1)]
    sizes = [int(n) for n in call.known(size, "sizes").reshape(-1)]
    sizes = [d - a if n == -1 else n for n, a, d in zip(sizes, starts, x.shape, strict=True)]
    if starts[0] == 0 and sizes[0] == 1 and x.shape[0] == call.rows:
        sizes[0] = call.rows
    return call.b(ops.Slice(tuple(starts), tuple(sizes)), x)


@rule("STRIDED_SLICE")
def strided_slice(call: Call, x: Value, begin: Value, end: Value, strides: Value) -> Result:
    """As NumPy's, without new axes; masks say which bounds are left open."""
    bounds = [[int(n) for n in call.known(v, "bounds").reshape(-1)] for v in (begin, end, strides)]
    if call.option("ellipsisMask") or call.option("newAxisMask") or call.option("offset", False):
        raise NotImportable("STRIDED_SLICE with new axes or an ellipsis")
    masks = {name: int(call.option(f"{name}Mask")) for name in ("begin", "end", "shrinkAxis")}
    b, flipped = call.b, []
    starts, sizes, steps, kept = [], [], [], []
    for axis, dim in enumerate(x.shape):
        if axis >= len(bounds[0]):
            one = slice(None)
        elif masks["shrinkAxis"] >> axis & 1:
            at = bounds[0][axis] % dim
            one = slice(at, at + 1)
        else:
            first = None if masks["begin"] >> axis & 1 else bounds[0][axis]
            last = None if masks["end"] >> axis & 1 else bounds[1][axis]
            one = slice(first, last, bounds[2][axis])
            if axis == 0 and dim == call.rows and (first or 0) == 0 and last == 1:
                one = slice(None)  # the one row that the file has
        start, stop, step = one.indices(dim)
        places = range(start, stop, step)
        if step < 0:
            flipped.append(axis)
            places = places[::-1]
        starts.append(places[0] if places else 0)
        sizes.append(len(places))
        steps.append(abs(step))
        if axis >= len(bounds[0]) or not masks["shrinkAxis"] >> axis & 1:
            kept.append(len(places))
    cut = b(ops.Slice(tuple(starts), tuple(sizes), tuple(steps)), x)
    if flipped:
        cut = b(ops.Reverse(tuple(flipped)), cut)
    return b.reshape(cut, tuple(kept))


@rule("REVERSE_V2")
def reverse(call: Call, x: Value, axes: Value) -> Result:
    """From the other end."""
    return call.b(ops.Reverse(tuple(int(a) % len(x.shape) for a in call.known(axes, "axes").reshape(-1))), x)


@rule("GATHER")
def gather(call: Call, x: Value, indices: Value) -> Result:
    """Rows of an axis by number."""
    if call.option("batchDims", 0):
        raise NotImportable("GATHER with batch axes")
    return call.b(ops.Gather(int(call.option("axis", 0)) % len(x.shape)), x, indices)


@rule("SHAPE")
def shape(call: Call, x: Value) -> Result:
    """The shape, which is known."""
    return call.b.constant(np.array(x.shape, np.int32))


@rule("FILL")
def fill(call: Call, dims: Value, value: Value) -> Result:
    """One number everywhere."""
    return call.b.broadcast_to(value, tuple(int(n) for n in call.known(dims, "shapes").reshape(-1)))


@rule("BROADCAST_TO")
def broadcast_to(call: Call, x: Value, dims: Value) -> Result:
    """Repeated."""
    return call.b.broadcast_to(x, tuple(int(n) for n in call.known(dims, "shapes").reshape(-1)))


@rule("RANGE")
def range_(call: Call, start: Value, limit: Value, delta: Value) -> Result:
    """Known numbers in a row."""
    first, last, step = (call.known(v, "bounds").reshape(()).item() for v in (start, limit, delta))
    return call.b.constant(np.arange(first, last, step))


@rule("DEPTH_TO_SPACE")
def depth_to_space(call: Call, x: Value) -> Result:
    """Channels become blocks of pixels."""
    b, n, (rows, h, w, c) = call.b, int(call.option("blockSize")), x.shape
    apart = b.reshape(x, (rows, h, w, n, n, c // (n * n)))
    return b.reshape(b.transpose(apart, (0, 1, 3, 2, 4, 5)), (rows, h * n, w * n, c // (n * n)))


@rule("SPACE_TO_DEPTH")
def space_to_depth(call: Call, x: Value) -> Result:
    """Blocks of pixels become channels."""
    b, n, (rows, h, w, c) = call.b, int(call.option("blockSize")), x.shape
    apart = b.reshape(x, (rows, h // n, n, w // n, n, c))
    return b.reshape(b.transpose(apart, (0, 1, 3, 2, 4, 5)), (rows, h // n, w // n, n * n * c))


@rule("MIRROR_PAD")
def mirror_pad(call: Call, x: Value, widths: Value) -> Result:
    """What is inside once more around it, with the edge or without."""
    given = call.known(widths, "paddings")
    without_edge = int(call.option("mode", 0)) == 0
    for axis, (before, after) in enumerate(given):
        dim, edge = x.shape[axis], int(without_edge)
        if not before and not after:
            continue
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
        weights = _weights(x.shape[axis], to, corners, centers, bilinear)
        if np.array_equal(weights, np.eye(to, x.shape[axis])):
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


@rule("QUANTIZE")
def quantize(call: Call, x: Value) -> Result:
    """Refused: what is quantised is not read."""
    raise NotImportable("QUANTIZE", "give the float32 or float16 model: quantised ones are not read")


@rule("IS_NAN")
def is_nan(call: Call, x: Value) -> Result:
    """Whether a number differs from itself."""
    return call.b(ops.Cast(BOOL), call.b(ops.NotEqual(), x, x))
