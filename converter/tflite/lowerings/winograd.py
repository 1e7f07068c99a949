"""Frozen 3x3 filters after Winograd: four numbers of the result from 16 products in place of 36.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (CVPR 2016), F(2x2, 3x3). A tile of 4x4 pixels
d and the filter g give 2x2 results A' ((G g G') * (B' d B)) A. The transformed filter is computed at compile time; the
sums B' d B of each channel are depthwise convolutions, and for each of the 16 places all tiles meet one matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from converter.ir import Shape, Value, described, fingerprint, is_described, ops
from converter.tflite import builtins as tfl
from converter.tflite.forms import Form
from converter.tflite.lower import Lowering
from converter.tflite.lowerings.filters import Filter
from converter.tflite.lowerings.windows import crop, pad_explicitly, zero_bias

#: B': how the rows of a tile, or its columns, are summed.
_OF_TILE = ((1, 0, -1), (0, 1, 1), (0, -1, 1), (0, 1, 0, -1))
#: G: the same of a filter.
_OF_FILTER = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
#: Multiply-accumulates that a byte must save which the file holds for it: the filter may be there as it is, too.
_PER_STORED = 32
#: Multiply-accumulates in the time of a byte that lies beyond the caches, at least: tables of instructions do not tell.
_PER_FAR = 1.5


def winograd(c: Lowering, op: ops.Conv2D, x: Value, w: Filter) -> Form | None:
    """The form, where the filter is known now, 3x3, and meets every pixel; None elsewhere.

    Engines of accelerators choose their own algorithm for a CONV_2D, so it is for CPUs alone.
    """
    array = w.array()
    if array is None or w.kernel != (3, 3) or {op.strides, op.dilation} != {(1, 1)} or not c.target.is_cpu:
        return None
    size = op.output_size(x.shape[1:3], w.kernel)
    return Form("winograd", _cost(c, x, w, size), lambda: _emit(c, op, x, array, size))


def _emit(c: Lowering, op: ops.Conv2D, x: Value, w: np.ndarray, size: Shape) -> Value:
    tiles, outputs = [-(-n // 2) for n in size], w.shape[0]
    (top, _), (left, _) = op.padding
    bottom, right = (2 * n + 2 - have - lo for n, have, lo in zip(tiles, x.shape[1:3], (top, left), strict=True))
    x = pad_explicitly(c, x, ((top, bottom), (left, right)))
    bias = zero_bias(c, outputs)
    rows = [_summed(c, x, numbers, 1) for numbers in _OF_TILE]
    columns = []
    for b, numbers in enumerate(_OF_TILE):
        products = []
        for a, row in enumerate(rows):
            products.append(c(tfl.Conv2D(), _summed(c, row, numbers, 2), c.constant(_transformed(w, a, b)), bias))
        columns.append(_two_of_four(c, products))
    lines = []
    for line in zip(*columns, strict=True):
        pairs = c(tfl.Concatenation(3), *_two_of_four(c, line))
        lines.append(c.reshape(pairs, (x.shape[0], tiles[0], 2 * tiles[1] * outputs)))
    y = c.reshape(c(tfl.Concatenation(2), *lines), (x.shape[0], 2 * tiles[0], 2 * tiles[1], outputs))
    return crop(c, y, ((0, 0), (0, 0)), size)


def _transformed(w: np.ndarray, a: int, b: int) -> np.ndarray:
    """What the filter is at place (a, b) of a tile: [outputs, 1, 1, inputs]."""
    if is_described(w):
        return described((w.shape[0], 1, 1, w.shape[3]), f"winograd {a} {b} {fingerprint(w)}")
    return np.einsum("i,j,oijc->oc", _OF_FILTER[a], _OF_FILTER[b], w).astype(w.dtype)[:, None, None]


def _summed(c: Lowering, x: Value, numbers: Sequence[int], axis: int) -> Value:
    """Every second row (axis 1) or column (2), with those behind it, times these numbers."""
    shape = [1, 1, 1, x.shape[3]]
    shape[axis] = len(numbers)
    w = np.broadcast_to(np.array(numbers, np.float32).reshape([-1, 1] if axis == 2 else [-1, 1, 1]), shape)
    strides = (2, 1) if axis == 1 else (1, 2)
    return c(tfl.DepthwiseConv2D(strides, "VALID"), x, c.constant(np.ascontiguousarray(w)), zero_bias(c, x.shape[3]))


def _two_of_four(c: Lowering, m: Sequence[Value]) -> tuple[Value, Value]:
    """A' of a row or column: m0 + m1 + m2 and m1 - m2 - m3."""
    return c(tfl.Add(), c(tfl.Add(), m[0], m[1]), m[2]), c(tfl.Sub(), c(tfl.Sub(), m[1], m[2]), m[3])


def _cost(c: Lowering, x: Value, w: Filter, size: Shape) -> float:
    """Of the padding, 20 sums by filters, 16 products and 24 sums of two, and of what the file holds more."""
    target, (height, width) = c.target, (-(-n // 2) for n in size)
    tiles, wide = x.shape[0] * height * width, x.shape[0] * height * (2 * width + 2)
    padded = x.shape[0] * (2 * height + 2) * (2 * width + 2) * w.inputs
    channels, outputs = w.inputs, w.outputs
    touched = 4 * 16 * tiles * (channels + outputs)

    def moved(numbers: int) -> float:
        far = 4 * numbers * _PER_FAR * target.per_mac["conv.constant"] if touched > target.shared_cache_bytes else 0.0
        return max(target.moved("delegated", 4 * numbers, touched), far)

    cost = moved(x.type.size + padded)
    cost += 4 * (moved(3 * wide * channels) + target.macs("depthwise.constant", 4 * wide * channels))
    cost += 16 * (moved(3 * tiles * channels) + target.macs("depthwise.constant", 4 * tiles * channels))
    cost += 16 * target.macs("conv.constant", tiles * channels * outputs)
    cost += 24 * moved(3 * tiles * outputs) + 3 * moved(8 * tiles * outputs)
    return cost + _PER_STORED * target.per_mac["conv.constant"] * 4 * 16 * channels * outputs
