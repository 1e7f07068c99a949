"""Padding, cropping and taps: TFLite knows SAME and VALID only, the semantic ops any padding."""

from __future__ import annotations

from typing import Literal

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering
from converter.backend.lowering.rules.movement import dilate
from converter.ir import Shape, Value, ops


def macs(op: ops.Windowed, *operands: Value) -> int:
    """Multiply-accumulates of a convolution or one of its cotangents."""
    types = tuple(v.type for v in operands)
    return op.cost(types, (op.infer(*types),)).flops // 2


def zero_bias(c: Lowering, channels: int) -> Value:
    """The bias that the kernels of convolutions need."""
    return c.constant(np.zeros(channels, np.float32), name="zero_bias")


def same_padding(size: Shape, kernel: Shape, strides: Shape, dilation: Shape) -> ops.Padding:
    """What TFLite adds for SAME: enough for ceil(size / stride) outputs, the odd row after."""

    def along(axis: int) -> tuple[int, int]:
        outputs = -(-size[axis] // strides[axis])
        span = (kernel[axis] - 1) * dilation[axis] + 1
        total = max((outputs - 1) * strides[axis] + span - size[axis], 0)
        return total // 2, total - total // 2

    return along(0), along(1)


def pad_explicitly(c: Lowering, x: Value, padding: ops.Padding, value: float = 0.0) -> Value:
    """PAD (and SLICE where the padding is negative) height and width."""
    rows = tuple((max(lo, 0), max(hi, 0)) for lo, hi in padding)
    if any(map(any, rows)):
        around = ((0, 0), *rows, (0, 0))
        x = c(tfl.PadV2(around, value) if value else tfl.Pad(around), x)
    cut = tuple((max(-lo, 0), max(-hi, 0)) for lo, hi in padding)
    if any(map(any, cut)):
        size = tuple(n - lo - hi for n, (lo, hi) in zip(x.shape[1:3], cut, strict=True))
        x = c(tfl.Slice((0, cut[0][0], cut[1][0], 0), (x.shape[0], *size, x.shape[3])), x)
    return x


def fit_padding(
    c: Lowering, op: ops.Windowed, x: Value, kernel: Shape, value: float = 0.0
) -> tuple[Value, Literal["SAME", "VALID"]]:
    """The input as it must be fed, and the padding scheme to feed it with."""
    if op.padding == same_padding(x.shape[1:3], kernel, op.strides, op.dilation) and any(map(any, op.padding)):
        return x, "SAME"
    return pad_explicitly(c, x, op.padding, value), "VALID"


def crop(c: Lowering, x: Value, padding: ops.Padding, size: Shape) -> Value:
    """Undoes an explicit padding: `size` rows and columns of NHWC from after it, zeros where x ends earlier."""
    missing = tuple(max(lo + n - have, 0) for (lo, _), n, have in zip(padding, size, x.shape[1:3], strict=True))
    if any(missing):
        x = c(tfl.Pad(((0, 0), (0, missing[0]), (0, missing[1]), (0, 0))), x)
    whole = (x.shape[0], *size, x.shape[3])
    return x if x.shape == whole else c(tfl.Slice((0, padding[0][0], padding[1][0], 0), whole), x)


def tap(c: Lowering, padded: Value, op: ops.Windowed, outputs: Shape, i: int, j: int) -> Value:
    """What filter position (i, j) meets: [N, *outputs, C]."""
    row, column = i * op.dilation[0], j * op.dilation[1]
    channels, stride = padded.shape[3], op.strides[0]
    size = (padded.shape[0], *outputs, channels)
    if size == padded.shape:
        return padded
    if op.strides == (1, 1):
        return c(tfl.Slice((0, row, column, 0), size), padded)
    if stride == op.strides[1]:
        # Every stride-th row is a plain slice of the image folded into channels; XNNPACK has no STRIDED_SLICE.
        phase = (row % stride) * stride + column % stride
        return c(tfl.Slice((0, row // stride, column // stride, phase * channels), size), fold(c, padded, stride))
    begin, strides = (0, row, column, 0), (1, *op.strides, 1)
    ends = tuple(b + (n - 1) * s + 1 for b, n, s in zip(begin, size, strides, strict=True))
    return c(tfl.StridedSlice(begin, ends, strides), padded)


def fold(c: Lowering, x: Value, block: int) -> Value:
    """SPACE_TO_DEPTH, with zeros after where the blocks do not fill the image."""
    missing = tuple((0, -n % block) for n in x.shape[1:3])
    return c(tfl.SpaceToDepth(block), pad_explicitly(c, x, (missing[0], missing[1])))


def spread_out(c: Lowering, op: ops.Windowed, dy: Value) -> Value:
    """The cotangent of a strided convolution's output as that of one with stride 1: zeros between its elements."""
    return dy if op.strides == (1, 1) else dilate(c, ops.Dilate((1, *op.strides, 1)), dy)


def backward_padding(op: ops.Conv2DInputGrad | ops.DepthwiseInputGrad, size: Shape, kernel: Shape) -> ops.Padding:
    """The padding with which a convolution of a cotangent of `size`, stride 1, brings the input's size back."""
    padding = []
    for axis in (0, 1):
        span = (kernel[axis] - 1) * op.dilation[axis]
        before = span - op.padding[axis][0]
        padding.append((before, op.size[axis] + span - before - size[axis]))
    return padding[0], padding[1]
