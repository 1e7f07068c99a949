"""Pooling and its gradients."""

from __future__ import annotations

from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering, LoweringRules
from converter.backend.lowering.rules.elementwise import HUGE
from converter.backend.lowering.rules.tiles import interleaved
from converter.backend.lowering.rules.windows import crop, fit_padding, pad_explicitly, tap
from converter.ir import Value, ops

lowers = LoweringRules()

#: Never the largest element of a window.
LOWEST = float(np.finfo(np.float32).min)


def _windowed(op: ops.MaxPool2D | ops.MaxPoolGrad | ops.SumPool2D) -> ops.Windowed:
    return ops.Windowed(op.strides, op.padding)


@lowers(ops.MaxPool2D)
def max_pool(c: Lowering, op: ops.MaxPool2D, x: Value) -> Value:
    x, padding = fit_padding(c, _windowed(op), x, op.window, LOWEST)
    return c(tfl.MaxPool2D(op.window, op.strides, padding), x)


@lowers(ops.SumPool2D)
def sum_pool(c: Lowering, op: ops.SumPool2D, x: Value) -> Value:
    padded = pad_explicitly(c, x, op.padding)
    return c(tfl.Mul(), c(tfl.AveragePool2D(op.window, op.strides, "VALID"), padded), float(prod(op.window)))


@lowers(ops.MaxPoolGrad)
def max_pool_grad(c: Lowering, op: ops.MaxPoolGrad, x: Value, y: Value, dy: Value) -> Value:
    """Position by position: what is left of dy goes where the input equals the maximum.

    The first of several equal elements takes all, as in JAX. The test `x == y` is 1 - clamp((y - x) * huge), which
    stays inside XNNPACK. What windows share is summed up where it is a stride apart, before it is put side by side.
    """
    padded = pad_explicitly(c, x, op.padding, LOWEST)
    if op.window == op.strides:
        return _disjoint(c, op, x, padded, y, dy)
    (batch, high, wide, channels), (sh, sw) = y.shape, op.strides
    rows, columns = (-(-n // s) for n, s in zip(padded.shape[1:3], op.strides, strict=True))
    places: dict[tuple[int, int], Value] = {}  # by its place in a cell of strides: the cotangent of each cell
    left = dy
    for i, j in np.ndindex(*op.window):
        taken, left = _take(c, op, tap(c, padded, _windowed(op), (high, wide), i, j), y, left)
        above, before = i // sh, j // sw
        around = ((0, 0), (above, rows - above - high), (before, columns - before - wide), (0, 0))
        taken = c(tfl.Pad(around), taken) if any(map(any, around)) else taken
        place = i % sh, j % sw
        places[place] = c(tfl.Add(), places[place], taken) if place in places else taken
    for place in np.ndindex(sh, sw):  # windows that are narrower than their stride leave some out
        if place not in places:
            places[place] = c.zeros(y.type.with_shape((batch, rows, columns, channels)))
    cells = interleaved(c, [[places[i, j] for j in range(sw)] for i in range(sh)], batch * rows, columns)
    return crop(c, c.reshape(cells, (batch, rows * sh, columns * sw, channels)), op.padding, x.shape[1:3])


def _take(c: Lowering, op: ops.MaxPoolGrad, candidate: Value, y: Value, left: Value) -> tuple[Value, Value]:
    """The cotangent that this candidate gets, and what is left for those after it."""
    if op.selects:
        largest = c(tfl.Equal(), candidate, y)
        return c(tfl.SelectV2(), largest, left, 0.0), c(tfl.SelectV2(), largest, 0.0, left)
    lower = c(tfl.Mul("RELU_N1_TO_1"), c(tfl.Sub(), y, candidate), HUGE)
    passed_on = c(tfl.Mul(), left, lower)
    return c(tfl.Sub(), left, passed_on), passed_on


def _disjoint(c: Lowering, op: ops.MaxPoolGrad, x: Value, padded: Value, y: Value, dy: Value) -> Value:
    """Windows side by side: rows of windows as [N*Ho, kh, Wo, kw*C], cut position by position."""
    (kh, kw), (batch, high, wide, channels) = op.window, y.shape
    covered = (batch, high * kh, wide * kw, channels)
    image = padded if padded.shape == covered else c(tfl.Slice((0, 0, 0, 0), covered), padded)
    rows = c.reshape(image, (batch * high, kh, wide, kw * channels))
    flat_y, left = c.reshape(y, (batch * high, 1, wide, channels)), c.reshape(dy, (batch * high, 1, wide, channels))
    lines = []
    for i in range(kh):
        grads = []
        for j in range(kw):
            candidate = c(tfl.Slice((0, i, 0, j * channels), flat_y.shape), rows)
            taken, left = _take(c, op, candidate, flat_y, left)
            grads.append(taken)
        lines.append(c(tfl.Concatenation(3), *grads) if kw > 1 else grads[0])
    full = c(tfl.Concatenation(1), *lines) if kh > 1 else lines[0]
    return crop(c, c.reshape(full, image.shape), op.padding, x.shape[1:3])
