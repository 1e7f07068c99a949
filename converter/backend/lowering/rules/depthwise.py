"""Depthwise convolutions, their input gradients and their filter gradients."""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.builtins.conv import DEPTHWISE_TAPS
from converter.backend.lowering.context import Lowering, LoweringRules
from converter.backend.lowering.forms import Form
from converter.backend.lowering.rules.windows import (
    backward_padding,
    crop,
    fit_padding,
    pad_explicitly,
    spread_out,
    zero_bias,
)
from converter.ir import Value, described, fingerprint, is_described, known_result, ops

lowers = LoweringRules()


@lowers(ops.DepthwiseConv2D)
def depthwise(c: Lowering, op: ops.DepthwiseConv2D, x: Value, w: Value) -> Value:
    return _depthwise(c, op, x, w)


def _depthwise(c: Lowering, op: ops.DepthwiseConv2D, x: Value, w: Value) -> Value:
    unmoved = w.shape == (1, 1, 1, x.shape[3]) and op.strides == (1, 1) and not any(map(any, op.padding))
    if unmoved and not c.is_constant(w):  # XNNPACK, the quicker one, takes constant filters only
        return c(tfl.Mul(), x, w)
    axis, parts = _fewest_parts(w.shape[1:3])
    newest = c.target.is_cpu and c.target.is_newest  # older runtimes have kernels of several passes
    if parts == 1 or w.shape[3] != x.shape[3] or not newest or not c.is_constant(w):
        return _builtin(c, op, x, w)
    y = op.infer(x.type, w.type)
    count = op.cost((x.type, w.type), (y,)).flops // 2
    # A product for each channel, of one column where the kernels compute several, at least half of their lanes.
    whole = c.target.macs("conv.constant", c.target.lanes / 2 * count)
    separate = c.target.macs("depthwise.constant", count)
    separate += (2 * parts - 1) * c.target.moved("delegated", x.type.nbytes + 2 * y.nbytes)
    builtin = Form("builtin", whole, lambda: _builtin(c, op, x, w))
    return c.cheapest([builtin, Form("taps apart", separate, lambda: _apart(c, op, x, w, axis, parts))])


def _builtin(c: Lowering, op: ops.DepthwiseConv2D, x: Value, w: Value) -> Value:
    x, padding = fit_padding(c, op, x, w.shape[1:3])
    return c(tfl.DepthwiseConv2D(op.strides, padding, op.dilation), x, w, zero_bias(c, w.shape[3]))


def _fewest_parts(kernel: tuple[int, ...]) -> tuple[int, int]:
    """Along which axis of a filter (0: rows) it is in fewest parts that kernels hold, and how many; 1: none needed."""
    if prod(kernel) <= DEPTHWISE_TAPS:
        return 0, 1
    rest = [DEPTHWISE_TAPS // kernel[1 - axis] for axis in (0, 1)]
    parts = [-(-n // held) if held else inf for n, held in zip(kernel, rest, strict=True)]
    fewest = min(parts)
    return (0, 1) if fewest == inf else (parts.index(fewest), int(fewest))


def _apart(c: Lowering, op: ops.DepthwiseConv2D, x: Value, w: Value, axis: int, parts: int) -> Value:
    """The sum of several depthwise convolutions, each with every so manieth row (or column) of the filter.

    Rows that lie next to each other would need the image without those before them, which is a copy; these only need
    less padding.
    """
    total: Value | None = None
    spread = op.dilation[axis]
    for k in range(parts):
        part = _filter_part(c, w, (k, 0) if axis == 0 else (0, k), (parts, 1) if axis == 0 else (1, parts))
        padding, dilation = list(op.padding), list(op.dilation)
        before, after = padding[axis]
        rest = w.shape[1 + axis] - 1 - k - parts * (part.shape[1 + axis] - 1)
        padding[axis], dilation[axis] = (before - k * spread, after - rest * spread), parts * spread
        some = replace(op, padding=(padding[0], padding[1]), dilation=(dilation[0], dilation[1]))
        y = _builtin(c, some, x, part)
        total = y if total is None else c(tfl.Add(), total, y)
    assert total is not None
    return total


@lowers(ops.DepthwiseInputGrad)
def depthwise_input_grad(c: Lowering, op: ops.DepthwiseInputGrad, dy: Value, w: Value) -> Value:
    """A depthwise convolution of the spread-out cotangent with the filter turned around."""
    stride = op.strides[0]
    if op.strides == (stride, stride) != (1, 1) and op.dilation == (1, 1) and min(w.shape[1:3]) >= stride:
        return _by_phases(c, op, dy, w)
    dy = spread_out(c, op, dy)
    padding = backward_padding(op, dy.shape[1:3], w.shape[1:3])
    return _depthwise(c, ops.DepthwiseConv2D((1, 1), padding, op.dilation), dy, _turned(c, w))


def _by_phases(c: Lowering, op: ops.DepthwiseInputGrad, dy: Value, w: Value) -> Value:
    """Stride s: s*s small convolutions, one for each position of a pixel in its block, and DEPTH_TO_SPACE.

    A pixel u = m s + r of the padded input meets the filter rows r, r + s, ... only; spreading dy out instead would
    multiply mostly by zeros.
    """
    stride = op.strides[0]
    blocks = tuple(-(-(n + low) // stride) for n, (low, _) in zip(op.size, op.padding, strict=True))
    parts = []
    for phase in np.ndindex(stride, stride):
        part = _turned(c, _filter_part(c, w, phase, (stride, stride)))
        around = tuple((k - 1, m - n) for k, m, n in zip(part.shape[1:3], blocks, dy.shape[1:3], strict=True))
        parts.append(_depthwise(c, ops.DepthwiseConv2D((1, 1), (around[0], around[1])), dy, part))
    return crop(c, c(tfl.DepthToSpace(stride), c(tfl.Concatenation(3), *parts)), op.padding, op.size)


def _filter_part(c: Lowering, w: Value, first: tuple[int, ...], steps: tuple[int, int]) -> Value:
    """Every so manieth row and column of a depthwise filter from `first` on."""
    if steps == (1, 1):
        return w
    array, ((row, column), (down, right)) = c.array(w), (first, steps)
    if array is None:
        return c(tfl.StridedSlice((0, row, column, 0), w.shape, (1, down, right, 1)), w)
    part = array[:, row::down, column::right]
    if is_described(array):
        return c.constant(described(part.shape, f"taps {first} {steps} {fingerprint(array)}"), name=w.name)
    return c.constant(np.ascontiguousarray(part), name=w.name)


def _turned(c: Lowering, w: Value) -> Value:
    """A depthwise filter turned around."""
    if (array := c.array(w)) is not None:
        return c.constant(known_result(ops.Reverse((1, 2)), w.type, array), name=w.name)
    for axis in (1, 2):
        w = w if w.shape[axis] == 1 else c(tfl.ReverseV2((axis,)), w)
    return w


@lowers(ops.DepthwiseFilterGrad)
def depthwise_filter_grad(c: Lowering, op: ops.DepthwiseFilterGrad, x: Value, dy: Value) -> Value:
    """Image by image, a depthwise convolution of x with dy as the filter: its output positions are the filter's."""
    channels = x.shape[3]
    reach = tuple(
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(dy.shape[1:3], op.strides, op.kernel, op.dilation, strict=True)
    )
    # As much behind as is met: what lies beyond is cut off, not padded.
    padding = tuple((low, n - size - low) for n, size, (low, _) in zip(reach, x.shape[1:3], op.padding, strict=True))
    grad: Value | None = None
    for n in range(x.shape[0]):
        image, kernel = (_image(c, v, n) for v in (x, dy))
        image = pad_explicitly(c, image, (padding[0], padding[1]))
        one = c(tfl.DepthwiseConv2D(op.dilation, "VALID", op.strides), image, kernel, zero_bias(c, channels))
        grad = one if grad is None else c(tfl.Add(), grad, one)
    assert grad is not None
    return grad


def _image(c: Lowering, batch: Value, n: int) -> Value:
    """Image n of a batch; a batch of one is read as it is, without a copy."""
    return batch if batch.shape[0] == 1 else c(tfl.Slice((n, 0, 0, 0), (1, *batch.shape[1:])), batch)
