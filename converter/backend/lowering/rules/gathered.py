"""im2col for convolutions of few channels: the inputs of a filter's columns are first gathered into channels.

An image has three channels: a product for each position of a filter is three deep then, and copying runs of three
numbers takes longer than multiplying them. A convolution by a constant filter of ones and zeros gathers at the rate of
products. A filter of one position with a stride meets few of the pixels: a depthwise convolution by ones takes these,
where a SLICE would want the images in another shape, which is a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering
from converter.backend.lowering.forms import Form, choose
from converter.backend.lowering.rules.windows import fit_padding, pad_explicitly, zero_bias
from converter.ir import Shape, Value, ops

#: Numbers of one window that are gathered at most: the constant filter has the square of it.
MOST_GATHERED = 256

Forms = Callable[[ops.Conv2D, Value], list[Form]]


def gathered(c: Lowering, op: ops.Windowed, x: Value, kernel: Shape, forms: Forms) -> list[Form]:
    """The forms of a convolution, or of its filter's cotangent, on gathered channels.

    Before: op with a filter [O,kh,kw,C] on x [N,H,W,C].   After, with windows of kh' rows and kw columns (kh' is 1 or
    kh): x' [N,H',W',kh'*kw*C] = CONV_2D(x, ones and zeros); op with the same filter as [O,kh/kh',1,kh'*kw*C] on x'.

    None where the table has another processor's counts: an engine that keeps no variables is no CPU.

    Args:
        c: where to emit.
        op: the convolution.
        x: its input.
        kernel: rows and columns of its filter.
        forms: of a convolution with a filter of one column on what was gathered.
    """
    rows, columns = kernel
    if c.target.state != "variables":
        return []
    if kernel == (1, 1):
        return [_form(c, "gathered", op, x, (1, 1), True, forms)] if op.strides != (1, 1) else []
    windows = {"gathered": (rows, columns)} | ({"gathered columns": (1, columns)} if rows > 1 else {})
    return [
        _form(c, name, op, x, window, name == "gathered", forms)
        for name, window in windows.items()
        if 1 < prod(window) <= MOST_GATHERED // x.shape[3]
    ]


def columns_of(w: Value, contracted: Value) -> tuple[int, ...]:
    """The shape of a filter [O,kh,kw,C] for what was gathered, [...,K]: [O,kh*kw*C/K,1,K]."""
    outputs, *rest = w.shape
    return outputs, prod(rest) // contracted.shape[3], 1, contracted.shape[3]


def _form(
    c: Lowering, name: str, op: ops.Windowed, x: Value, window: tuple[int, int], whole: bool, forms: Forms
) -> Form:
    """One of them; `whole`: all that a window meets, and not only its columns."""
    none = (0, 0)
    gather, rest = (
        ops.Conv2D(
            (op.strides[0] if rows else 1, op.strides[1] if columns else 1),
            (op.padding[0] if rows else none, op.padding[1] if columns else none),
            (op.dilation[0] if rows else 1, op.dilation[1] if columns else 1),
        )
        for rows, columns in ((whole, True), (not whole, False))
    )
    channels = prod(window) * x.shape[3]
    contracted = (x.shape[0], *gather.output_size(x.shape[1:3], window), channels)
    after = choose(forms(rest, Value(x.type.with_shape(contracted))), c.target)

    def emit() -> Value:
        return choose(forms(rest, _gather(c, gather, x, window)), c.target).emit()

    pixels = prod(contracted[:3])
    if prod(window) == 1:
        cost = c.target.macs("depthwise.constant", pixels * channels)
    else:
        cost = c.target.tiles(
            "conv.constant", pixels // contracted[0], x.shape[3], channels, contracted[0], prod(window)
        )
    return Form(name, cost + c.target.moved("delegated", 2 * x.type.nbytes) + after.cost, emit)


def _gather(c: Lowering, op: ops.Conv2D, x: Value, window: tuple[int, int]) -> Value:
    """[N,H,W,kh*kw*C]: what each window meets, row by row."""
    channels = x.shape[3]
    if prod(window) == 1:
        one = c.constant(np.ones((1, 1, 1, channels), np.float32), name="ones")
        return c(tfl.Thinning(op.strides, "VALID"), pad_explicitly(c, x, op.padding), one, zero_bias(c, channels))
    count = prod(window) * channels
    ones = np.eye(count, dtype=np.float32).reshape(count, *window, channels)
    x, padding = fit_padding(c, op, x, window)
    return c(tfl.Gathering(op.strides, padding, op.dilation), x, c.constant(ones, name="ones"), zero_bias(c, count))
