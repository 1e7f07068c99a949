"""Convolutions, dense layers, products of matrices and pools."""

from __future__ import annotations

import struct

from converter.backend.builtins.conv import Padding, explicit
from converter.frontends.tflite.registry import Call, Result, Rules
from converter.frontends.tflite.rules.activations import fused
from converter.ir import Shape, Value, ops
from converter.support.errors import NotImportable

rule = Rules()

_PADDINGS: tuple[Padding, Padding] = ("SAME", "VALID")
#: Each group is an operator of its own.
_MOST_GROUPS = 64


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
    op = ops.Conv2D(strides, padding, dilation)
    return _with_bias(call, call.b(op, x, w) if x.shape[3] == w.shape[3] else _in_groups(call, op, x, w), bias)


def _in_groups(call: Call, op: ops.Conv2D, x: Value, w: Value) -> Value:
    """Return a convolution of neighbouring channels each by filters of their own, as one of each group."""
    b, (inside, of) = call.b, (w.shape[3], w.shape[0])
    if not inside or x.shape[3] % inside or of % (x.shape[3] // inside):
        raise NotImportable(f"a convolution of {x.shape[3]} channels by filters of {inside}")
    groups = x.shape[3] // inside
    if groups > _MOST_GROUPS:
        raise NotImportable(f"a convolution in {groups} groups, which are more than {_MOST_GROUPS}")
    made = []
    for i in range(groups):
        part = b(ops.Slice((0, 0, 0, i * inside), (*x.shape[:3], inside)), x)
        filters = b(ops.Slice((i * (of // groups), 0, 0, 0), (of // groups, *w.shape[1:])), w)
        made.append(b(op, part, filters))
    return b(ops.Concat(3), *made)


@rule("CONV_3D", "CONV_3D_TRANSPOSE")
def conv_3d(call: Call, *_: Value) -> Result:
    """Refused."""
    raise NotImportable(
        f"{call.operator.kind}, a convolution in three dimensions",
        "cut the model before it (cut=), or build it from JAX, where it is a sum of flat ones",
    )


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
    return fused(call, _mean(call, x, *_window(call, x)))


def _mean(call: Call, x: Value, size: tuple[int, int], strides: tuple[int, int], padding: ops.Padding) -> Value:
    b = call.b
    summed = b(ops.SumPool2D(size, strides, padding), x)
    ones = b.broadcast_to(b.constant(1.0), (1, *x.shape[1:3], 1))
    return b(ops.Div(), summed, b(ops.SumPool2D(size, strides, padding), ones))


@rule("L2_POOL_2D")
def l2_pool_2d(call: Call, x: Value) -> Result:
    """The root of the mean of squares of each window."""
    b, (size, strides, padding) = call.b, _window(call, x)
    return fused(call, b(ops.Sqrt(), _mean(call, b(ops.Mul(), x, x), size, strides, padding)))
