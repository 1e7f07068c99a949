"""Convolutions and their input gradients.

A weight known at run time only throws CONV_2D out of XNNPACK; whether that matters depends on the processor, so each
rule offers its forms with their cost on the target.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering, LoweringRules
from converter.backend.lowering.forms import Form
from converter.backend.lowering.rules import kernel_offsets as taps
from converter.backend.lowering.rules.columns import columns
from converter.backend.lowering.rules.filters import Filter
from converter.backend.lowering.rules.gathered import columns_of, gathered
from converter.backend.lowering.rules.linear import int8_matmul
from converter.backend.lowering.rules.movement import dilate
from converter.backend.lowering.rules.windows import (
    backward_padding,
    crop,
    fit_padding,
    macs,
    same_padding,
    spread_out,
    zero_bias,
)
from converter.backend.lowering.rules.winograd import winograd
from converter.ir import UNSCALED, Value, ops

lowers = LoweringRules()


@lowers(ops.Conv2D)
def conv(c: Lowering, op: ops.Conv2D, x: Value, w: Value) -> Value:
    return c.cheapest(_forward_forms(c, op, x, Filter(c, w)))


def _forward_forms(c: Lowering, op: ops.Conv2D, x: Value, w: Filter) -> list[Form]:
    """A convolution with a filter, transposed or not.

    One known at compile time stays whole: each product that reads a piece of it packs a copy of its own.
    """
    outputs = op.output_size(x.shape[1:3], w.kernel)
    size = prod(w.kernel) * w.inputs * w.outputs * x.shape[0] * prod(outputs)
    cost = c.target.macs(f"conv.{w.kind}", size) + w.whole_cost()
    forms = [Form("builtin", cost, lambda: _builtin(c, op, x, w))]
    if w.constant:
        return forms + winograd(c, op, x, w)
    if c.target.is_micro:
        return forms
    forms += _by_products(c, op, x, w)
    if w.transposed:
        return forms
    return forms + gathered(
        c,
        op,
        x,
        w.kernel,
        lambda rest, contracted: _by_products(c, rest, contracted, Filter(c, w.w, shape=columns_of(w.w, contracted))),
    )


def _by_products(c: Lowering, op: ops.Windowed, x: Value, w: Filter) -> list[Form]:
    if w.kernel == (1, 1) and op.strides == (1, 1) and not any(map(any, op.padding)):
        return _products(c, x, w)
    return [taps.forward(c, op, x, w, op.output_size(x.shape[1:3], w.kernel))]


def _products(c: Lowering, x: Value, w: Filter) -> list[Form]:
    """A 1x1 filter: a product of each row of pixels, or one of all, which fills the kernel's tiles."""
    batch, height, width, _ = x.shape
    size, pixels = (batch, height, width, w.outputs), batch * height * width

    def flat() -> Value:
        return c.reshape(w.product(c.reshape(x, (pixels, w.inputs)), w.tap(0, 0)), size)

    copies = c.target.reshaped(x.type.nbytes + 4 * prod(size))
    return [
        Form("product", w.product_cost(width, 1, batch * height), lambda: w.product(x, w.tap(0, 0))),
        Form("flat product", w.product_cost(pixels, 1) + copies, flat),
    ]


def _builtin(c: Lowering, op: ops.Conv2D, x: Value, w: Filter) -> Value:
    """CONV_2D with explicit padding made SAME, VALID or a PAD."""
    x, padding = fit_padding(c, op, x, w.kernel)
    return c(tfl.Conv2D(op.strides, padding, op.dilation), x, w.whole(), zero_bias(c, w.outputs))


@lowers(ops.Conv2DInputGrad)
def conv_input_grad(c: Lowering, op: ops.Conv2DInputGrad, dy: Value, w: Value) -> Value:
    if c.array(w) is not None and c.target.reads_as_stored:
        return c.cheapest(_input_grad_as_stored(c, op, dy, w))
    transposed = Filter(c, w, transposed=True)
    forms = []
    if op.dilation == (1, 1):
        cost = c.target.macs(f"transpose_conv.{transposed.kind}", macs(op, dy, w)) + transposed.whole_cost()
        forms.append(Form("transpose_conv", cost, lambda: _transpose_conv(c, op, dy, w)))
    if op.strides != (1, 1) and not c.target.is_micro:
        forms += _strided(c, op, dy, transposed)
    if op.strides == (1, 1) or not forms:
        dy, same_size = _of_stride_1(c, op, dy, transposed)
        forms += _forward_forms(c, same_size, dy, transposed)
    return c.cheapest(forms)


def _input_grad_as_stored(c: Lowering, op: ops.Conv2DInputGrad, dy: Value, w: Value) -> list[Form]:
    """By a frozen filter as the forward pass reads it: with its channels exchanged it would be in the file twice."""
    transposed = Filter(c, w, transposed=True, as_stored=True)
    if op.strides != (1, 1):
        return [columns(c, op, dy, w), *_strided(c, op, dy, transposed)]
    dy, same_size = _of_stride_1(c, op, dy, transposed)
    forms = _by_products(c, same_size, dy, transposed)
    return forms if w.shape[1:3] == (1, 1) else [columns(c, op, dy, w), *forms, *winograd(c, same_size, dy, transposed)]


def _strided(c: Lowering, op: ops.Conv2DInputGrad, dy: Value, transposed: Filter) -> list[Form]:
    return [form for make in (taps.input_grad, taps.input_grad_by_parts) if (form := make(c, op, dy, transposed))]


def _of_stride_1(c: Lowering, op: ops.Conv2DInputGrad, dy: Value, transposed: Filter) -> tuple[Value, ops.Conv2D]:
    """The gradient as a convolution of the spread-out cotangent with the filter transposed."""
    dy = spread_out(c, op, dy)
    return dy, ops.Conv2D((1, 1), backward_padding(op, dy.shape[1:3], transposed.kernel), op.dilation)


def _transpose_conv(c: Lowering, op: ops.Conv2DInputGrad, dy: Value, w: Value) -> Value:
    array, perm = c.array(w), (3, 1, 2, 0)
    transposed = c.transpose(w, perm) if array is None else c.constant(np.transpose(array, perm), name=w.name)
    return transpose_conv(c, op, dy, transposed)


def transpose_conv(
    c: Lowering,
    op: ops.Conv2DInputGrad,
    dy: Value,
    transposed: Value,
    kernel: Callable[[tfl.TransposeConv], tfl.Builtin] = lambda conv: conv,
) -> Value:
    """TRANSPOSE_CONV, as `kernel` makes it, with a filter [I,kh,kw,O]; explicit padding made SAME, VALID or a crop."""
    (batch, *_), (channels, *window, _) = dy.shape, transposed.shape
    if op.padding == same_padding(op.size, tuple(window), op.strides, op.dilation):
        return c(kernel(tfl.TransposeConv((batch, *op.size, channels), op.strides, "SAME")), transposed, dy)
    # VALID covers what the windows touch; the padding is cut off, rows no window touched are added.
    touched = tuple((n - 1) * s + k for n, s, k in zip(dy.shape[1:3], op.strides, window, strict=True))
    full = c(kernel(tfl.TransposeConv((batch, *touched, channels), op.strides, "VALID")), transposed, dy)
    return crop(c, full, op.padding, op.size)


@lowers(ops.Int8Conv2D)
def int8_conv(c: Lowering, op: ops.Int8Conv2D, x: Value, w: Value) -> Value:
    x, padding = fit_padding(c, op, x, w.shape[1:3])
    conv = tfl.DynamicRange((None, op.of, None), tfl.Conv2D(op.strides, padding))
    return c(conv, x, w, zero_bias(c, w.shape[0]))


@lowers(ops.Int8Conv2DInputGrad)
def int8_conv_input_grad(c: Lowering, op: ops.Int8Conv2DInputGrad, dy: Value, w: Value) -> Value:
    stored = c.graph.constants[w]
    if w.shape[1:3] == (1, 1) and not any(map(any, op.padding)):
        # XNNPACK has no TRANSPOSE_CONV whose filter is smaller than its stride.
        matrix = c.quantized(stored.reshape(w.shape[0], w.shape[3]), UNSCALED, w.name)
        product = int8_matmul(c, ops.Int8MatMul(UNSCALED, adj_y=False), dy, matrix)
        return crop(c, dilate(c, ops.Dilate((1, *op.strides, 1)), product), op.padding, op.size)
    transposed = np.transpose(stored, (3, 1, 2, 0))
    if not c.target.is_newest:
        # Those of before have no TRANSPOSE_CONV of float32 with an int8 filter: a convolution of what was spread out.
        dy = spread_out(c, op, dy)
        same_size = ops.Int8Conv2D((1, 1), backward_padding(op, dy.shape[1:3], w.shape[1:3]), of=UNSCALED)
        return int8_conv(
            c, same_size, dy, c.quantized(np.ascontiguousarray(transposed[:, ::-1, ::-1]), UNSCALED, w.name)
        )
    filters = c.quantized(np.ascontiguousarray(transposed), UNSCALED, w.name)
    return transpose_conv(c, op, dy, filters, lambda conv: tfl.DynamicRange((UNSCALED, None), conv))
