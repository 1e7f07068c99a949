"""Rules for primitives that move data."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from converter.ir import Builder, Shape, Value, ops
from jax_frontend.importer import aligned, full
from jax_frontend.registry import Call, NotImportable, Result, rule


def with_rank(shape: Shape, rank: int) -> Shape:
    """The shape with leading axes of size 1 up to the rank."""
    return (1,) * (rank - len(shape)) + shape


@rule("broadcast_in_dim", broadcasts=True)
def broadcast_in_dim(call: Call, x: Value, *_: Value) -> Result:
    """Nothing is repeated here: axes of size 1 are put where the operand is to be repeated."""
    axes = call.params["broadcast_dimensions"]
    shape = [1] * len(call.output.shape)
    for axis, size in zip(axes, with_rank(x.shape, len(axes)), strict=True):
        shape[int(axis)] = size
    return aligned(call.b, x, tuple(shape))


@rule("reshape", broadcasts=True)
def reshape(call: Call, x: Value) -> Result:
    """Row-major; leading axes of size 1 are left to broadcasting."""
    if call.params.get("dimensions") is not None:
        raise NotImportable("reshape with an order of dimensions", "transpose first")
    if x.type.size == 1:
        return call.b.reshape(x, ())
    return aligned(call.b, full(call.b, x, call.inputs[0]), call.output.shape)


@rule("squeeze", broadcasts=True)
def squeeze(call: Call, x: Value) -> Result:
    """Axes of size 1 removed."""
    rank = call.inputs[0].rank
    removed = {int(d) % rank for d in call.params["dimensions"]}
    kept = tuple(n for i, n in enumerate(with_rank(x.shape, rank)) if i not in removed)
    return call.b.reshape(x, kept)


@rule("expand_dims", broadcasts=True)
def expand_dims(call: Call, x: Value) -> Result:
    """Axes of size 1 inserted."""
    return aligned(call.b, full(call.b, x, call.inputs[0]), call.output.shape)


@rule("transpose", broadcasts=True)
def transpose(call: Call, x: Value) -> Result:
    """Axes reordered."""
    perm = tuple(int(p) for p in call.params["permutation"])
    return call.b.transpose(call.b.reshape(x, with_rank(x.shape, len(perm))), perm)


@rule("rev")
def rev(call: Call, x: Value) -> Result:
    """Order reversed along some axes."""
    return call.b(ops.Reverse(tuple(sorted(int(d) for d in call.params["dimensions"]))), x)


@rule("slice")
def slice_(call: Call, x: Value) -> Result:
    """A fixed box, with strides."""
    strides = call.params["strides"] or ()
    begin = tuple(int(i) for i in call.params["start_indices"])
    strides = tuple(int(s) for s in strides) if any(s != 1 for s in strides) else ()
    return cut(call.b, x, begin, call.output.shape, strides)


def cut(b: Builder, x: Value, begin: Shape, size: Shape, strides: Shape = ()) -> Value:
    """The box of `x`; nothing is emitted for the whole of it."""
    return x if tuple(size) == x.shape else b(ops.Slice(tuple(begin), tuple(size), strides), x)


def cut_axis(b: Builder, x: Value, axis: int, start: int, size: int) -> Value:
    """`size` elements from `start` along one axis, all of the others."""
    begin = tuple(start if i == axis else 0 for i in range(len(x.shape)))
    return cut(b, x, begin, (*x.shape[:axis], size, *x.shape[axis + 1 :]))


@rule("pad")
def pad(call: Call, x: Value, value: Value) -> Result:
    """Adds elements around and between; negative amounts crop."""
    b = call.b
    config = [tuple(int(n) for n in axis) for axis in call.params["padding_config"]]
    filler = call.known(value, "pad with a value computed at run time", "pad with a fixed number").item()
    between = tuple(1 + axis[2] for axis in config)
    if any(s != 1 for s in between):
        if filler != 0:
            raise NotImportable("pad between elements with a number other than 0", "pad with 0")
        x = b(ops.Dilate(between), x)
    crop = [(max(-low, 0), max(-high, 0)) for low, high, _ in config]
    size = tuple(n - low - high for n, (low, high) in zip(x.shape, crop, strict=True))
    x = cut(b, x, tuple(low for low, _ in crop), size)
    paddings = tuple((max(low, 0), max(high, 0)) for low, high, _ in config)
    return b(ops.Pad(paddings, filler), x) if any(map(any, paddings)) else x


@rule("tile")
def tile(call: Call, x: Value) -> Result:
    """Repeated whole along axes: by broadcasting along new axes of size 1."""
    repeats = [int(n) for n in call.params["reps"]]
    spread = [
        n for times, size in zip(repeats, x.shape, strict=True) for n in ((times, size) if times > 1 else (size,))
    ]
    new = [n for times, size in zip(repeats, x.shape, strict=True) for n in ((1, size) if times > 1 else (size,))]
    repeated = call.b.broadcast_to(call.b.reshape(x, tuple(new)), tuple(spread))
    return call.b.reshape(repeated, call.output.shape)


@rule("stack")
def stack(call: Call, *xs: Value) -> Result:
    """Operands one after the other along a new axis."""
    axis = int(call.params["axis"])
    parts = [call.b.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in xs]
    return parts[0] if len(parts) == 1 else call.b(ops.Concat(axis), *parts)


@rule("unstack")
def unstack(call: Call, x: Value) -> Result:
    """The elements along an axis, which goes."""
    axis = int(call.params["axis"])
    rest = x.shape[:axis] + x.shape[axis + 1 :]
    return [call.b.reshape(cut_axis(call.b, x, axis, i, 1), rest) for i in range(x.shape[axis])]


@rule("concatenate")
def concatenate(call: Call, *xs: Value) -> Result:
    """Operands one after the other."""
    return xs[0] if len(xs) == 1 else call.b(ops.Concat(int(call.params["dimension"])), *xs)


@rule("split")
def split(call: Call, x: Value) -> Result:
    """Neighbouring pieces along one axis."""
    sizes = [int(n) for n in call.params["sizes"]]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    axis = int(call.params["axis"])
    return [cut_axis(call.b, x, axis, start, n) for start, n in zip(starts, sizes, strict=True)]


@rule("iota")
def iota(call: Call) -> Result:
    """0, 1, 2, ... along one axis: a constant, left to broadcast along the others."""
    shape, axis = call.output.shape, int(call.params["dimension"])
    line = np.arange(shape[axis], dtype=call.output.dtype)
    return call.b.constant(line.reshape([n if i == axis else 1 for i, n in enumerate(shape)]))


@rule("dynamic_slice")
def dynamic_slice(call: Call, x: Value, *starts: Value) -> Result:
    """A box of fixed size; along an axis where its corner is not known, a look-up of its rows."""
    b, size = call.b, call.output.shape
    moving = [i for i, s in enumerate(starts) if call.constant(s) is None and size[i] != x.shape[i]]
    corner = [0 if i in moving or call.constant(s) is None else int(call.known(s, "")) for i, s in enumerate(starts)]
    corner = [min(max(c, 0), n - k) for c, n, k in zip(corner, x.shape, size, strict=True)]
    fixed = tuple(x.shape[i] if i in moving else k for i, k in enumerate(size))
    x = cut(b, x, tuple(corner), fixed)
    for axis in moving:
        start = b(ops.Minimum(), b(ops.Maximum(), starts[axis], 0), x.shape[axis] - size[axis])
        rows = b(ops.Add(), b.reshape(start, (1,)), np.arange(size[axis]))
        x = b(ops.Gather(axis), x, rows)
    return x


@rule("dynamic_update_slice")
def dynamic_update_slice(call: Call, x: Value, update: Value, *starts: Value) -> Result:
    """Overwrites a box at a known corner."""
    corner = [int(call.known(s, "dynamic_update_slice at a position computed at run time")) for s in starts]
    corner = [min(max(c, 0), n - k) for c, n, k in zip(corner, x.shape, update.shape, strict=True)]
    return overwritten(call.b, x, update, corner)


def overwritten(b: Builder, x: Value, update: Value, corner: Sequence[int]) -> Value:
    """`x` with the box at `corner` replaced."""
    for axis in reversed(range(len(corner))):  # grow the box by what stands before and after it, axis by axis
        row = x
        for other in range(axis):
            row = cut_axis(b, row, other, corner[other], update.shape[other])
        before = cut_axis(b, row, axis, 0, corner[axis])
        end = corner[axis] + update.shape[axis]
        after = cut_axis(b, row, axis, end, x.shape[axis] - end)
        parts = [v for v in (before, update, after) if prod(v.shape)]
        update = parts[0] if len(parts) == 1 else b(ops.Concat(axis), *parts)
    return update
