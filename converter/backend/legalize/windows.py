"""Convolutions and pools."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.builtins.conv import Pair, explicit
from converter.backend.legalize.pattern import avoids, is_constant, reshaped
from converter.ir import Node, Value
from converter.ir.rewrite import Rewriter

_CONVOLUTIONS = (tfl.Conv2D, tfl.DepthwiseConv2D)
_LOWEST = float(np.finfo(np.float32).min)


def _has_runtime_bias(b: Rewriter, node: Node) -> bool:
    return isinstance(node.op, _CONVOLUTIONS) and not is_constant(b, node.inputs[2])


@avoids(
    "runtime-bias",
    "GPU: CONV_2D, DEPTHWISE_CONV_2D whose bias trains: refused where the filter trains (Expected 1 or 2 input "
    "tensor(s), but node has 3 runtime inputs), SIGABRT where it is constant",
    _has_runtime_bias,
)
def bias_apart(b: Rewriter, node: Node) -> Value:
    """A constant bias of zeros, and an ADD, which has the activation."""
    x, w, bias = node.inputs
    zeros = b.constant(np.zeros(bias.shape, np.float32), name="zero_bias")
    return b(tfl.Add(node.op.activation), b(replace(node.op, activation="NONE"), x, w, zeros), bias)


def _padding(b: Rewriter, x: Value) -> tfl.Pad | None:
    """The PAD or PADV2 before a value, also after RESHAPEs."""
    node = b.producer(x, tfl.Builtin)
    while node is not None and isinstance(node.op, tfl.Reshape):
        node = b.producer(node.inputs[0], tfl.Builtin)
    return node.op if node is not None and isinstance(node.op, tfl.Pad) else None


@avoids(
    "pad-average-pool",
    "GPU and Hexagon: PAD before AVERAGE_POOL_2D: merged, and windows at the edge leave the padding out, errors of "
    "1.8; before DEPTHWISE_CONV_2D: right",
    lambda b, node: isinstance(node.op, tfl.AveragePool2D) and _padding(b, node.inputs[0]) is not None,
)
def averaged_by_a_convolution(b: Rewriter, node: Node) -> Value | None:
    """A depthwise convolution with constant weights."""
    (x,), op = node.inputs, node.op
    if op.padding != "VALID":
        return None
    channels = x.shape[3]
    weights = b.constant(np.full((1, *op.window, channels), 1 / prod(op.window), np.float32))
    zeros = b.constant(np.zeros(channels, np.float32), name="zero_bias")
    return b(tfl.DepthwiseConv2D(op.strides, "VALID", activation=op.activation), x, weights, zeros)


def _merges_padding(b: Rewriter, node: Node) -> bool:
    """A pool takes padding for less than all, a convolution for zeros."""
    if not isinstance(node.op, (*_CONVOLUTIONS, tfl.TransposeConv, tfl.MaxPool2D)):
        return False
    pad = _padding(b, node.inputs[1] if isinstance(node.op, tfl.TransposeConv) else node.inputs[0])
    value = getattr(pad, "value", 0.0)
    return pad is not None and value != (_LOWEST if isinstance(node.op, tfl.MaxPool2D) else 0.0)


@avoids(
    "pad-merged",
    "GPU: PAD before MAX_POOL_2D, PADV2 with 2 before CONV_2D and DEPTHWISE_CONV_2D: merged with what pads by another "
    "number, errors of 1.4; with an ADD of 0 between: right",
    _merges_padding,
)
def padding_apart(b: Rewriter, node: Node) -> Value:
    """An ADD of 0 between."""
    place = 1 if isinstance(node.op, tfl.TransposeConv) else 0
    operands = list(node.inputs)
    operands[place] = b(tfl.Add(), operands[place], b.constant(np.zeros(1, np.float32)))
    return b(node.op, *operands)


def _multiplies_channels(b: Rewriter, node: Node) -> bool:
    if not isinstance(node.op, tfl.DepthwiseConv2D):
        return False
    x, w, _ = node.inputs
    return w.shape[3] != x.shape[3] and (not is_constant(b, w) or w.shape[1:3] == (1, 1))


@avoids(
    "depthwise-multiplier",
    "GPU: DEPTHWISE_CONV_2D of 3 channels to 6: SIGABRT where the filter trains, wrong where it is 1x1, errors of "
    "1.5; of 6 to 6: right",
    _multiplies_channels,
)
def of_repeated_channels(b: Rewriter, node: Node) -> Value:
    """Each channel as often as a group reads it, by a product with ones."""
    x, w, bias = node.inputs
    channels, times = x.shape[3], w.shape[3] // x.shape[3]
    ones = b.constant(np.ones((1, 1, times), np.float32))
    wide = b(tfl.Mul(), reshaped(b, x, (x.type.size // channels, channels, 1)), ones)
    return b(node.op, reshaped(b, wide, (*x.shape[:3], w.shape[3])), w, bias)


def _paddings(node: Node) -> list[tuple[Pair, Pair]]:
    """Of a transposed convolution, along each axis: what is cut off, and what it would be by the input's size."""
    if not isinstance(node.op, tfl.TransposeConv) or node.op.padding != "SAME":
        return []
    w, x, *_ = node.inputs
    sizes = node.op.output_shape[1:3], x.shape[1:3]
    meant, taken = (explicit("SAME", size, w.shape[1:3], node.op.strides) for size in sizes)
    return list(zip(meant, taken, strict=True))


@avoids(
    "transpose-conv-padding",
    "GPU: TRANSPOSE_CONV, SAME: what is cut off in front is taken from the size of the input, as if that were padded: "
    "stride 2, 3x3, 6 to 11 or 5 to 10: wrong, errors of 14; 6 to 12, 5 to 9 and VALID: right",
    lambda b, node: any(meant[0] != taken[0] for meant, taken in _paddings(node)),
)
@avoids(
    "transpose-conv-same",
    "Hexagon: TRANSPOSE_CONV, SAME, where what is cut off would be another of the input's size: stride 2, 3x3, 4 to 7 "
    "or 5 to 10, 2x2, 5 to 10: Qualcomm's compiler gives up; 4 to 8, 5 to 9 and VALID: right",
    lambda b, node: any(meant != taken for meant, taken in _paddings(node)),
)
def cropped(b: Rewriter, node: Node) -> Value:
    """VALID, of which the padding is cut off."""
    op, (w, x, *bias) = node.op, node.inputs
    n, *size, channels = op.output_shape
    padding = explicit("SAME", tuple(size), w.shape[1:3], op.strides)
    full = tuple(m + before + after for m, (before, after) in zip(size, padding, strict=True))
    whole = b(replace(op, output_shape=(n, *full, channels), padding="VALID"), w, x, *bias)
    return b(tfl.Slice((0, padding[0][0], padding[1][0], 0), op.output_shape), whole)
