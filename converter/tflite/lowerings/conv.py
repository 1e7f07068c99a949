"""Convolutions and their gradients.

A weight known at run time only throws CONV_2D out of XNNPACK; whether that matters depends on the processor, so each
rule offers its forms with their cost on the target.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from converter.ir import UNSCALED, Value, ops
from converter.tflite import builtins as tfl
from converter.tflite.lower import Lowering, lowers
from converter.tflite.lowerings.linear import int8_matmul
from converter.tflite.lowerings.movement import dilate
from converter.tflite.lowerings.windows import crop, fit_padding, pad_explicitly, same_padding, tap


def _macs(op: ops.Windowed, *operands: Value) -> int:
    types = tuple(v.type for v in operands)
    return op.cost(types, (op.infer(*types),)).flops // 2


def _zero_bias(c: Lowering, channels: int) -> Value:
    return c.constant(np.zeros(channels, np.float32), name="zero_bias")


def _kind(c: Lowering, w: Value) -> str:
    return "constant" if c.is_constant(w) else "runtime"


def _is_pointwise(op: ops.Windowed, w: Value) -> bool:
    """A 1x1 convolution without padding: a matrix product over channels."""
    return w.shape[1:3] == (1, 1) and op.strides == (1, 1) and op.padding == ((0, 0), (0, 0))


def _conv(c: Lowering, op: ops.Windowed, x: Value, w: Value) -> Value:
    """CONV_2D with explicit padding made SAME, VALID or a PAD."""
    x, padding = fit_padding(c, op, x, w.shape[1:3])
    return c(tfl.Conv2D(op.strides, padding, op.dilation), x, w, _zero_bias(c, w.shape[0]))


@lowers(ops.Conv2D)
def conv(c: Lowering, op: ops.Conv2D, x: Value, w: Value) -> Value:
    def matmul() -> Value:
        return c(tfl.BatchMatmul(False, True), x, c.reshape(w, (w.shape[0], w.shape[3])))

    macs = _macs(op, x, w)
    forms = {lambda: _conv(c, op, x, w): c.target.macs(f"conv.{_kind(c, w)}", macs)}
    if _is_pointwise(op, w) and not c.is_constant(w):
        forms[matmul] = c.target.macs("batch_matmul", macs)
    return c.cheapest(forms)


@lowers(ops.Conv2DInputGrad)
def conv_input_grad(c: Lowering, op: ops.Conv2DInputGrad, dy: Value, w: Value) -> Value:
    macs, kind = _macs(op, dy, w), _kind(c, w)

    def matmul() -> Value:
        return c(tfl.BatchMatmul(), dy, c.reshape(w, (w.shape[0], w.shape[3])))

    def flipped_conv() -> Value:
        """Stride 1: a convolution of dy with the filter turned around."""
        return _flipped_conv(c, op, dy, w)

    def transposed_conv() -> Value:
        return _transpose_conv(c, op, dy, w)

    forms = {}
    if _is_pointwise(op, w) and not c.is_constant(w):
        forms[matmul] = c.target.macs("batch_matmul", macs)
    if op.strides == (1, 1):
        forms[flipped_conv] = c.target.macs(f"conv.{kind}", macs)
    if op.dilation == (1, 1):
        forms[transposed_conv] = c.target.macs(f"transpose_conv.{kind}", macs)
    return c.cheapest(forms) if forms else _flipped_conv(c, op, dy, w)


def _turned(c: Lowering, w: Value) -> Value:
    """The filter with height and width reversed and its channels exchanged."""
    array = c.array(w)
    if array is not None:
        return c.constant(np.transpose(array[:, ::-1, ::-1], (3, 1, 2, 0)), name=w.name)
    flipped = w if w.shape[1:3] == (1, 1) else c(tfl.ReverseV2((2,)), c(tfl.ReverseV2((1,)), w))
    return c.transpose(flipped, (3, 1, 2, 0))


def _flipped_conv(c: Lowering, op: ops.Conv2DInputGrad, dy: Value, w: Value) -> Value:
    dy, padding = backward_padding(c, op, dy, w.shape[1:3])
    same_way = ops.Conv2D((1, 1), padding, op.dilation)
    return _conv(c, same_way, dy, _turned(c, w))


def backward_padding(
    c: Lowering, op: ops.Conv2DInputGrad | ops.DepthwiseInputGrad, dy: Value, kernel: tuple[int, ...]
) -> tuple[Value, ops.Padding]:
    """The cotangent with zeros between its elements (stride) and the padding that brings the input's size back."""
    if op.strides != (1, 1):
        dy = dilate(c, ops.Dilate((1, *op.strides, 1)), dy)
    padding = []
    for axis in (0, 1):
        reach = (kernel[axis] - 1) * op.dilation[axis]
        before = reach - op.padding[axis][0]
        padding.append((before, op.size[axis] + reach - before - dy.shape[1 + axis]))
    return dy, (padding[0], padding[1])


def _transpose_conv(c: Lowering, op: ops.Conv2DInputGrad, dy: Value, w: Value) -> Value:
    array, perm = c.array(w), (3, 1, 2, 0)
    turned = c.transpose(w, perm) if array is None else c.constant(np.transpose(array, perm), name=w.name)
    return transpose_conv(c, op, dy, turned)


def transpose_conv(
    c: Lowering,
    op: ops.Conv2DInputGrad,
    dy: Value,
    turned: Value,
    kernel: Callable[[tfl.TransposeConv], tfl.Builtin] = lambda conv: conv,
) -> Value:
    """TRANSPOSE_CONV, as `kernel` makes it, with a filter [I,kh,kw,O]; explicit padding made SAME, VALID or a crop."""
    (batch, *_), (channels, *window, _) = dy.shape, turned.shape
    if op.padding == same_padding(op.size, tuple(window), op.strides, op.dilation):
        return c(kernel(tfl.TransposeConv((batch, *op.size, channels), op.strides, "SAME")), turned, dy)
    # VALID covers what the windows touch; the padding is cut off, rows no window touched are added.
    touched = tuple((n - 1) * s + k for n, s, k in zip(dy.shape[1:3], op.strides, window, strict=True))
    full = c(kernel(tfl.TransposeConv((batch, *touched, channels), op.strides, "VALID")), turned, dy)
    return crop(c, full, op.padding, op.size)


@lowers(ops.Int8Conv2D)
def int8_conv(c: Lowering, op: ops.Int8Conv2D, x: Value, w: Value) -> Value:
    x, padding = fit_padding(c, op, x, w.shape[1:3])
    conv = tfl.DynamicRange((None, op.of, None), tfl.Conv2D(op.strides, padding))
    return c(conv, x, w, _zero_bias(c, w.shape[0]))


@lowers(ops.Int8Conv2DInputGrad)
def int8_conv_input_grad(c: Lowering, op: ops.Int8Conv2DInputGrad, dy: Value, w: Value) -> Value:
    stored = c.graph.constants[w]
    if w.shape[1:3] == (1, 1) and not any(map(any, op.padding)):
        # XNNPACK has no TRANSPOSE_CONV whose filter is smaller than its stride.
        matrix = c.quantized(stored.reshape(w.shape[0], w.shape[3]), UNSCALED, w.name)
        product = int8_matmul(c, ops.Int8MatMul(UNSCALED, adj_y=False), dy, matrix)
        return crop(c, dilate(c, ops.Dilate((1, *op.strides, 1)), product), op.padding, op.size)
    turned = c.quantized(np.ascontiguousarray(np.transpose(stored, (3, 1, 2, 0))), UNSCALED, w.name)
    return transpose_conv(c, op, dy, turned, lambda conv: tfl.DynamicRange((UNSCALED, None), conv))


@lowers(ops.Conv2DFilterGrad)
def conv_filter_grad(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> Value:
    macs, outputs = _macs(op, x, dy), prod(dy.shape[:3])
    channels, filters = x.shape[3], dy.shape[3]

    def product(patch: Value) -> Value:
        rows = c.reshape(dy, (outputs, filters))
        return c(tfl.BatchMatmul(True, False), rows, c.reshape(patch, (outputs, channels)))

    def by_taps() -> Value:
        """One matrix product a filter position, over the inputs that it meets."""
        padded = pad_explicitly(c, x, op.padding)
        grads = [product(tap(c, padded, op, dy.shape[1:3], i, j)) for i, j in np.ndindex(*op.kernel)]
        joined = grads[0]
        if len(grads) > 1:
            joined = c(tfl.Concatenation(1), *grads)
        return c.reshape(joined, (filters, *op.kernel, channels))

    def by_patches() -> Value:
        """One product with what all filter positions meet, side by side: better than many narrow ones."""
        padded = pad_explicitly(c, x, op.padding)
        taps = [tap(c, padded, op, dy.shape[1:3], i, j) for i, j in np.ndindex(*op.kernel)]
        patches = c.reshape(c(tfl.Concatenation(3), *taps), (outputs, len(taps) * channels))
        grad = c(tfl.BatchMatmul(True, False), c.reshape(dy, (outputs, filters)), patches)
        return c.reshape(grad, (filters, *op.kernel, channels))

    def by_conv() -> Value:
        """A convolution of x with dy, batch and channels exchanged: its output positions are the filter's."""
        padded = pad_explicitly(c, x, op.padding)
        image, kernel = c.transpose(padded, (3, 1, 2, 0)), c.transpose(dy, (3, 1, 2, 0))
        grad = c(tfl.Conv2D(op.dilation, "VALID", op.strides), image, kernel, _zero_bias(c, filters))
        return c.transpose(c(tfl.Slice((0, 0, 0, 0), (channels, *op.kernel, filters)), grad), (3, 1, 2, 0))

    count = prod(op.kernel)
    sliced = c.target.moved("delegated", 2 * count * outputs * channels * 4 if count > 1 or op.strides != (1, 1) else 0)
    exchanged = c.target.moved("transpose", 2 * (x.type.nbytes + dy.type.nbytes))
    turned = c.target.moved("transpose", 2 * dy.type.nbytes)
    forms = {
        by_taps: count * (c.target.product(outputs * filters, channels) + turned) + sliced,
        by_conv: c.target.macs("conv.runtime", macs) + exchanged,
    }
    if count > 1:
        forms[by_patches] = c.target.product(outputs * filters, count * channels) + turned + 2 * sliced
    return c.cheapest(forms)


@lowers(ops.DepthwiseConv2D)
def depthwise(c: Lowering, op: ops.DepthwiseConv2D, x: Value, w: Value) -> Value:
    return _depthwise(c, op, x, w)


def _depthwise(c: Lowering, op: ops.Windowed, x: Value, w: Value) -> Value:
    x, padding = fit_padding(c, op, x, w.shape[1:3])
    return c(tfl.DepthwiseConv2D(op.strides, padding, op.dilation), x, w, _zero_bias(c, w.shape[3]))


@lowers(ops.DepthwiseInputGrad)
def depthwise_input_grad(c: Lowering, op: ops.DepthwiseInputGrad, dy: Value, w: Value) -> Value:
    """A depthwise convolution of the spread-out cotangent with the filter turned around."""
    stride = op.strides[0]
    if op.strides == (stride, stride) != (1, 1) and op.dilation == (1, 1) and min(w.shape[1:3]) >= stride:
        return _by_phases(c, op, dy, w)
    dy, padding = backward_padding(c, op, dy, w.shape[1:3])
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
    padded = pad_explicitly(c, x, op.padding)
    reach = tuple(
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(dy.shape[1:3], op.strides, op.kernel, op.dilation, strict=True)
    )
    grad: Value | None = None
    for n in range(x.shape[0]):
        image = c(tfl.Slice((n, 0, 0, 0), (1, *reach, channels)), padded)
        kernel = c(tfl.Slice((n, 0, 0, 0), (1, *dy.shape[1:])), dy)
        one = c(tfl.DepthwiseConv2D(op.dilation, "VALID", op.strides), image, kernel, _zero_bias(c, channels))
        grad = one if grad is None else c(tfl.Add(), grad, one)
    assert grad is not None
    return grad
