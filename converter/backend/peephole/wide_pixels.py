"""Pixel packing: several pixels of a row as one, with all channels, so that a filter's columns are one tap.

An image has three channels. A kernel that starts again at every tap of a 7x7 filter spends more on that than on the
products.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from functools import partial
from math import ceil

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.forms import Form, FormChoice, choose, record
from converter.backend.lowering.rules.tiles import MOST_JOINED, ROW
from converter.backend.lowering.rules.windows import same_padding
from converter.backend.targets import Target
from converter.ir import Graph, Node, Value, is_described
from converter.ir.rewrite import Rewriter, map_bodies, rewrite

#: What a convolution costs on pixels that are so many columns wide: (target, convolution, columns).
Cost = Callable[[Target, Node, int], float]
#: Of the kernels in int8, in multiply-accumulates, counted on arm64: channels of a tap and outputs that they compute at
#: once, what beginning a tap and a tile costs, and the share of a table's figure that multiplies.
_AT_ONCE, _LANES, _TAP, _TILE, _SHARE = 4, 16, 5, 26, 0.8


def with_wide_pixels(graph: Graph, target: Target, report: list[FormChoice] | None = None) -> Graph:
    """Convolutions of few channels by a constant filter on wide pixels, where the target's table says that it pays.

    Before: y [N,H,W,O] = CONV_2D(x, w [O,kh,kw,C]).   After: the columns of y that are r modulo q are CONV_2D of
    RESHAPE(SLICE(x from the r-th stride on)) [N,H,W/q,f*C] with w' [O,kh,1,f*C], f being the strides of q columns;
    CONCATENATION puts them side by side.

    Args:
        graph: lowered, its biases and activations fused.
        target: where it will run.
        report: takes the choice where wide pixels are taken.
    """
    return rewrite(
        map_bodies(graph, lambda body: with_wide_pixels(body, target)),
        lambda b, node: _widened(b, node, target, _cost, report),
    )


def with_wide_int8(graph: Graph, target: Target, results: Container[Value]) -> Graph:
    """The same of the convolutions that will be int8, those with one of these results: their kernels differ.

    They multiply four channels of a tap at once, so of an image's three none is lost if pixels are wide.
    """
    return rewrite(graph, lambda b, node: _widened(b, node, target, _int8_cost) if node.outputs[0] in results else None)


def _widened(
    b: Rewriter, node: Node, target: Target, cost: Cost, report: list[FormChoice] | None = None
) -> Value | None:
    """The cheapest form of a convolution where that is one on wide pixels."""
    wide = _forms(b, node, target, cost)
    if not wide:
        return None
    forms = [Form("builtin", cost(target, node, 1), lambda: node.output), *wide]
    chosen = choose(forms, target)
    if chosen is forms[0]:
        return None
    if report is not None:
        report.append(record(forms, chosen, node.op.name, str(node.output.type), node.origin))
    return chosen.emit()


def _forms(b: Rewriter, node: Node, target: Target, cost: Cost) -> list[Form]:
    """The ways to compute a convolution on pixels as wide as 2, 3 or 4 columns of its result need them.

    None where the table has another processor's counts.
    """
    if type(node.op) is not tfl.Conv2D or node.op.dilation != (1, 1) or not target.is_cpu:
        return []
    arrays = [b.array(v) for v in node.inputs[1:]]
    if any(array is None or is_described(array) for array in arrays):
        return []
    window, columns = node.inputs[1].shape[2], node.output.shape[2]
    return [
        Form(f"wide pixels of {count}", cost(target, node, count), partial(_emit, b, node, count))
        for count in range(2, MOST_JOINED + 1)
        if 1 < window <= count * node.op.strides[1] and columns % count == 0
    ]


def _cost(target: Target, node: Node, count: int) -> float:
    """What the convolution costs, on pixels that are wide enough for `count` columns or as it is (1)."""
    w, y = node.inputs[1], node.output
    (images, rows, columns, outputs), (_, height, width, channels) = y.shape, w.shape
    tiles = partial(target.tiles, "conv.constant", rows * columns // count, n=outputs, times=images)
    if count == 1:
        return tiles(k=channels, taps=height * width)
    return count * tiles(k=count * node.op.strides[1] * channels, taps=height) + _moved(target, node, count, 4)


def _int8_cost(target: Target, node: Node, count: int) -> float:
    """The same where it is in int8."""
    w, y = node.inputs[1], node.output
    (outputs, height, width, channels), pixels = w.shape, y.type.size // w.shape[0]
    taps = height * width
    if count > 1:
        taps, channels = height, count * node.op.strides[1] * channels
    depth = taps * (ceil(channels / _AT_ONCE) * _AT_ONCE + _TAP) + _TILE
    macs = _SHARE * pixels * ceil(outputs / _LANES) * _LANES * depth
    return target.macs("conv.int8", macs) + (_moved(target, node, count, 1) if count > 1 else 0)


def _moved(target: Target, node: Node, count: int, width: int) -> float:
    """What it costs to cut the image and to join the columns of the result, whose numbers take `width` bytes."""
    x, y = node.inputs[0], node.output
    cut = count * target.moved("delegated", 2 * width * x.type.size)
    return cut + target.reshaped(width * y.type.size) + y.type.size // y.shape[3] * ROW * target.run


def _emit(b: Rewriter, node: Node, count: int) -> Value:
    (x, w, bias), y, stride = node.inputs, node.output, node.op.strides[1]
    (images, height, width, channels), (outputs, rows, window, _) = x.shape, w.shape
    wide, columns = count * stride, y.shape[2] // count
    before = same_padding((height, width), (rows, window), node.op.strides, (1, 1))[1][0]
    before = before if node.op.padding == "SAME" else 0
    lines = b(tfl.Reshape((images * height, width * channels)), x)
    after = max((count - 1) * stride + wide * columns - before - width, 0)
    # All channels of a row are one run: PAD copies run by run.
    padded = b(tfl.Pad(((0, 0), (before * channels, after * channels))), lines) if before or after else lines
    array = b.array(w)
    assert array is not None
    taps = np.zeros((outputs, rows, 1, wide * channels), np.float32)
    taps[:, :, 0, : window * channels] = array.reshape(outputs, rows, window * channels)
    matrix = b.constant(taps, name=w.name)
    conv = replace(node.op, strides=(node.op.strides[0], 1))
    parts = []
    for first in range(0, wide, stride):
        inside = before <= first and first - before + wide * columns <= width
        source, begin = (lines, first - before) if inside else (padded, first)
        size = (images * height, wide * columns * channels)
        contracted = source if source.shape == size else b(tfl.Slice((0, begin * channels), size), source)
        parts.append(b(conv, b(tfl.Reshape((images, height, columns, wide * channels)), contracted), matrix, bias))
    return b(tfl.Reshape(y.shape), b(tfl.Concatenation(3), *parts))
