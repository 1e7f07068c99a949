"""conv_general_dilated -> Conv2D, DepthwiseConv2D or a transposed convolution, through NHWC."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from converter.ir import Builder, Value, ops
from converter.ir.ops import Padding
from jax_frontend.registry import Call, NotImportable, Result, rule
from jax_frontend.rules.shape import cut_axis

Pair = tuple[int, int]


@rule("conv_general_dilated")
def conv_general_dilated(call: Call, x: Value, w: Value) -> Result:
    """One or two spatial axes, any layouts, groups, strides and dilations."""
    b, p = call.b, call.params
    numbers, groups = p["dimension_numbers"], int(p["feature_group_count"])
    spatial = len(numbers.lhs_spec) - 2
    if spatial not in (1, 2):
        raise NotImportable(f"convolution over {spatial} axes", "use one or two spatial axes")
    if int(p["batch_group_count"]) != 1:
        raise NotImportable("convolution with batch groups", "use feature groups, or loop over the groups")
    strides, dilation, spread = (_pair(p[key]) for key in ("window_strides", "rhs_dilation", "lhs_dilation"))
    padding = _padding(p["padding"])
    x = _channels_last(b, x, numbers.lhs_spec)
    w = _channels_last(b, w, numbers.rhs_spec)  # OHWI
    if spread != (1, 1) and (strides != (1, 1) or groups > 1):
        x, spread = b(ops.Dilate((1, *spread, 1)), x), (1, 1)
    if spread != (1, 1):
        size = _pair([call.output.shape[a] for a in numbers.out_spec[2:]])
        y = _transposed(b, x, w, spread, padding, dilation, size)
    elif groups == 1:
        y = b(ops.Conv2D(strides, padding, dilation), x, w)
    elif groups == x.shape[3]:
        y = b(ops.DepthwiseConv2D(strides, padding, dilation), x, b.transpose(w, (3, 1, 2, 0)))
    else:
        y = _grouped(b, ops.Conv2D(strides, padding, dilation), x, w, groups)
    if spatial == 1:
        y = b.reshape(y, (y.shape[0], *y.shape[2:]))
    last = (numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1])
    return b.transpose(y, tuple(int(i) for i in np.argsort(last)))


def _pair(numbers: Sequence[int]) -> Pair:
    """Height and width; a single spatial axis is the width of an image of height 1."""
    values = [int(n) for n in numbers]
    return (1, values[0]) if len(values) == 1 else (values[0], values[1])


def _padding(pairs: Sequence[Sequence[int]]) -> Padding:
    values = [(int(low), int(high)) for low, high in pairs]
    return ((0, 0), values[0]) if len(values) == 1 else (values[0], values[1])


def _channels_last(b: Builder, x: Value, spec: Sequence[int]) -> Value:
    """The operand with batch (or output features) first and channels last, of rank 4."""
    x = b.transpose(x, (spec[0], *spec[2:], spec[1]))
    return x if len(spec) == 4 else b.reshape(x, (x.shape[0], 1, *x.shape[1:]))


def _transposed(b: Builder, x: Value, w: Value, strides: Pair, padding: Padding, dilation: Pair, size: Pair) -> Value:
    """A convolution over a dilated input is the input gradient of a strided one with the filter turned around."""
    reach = tuple((k - 1) * d for k, d in zip(w.shape[1:3], dilation, strict=True))
    outer: Padding = tuple((r - low, r - high) for r, (low, high) in zip(reach, padding, strict=True))  # type: ignore[assignment]
    turned = b.transpose(b(ops.Reverse((1, 2)), w), (3, 1, 2, 0))
    return b(ops.Conv2DInputGrad(strides, outer, dilation, size), x, turned)


def _grouped(b: Builder, op: ops.Conv2D, x: Value, w: Value, groups: int) -> Value:
    """Groups of channels, each with its own filters: one convolution a group, side by side."""
    depth, features = x.shape[3] // groups, w.shape[0] // groups
    parts = [
        b(op, cut_axis(b, x, 3, g * depth, depth), cut_axis(b, w, 0, g * features, features)) for g in range(groups)
    ]
    return b(ops.Concat(3), *parts)
