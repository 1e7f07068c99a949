"""Depthwise convolutions and their gradients."""

from __future__ import annotations

import numpy as np

from converter.ir import Value, ops
from converter.tflite import builtins as tfl
from converter.tflite.lower import Lowering, lowers
from converter.tflite.lowerings.windows import (
    backward_padding,
    crop,
    fit_padding,
    pad_explicitly,
    spread_out,
    zero_bias,
)


@lowers(ops.DepthwiseConv2D)
def depthwise(c: Lowering, op: ops.DepthwiseConv2D, x: Value, w: Value) -> Value:
    return _depthwise(c, op, x, w)


def _depthwise(c: Lowering, op: ops.Windowed, x: Value, w: Value) -> Value:
    unmoved = w.shape == (1, 1, 1, x.shape[3]) and op.strides == (1, 1) and not any(map(any, op.padding))
    if unmoved and not c.is_constant(w):  # XNNPACK, the quicker one, takes constant filters only
        return c(tfl.Mul(), x, w)
    x, padding = fit_padding(c, op, x, w.shape[1:3])
    return c(tfl.DepthwiseConv2D(op.strides, padding, op.dilation), x, w, zero_bias(c, w.shape[3]))


@lowers(ops.DepthwiseInputGrad)
def depthwise_input_grad(c: Lowering, op: ops.DepthwiseInputGrad, dy: Value, w: Value) -> Value:
    """A depthwise convolution of the spread-out cotangent with the filter turned around."""
    stride = op.strides[0]
    if op.strides == (stride, stride) != (1, 1) and op.dilation == (1, 1) and min(w.shape[1:3]) >= stride:
        return _by_phases(c, op, dy, w)
    dy = spread_out(c, op, dy)
    padding = backward_padding(op, dy.shape[1:3], w.shape[1:3])
    return _depthwise(c, ops.DepthwiseConv2D((1, 1), padding, op.dilation), dy, _filter_part(c, w, (0, 0), 1))


def _by_phases(c: Lowering, op: ops.DepthwiseInputGrad, dy: Value, w: Value) -> Value:
    """Stride s: s*s small convolutions, one for each position of a pixel in its block, and DEPTH_TO_SPACE.

    A pixel u = m s + r of the padded input meets the filter rows r, r + s, ... only; spreading dy out instead would
    multiply mostly by zeros.
    """
    stride = op.strides[0]
    blocks = tuple(-(-(n + low) // stride) for n, (low, _) in zip(op.size, op.padding, strict=True))
    parts = []
    for phase in np.ndindex(stride, stride):
        part = _filter_part(c, w, phase, stride)
        around = tuple((k - 1, m - n) for k, m, n in zip(part.shape[1:3], blocks, dy.shape[1:3], strict=True))
        parts.append(_depthwise(c, ops.DepthwiseConv2D((1, 1), (around[0], around[1])), dy, part))
    return crop(c, c(tfl.DepthToSpace(stride), c(tfl.Concatenation(3), *parts)), op.padding, op.size)


def _filter_part(c: Lowering, w: Value, phase: tuple[int, ...], stride: int) -> Value:
    """Every stride-th row and column of a depthwise filter from `phase` on, turned around."""
    array, (row, column) = c.array(w), phase
    if array is not None:
        part = array[:, row::stride, column::stride][:, ::-1, ::-1]
        return c.constant(np.ascontiguousarray(part), name=w.name)
    if stride > 1:
        w = c(tfl.StridedSlice((0, row, column, 0), w.shape, (1, stride, stride, 1)), w)
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
