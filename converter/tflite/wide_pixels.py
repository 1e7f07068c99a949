"""Several pixels of a row as one, with the channels of all: the columns of a filter are one tap then, and not several.

An image has three channels. A kernel that begins anew at every tap of a 7x7 filter spends more on that than on the
products.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from converter.ir import Graph, Node, Value, is_described
from converter.passes.loops import map_bodies
from converter.passes.rewrite import Rewriter, rewrite
from converter.targets import Target
from converter.tflite import builtins as tfl
from converter.tflite.forms import Form, FormChoice, choose, record
from converter.tflite.lowerings.planes import MOST_JOINED, ROW
from converter.tflite.lowerings.windows import same_padding


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

    def widen(b: Rewriter, node: Node) -> Value | None:
        wide = _forms(b, node, target)
        if not wide:
            return None
        forms = [Form("builtin", _cost(target, node), lambda: node.output), *wide]
        chosen = choose(forms, target.forced)
        if chosen is forms[0]:
            return None
        if report is not None:
            report.append(record(forms, chosen, node.op.name, str(node.output.type), node.origin))
        return chosen.emit()

    return rewrite(map_bodies(graph, lambda body: with_wide_pixels(body, target)), widen)


def _forms(b: Rewriter, node: Node, target: Target) -> list[Form]:
    """The ways to compute a convolution on pixels as wide as 2, 3 or 4 columns of its result need them.

    None where the table has another processor's counts: an engine that keeps no variables is no CPU.
    """
    if type(node.op) is not tfl.Conv2D or node.op.dilation != (1, 1) or target.state != "variables":
        return []
    arrays = [b.array(v) for v in node.inputs[1:]]
    if any(array is None or is_described(array) for array in arrays):
        return []
    window, columns = node.inputs[1].shape[2], node.output.shape[2]
    return [
        Form(f"wide pixels of {count}", _cost(target, node, count), partial(_emit, b, node, count))
        for count in range(2, MOST_JOINED + 1)
        if 1 < window <= count * node.op.strides[1] and columns % count == 0
    ]


def _cost(target: Target, node: Node, count: int = 1) -> float:
    """What the convolution costs, on pixels that are wide enough for `count` columns or as it is."""
    (x, w, *_), y = node.inputs, node.output
    (images, rows, columns, outputs), (_, height, width, channels) = y.shape, w.shape
    tiles = partial(target.tiles, "conv.constant", rows * columns // count, n=outputs, times=images)
    if count == 1:
        return tiles(k=channels, taps=height * width)
    cut = count * target.moved("delegated", 2 * x.type.nbytes)
    joined = target.reshaped(y.type.nbytes) + images * rows * columns * ROW * target.run
    return count * tiles(k=count * node.op.strides[1] * channels, taps=height) + cut + joined


def _emit(b: Rewriter, node: Node, count: int) -> Value:
    (x, w, bias), y, stride = node.inputs, node.output, node.op.strides[1]
    (images, height, width, channels), (outputs, rows, window, _) = x.shape, w.shape
    wide, columns = count * stride, y.shape[2] // count
    before = same_padding((height, width), (rows, window), node.op.strides, (1, 1))[1][0]
    before = before if node.op.padding == "SAME" else 0
    lines = b(tfl.Reshape((images * height, width * channels)), x)
    behind = max((count - 1) * stride + wide * columns - before - width, 0)
    # All channels of a row are one run: PAD copies run by run.
    padded = b(tfl.Pad(((0, 0), (before * channels, behind * channels))), lines) if before or behind else lines
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
        met = source if source.shape == size else b(tfl.Slice((0, begin * channels), size), source)
        parts.append(b(conv, b(tfl.Reshape((images, height, columns, wide * channels)), met), matrix, bias))
    return b(tfl.Reshape(y.shape), b(tfl.Concatenation(3), *parts))
