"""Data movement."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from converter.ir import Builder, Shape, Value, ops
from jax_frontend.importer import aligned, full
from jax_frontend.registry import Equation, ImportRules, Result

rule = ImportRules()


def with_rank(shape: Shape, rank: int) -> Shape:
    """The shape with leading axes of size 1 up to the rank."""
    return (1,) * (rank - len(shape)) + shape


@rule("broadcast_in_dim", broadcasts=True)
def broadcast_in_dim(call: Equation, x: Value, *_: Value) -> Result:
    """Nothing is repeated here: axes of size 1 are put where the operand is to be repeated."""
    axes = call.params["broadcast_dimensions"]
    shape = [1] * len(call.output.shape)
    for axis, size in zip(axes, with_rank(x.shape, len(axes)), strict=True):
        shape[int(axis)] = size
    return aligned(call.b, x, tuple(shape))


@rule("reshape", broadcasts=True)
def reshape(call: Equation, x: Value) -> Result:
    """Row-major, of the axes in another order if one is given; leading axes of size 1 are left to broadcasting."""
    order = call.params.get("dimensions")
    if order is not None:
        transposed = call.b.transpose(full(call.b, x, call.inputs[0]), tuple(int(d) for d in order))
        return call.b.reshape(transposed, call.output.shape)
    if x.type.size == 1:
        return call.b.reshape(x, ())
    return aligned(call.b, full(call.b, x, call.inputs[0]), call.output.shape)


@rule("squeeze", broadcasts=True)
def squeeze(call: Equation, x: Value) -> Result:
    """Axes of size 1 removed."""
    rank = call.inputs[0].rank
    removed = {int(d) % rank for d in call.params["dimensions"]}
    kept = tuple(n for i, n in enumerate(with_rank(x.shape, rank)) if i not in removed)
    return call.b.reshape(x, kept)


@rule("expand_dims", broadcasts=True)
def expand_dims(call: Equation, x: Value) -> Result:
    """Axes of size 1 inserted."""
    return aligned(call.b, full(call.b, x, call.inputs[0]), call.output.shape)


@rule("transpose", broadcasts=True)
def transpose(call: Equation, x: Value) -> Result:
    """Axes reordered."""
    perm = tuple(int(p) for p in call.params["permutation"])
    return call.b.transpose(call.b.reshape(x, with_rank(x.shape, len(perm))), perm)


@rule("rev")
def rev(call: Equation, x: Value) -> Result:
    """Order reversed along some axes."""
    return call.b(ops.Reverse(tuple(sorted(int(d) for d in call.params["dimensions"]))), x)


@rule("slice")
def slice_(call: Equation, x: Value) -> Result:
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
def pad(call: Equation, x: Value, value: Value) -> Result:
    """Adds elements around and between; negative amounts crop."""
    b, known = call.b, call.constant(value)
    config = [tuple(int(n) for n in axis) for axis in call.params["padding_config"]]
    spread = any(between for _, _, between in config)
    filler = None if known is None else known.item()
    if not filler and filler is not None:
        return padded(b, x, config)
    if filler is not None and x.dtype.kind == "f" and not spread:
        return padded(b, x, config, filler)
    # Zeros first, then the value wherever no element of x has come.
    inside = np.zeros(call.output.shape, bool)
    places = [low + np.arange(n) * (between + 1) for n, (low, _, between) in zip(x.shape, config, strict=True)]
    inside[np.ix_(*(at[(at >= 0) & (at < n)] for at, n in zip(places, inside.shape, strict=True)))] = True
    return b(ops.Select(), b.constant(inside), padded(b, x, config), value)


def padded(b: Builder, x: Value, config: Sequence[Sequence[int]], value: float = 0.0) -> Value:
    """`x` with (before, after, between) elements on each axis: numbers around, zeros between; negative ones crop."""
    between = tuple(1 + axis[2] for axis in config)
    if any(s != 1 for s in between):
        x = b(ops.Dilate(between), x)
    around = [axis[:2] for axis in config]
    # More may be cropped than there is: then nothing is left of x, and what is padded is cropped.
    paddings = tuple((max(low, 0), max(high, 0)) for low, high in around)
    if any(max(-low, 0) + max(-high, 0) > n for (low, high), n in zip(around, x.shape, strict=True)):
        whole = b(ops.Pad(paddings, value), x)
        size = tuple(n + low + high for n, (low, high) in zip(x.shape, around, strict=True))
        return cut(b, whole, tuple(max(-low, 0) for low, _ in around), size)
    size = tuple(n - max(-low, 0) - max(-high, 0) for n, (low, high) in zip(x.shape, around, strict=True))
    x = cut(b, x, tuple(max(-low, 0) for low, _ in around), size)
    return b(ops.Pad(paddings, value), x) if any(map(any, paddings)) else x


@rule("tile")
def tile(call: Equation, x: Value) -> Result:
    """Repeated whole along axes: by broadcasting along new axes of size 1."""
    repeats = [int(n) for n in call.params["reps"]]
    spread = [
        n for times, size in zip(repeats, x.shape, strict=True) for n in ((times, size) if times > 1 else (size,))
    ]
    new = [n for times, size in zip(repeats, x.shape, strict=True) for n in ((1, size) if times > 1 else (size,))]
    repeated = call.b.broadcast_to(call.b.reshape(x, tuple(new)), tuple(spread))
    return call.b.reshape(repeated, call.output.shape)


@rule("stack")
def stack(call: Equation, *xs: Value) -> Result:
    """Operands one after the other along a new axis."""
    axis = int(call.params["axis"])
    parts = [call.b.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in xs]
    return parts[0] if len(parts) == 1 else call.b(ops.Concat(axis), *parts)


@rule("unstack")
def unstack(call: Equation, x: Value) -> Result:
    """The elements along an axis, which goes."""
    axis = int(call.params["axis"])
    rest = x.shape[:axis] + x.shape[axis + 1 :]
    return [call.b.reshape(cut_axis(call.b, x, axis, i, 1), rest) for i in range(x.shape[axis])]


@rule("concatenate")
def concatenate(call: Equation, *xs: Value) -> Result:
    """Operands one after the other."""
    return xs[0] if len(xs) == 1 else call.b(ops.Concat(int(call.params["dimension"])), *xs)


@rule("split")
def split(call: Equation, x: Value) -> Result:
    """Neighbouring pieces along one axis."""
    sizes = [int(n) for n in call.params["sizes"]]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    axis = int(call.params["axis"])
    return [cut_axis(call.b, x, axis, start, n) for start, n in zip(starts, sizes, strict=True)]


@rule("iota")
def iota(call: Equation) -> Result:
    """0, 1, 2, ... along one axis: a constant, left to broadcast along the others."""
    shape, axis = call.output.shape, int(call.params["dimension"])
    line = np.arange(shape[axis], dtype=call.output.dtype)
    return call.b.constant(line.reshape([n if i == axis else 1 for i, n in enumerate(shape)]))


@rule("dynamic_slice")
def dynamic_slice(call: Equation, x: Value, *starts: Value) -> Result:
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
def dynamic_update_slice(call: Equation, x: Value, update: Value, *starts: Value) -> Result:
    """Overwrites a box, at a corner that is known or computed."""
    b = call.b
    known = [call.constant(s) for s in starts]
    last = [n - k for n, k in zip(x.shape, update.shape, strict=True)]
    if not x.shape:
        return update
    if all(s is not None for s in known):
        corner = [min(max(int(s), 0), n) for s, n in zip(known, last, strict=True)]  # type: ignore[arg-type]
        return overwritten(b, x, update, corner)
    wanted = [b.reshape(s, (1,)) for s in starts]
    joined = wanted[0] if len(wanted) == 1 else b(ops.Concat(0), *wanted)
    bounded = b(ops.Minimum(), b(ops.Maximum(), joined, 0), b.constant(np.array(last, np.int32)))
    return b(ops.UpdateSlice(), x, update, bounded)


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
