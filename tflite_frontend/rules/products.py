"""Convolutions, dense layers, products of matrices and pools."""

from __future__ import annotations

import struct

from converter.ir import Shape, Value, ops
from converter.tflite.builtins.conv import Padding, explicit
from tflite_frontend.registry import Call, NotImportable, Result, Rules
from tflite_frontend.rules.activations import fused

rule = Rules()

_PADDINGS: tuple[Padding, Padding] = ("SAME", "VALID")


def _strides(call: Call) -> tuple[int, int]:
    return int(call.option("strideH", 1)), int(call.option("strideW", 1))


def _dilation(call: Call) -> tuple[int, int]:
    return int(call.option("dilationHFactor", 1)), int(call.option("dilationWFactor", 1))


def _with_bias(call: Call, y: Value, bias: Value | None) -> Value:
    return fused(call, y if bias is None else call.b(ops.Add(), y, bias))


@rule("CONV_2D")
def conv_2d(call: Call, x: Value, w: Value, bias: Value | None = None) -> Result:
    """x [B, H, W, I], w [O, h, w, I]; groups where w has fewer input channels."""
    strides, dilation = _strides(call), _dilation(call)
    padding = explicit(_PADDINGS[call.option("padding")], x.shape[1:3], w.shape[1:3], strides, dilation)
    if x.shape[3] != w.shape[3]:
        raise NotImportable("a convolution in groups")
    return _with_bias(call, call.b(ops.Conv2D(strides, padding, dilation), x, w), bias)


@rule("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(call: Call, x: Value, w: Value, bias: Value | None = None) -> Result:
    """x [B, H, W, C], w [1, h, w, C m]."""
    strides, dilation = _strides(call), _dilation(call)
    padding = explicit(_PADDINGS[call.option("padding")], x.shape[1:3], w.shape[1:3], strides, dilation)
    return _with_bias(call, call.b(ops.DepthwiseConv2D(strides, padding, dilation), x, w), bias)


@rule("TRANSPOSE_CONV")
def transpose_conv(call: Call, shape: Value, w: Value, x: Value, bias: Value | None = None) -> Result:
    """The transposed convolution: x [B, h, w, I], w [O, kh, kw, I] -> [B, H, W, O]."""
    size = tuple(int(n) for n in call.known(shape, "shapes").reshape(-1))[1:3]
    return _transposed(call, x, w, bias, size, _PADDINGS[call.option("padding")], _strides(call))


@rule("Convolution2DTransposeBias")
def transpose_conv_of_mediapipe(call: Call, x: Value, w: Value, bias: Value) -> Result:
    """The same as an operator that TFLite's own library knows by this name: padding and strides as three integers."""
    padding, along, down = struct.unpack_from("<3i", call.option("custom", b""))
    return _transposed(call, x, w, bias, call.types[0].shape[1:3], _PADDINGS[padding - 1], (down, along))


def _transposed(
    call: Call, x: Value, w: Value, bias: Value | None, size: Shape, padding: Padding, strides: tuple[int, int]
) -> Value:
    b = call.b
    op = ops.Conv2DInputGrad(strides, explicit(padding, size, w.shape[1:3], strides), size=size)
    return _with_bias(call, b(op, x, b.transpose(w, (3, 1, 2, 0))), bias)


@rule("FULLY_CONNECTED")
def fully_connected(call: Call, x: Value, w: Value, bias: Value | None = None) -> Result:
    """x [..., I] or of any axes whose numbers are rows of I, w [O, I]."""
    if not call.option("keepNumDims", False) and len(x.shape) != 2:
        x = call.b.reshape(x, (x.type.size // w.shape[1], w.shape[1]))
    if call.option("weightsFormat", 0):
        raise NotImportable("FULLY_CONNECTED with shuffled weights")
    return _with_bias(call, call.b(ops.MatMul(adj_y=True), x, w), bias)


@rule("BATCH_MATMUL")
def batch_matmul(call: Call, x: Value, y: Value) -> Result:
    """Products of the last two axes."""
    return call.b(ops.MatMul(bool(call.option("adjX", False)), bool(call.option("adjY", False))), x, y)


def _window(call: Call, x: Value) -> tuple[tuple[int, int], tuple[int, int], ops.Padding]:
    size = int(call.option("filterHeight")), int(call.option("filterWidth"))
    strides = _strides(call)
    return size, strides, explicit(_PADDINGS[call.option("padding")], x.shape[1:3], size, strides)


@rule("MAX_POOL_2D")
def max_pool_2d(call: Call, x: Value) -> Result:
    """The largest number of each window."""
    return fused(call, call.b(ops.MaxPool2D(*_window(call, x)), x))


@rule("AVERAGE_POOL_2D")
def average_pool_2d(call: Call, x: Value) -> Result:
    """The mean of what of each window lies inside."""
    b, (size, strides, padding) = call.b, _window(call, x)
    summed = b(ops.SumPool2D(size, strides, padding), x)
    ones = b.broadcast_to(b.constant(1.0), (1, *x.shape[1:3], 1))
    return fused(call, b(ops.Div(), summed, b(ops.SumPool2D(size, strides, padding), ones)))
