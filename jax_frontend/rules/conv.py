"""conv_general_dilated -> Conv2D, DepthwiseConv2D or a transposed convolution, through NHWC; in depth a sum of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from converter.ir import FLOAT32, Builder, Value, ops
from converter.ir.ops import Padding
from converter.support.errors import NotImportable
from jax_frontend.registry import Equation, ImportRules, Result
from jax_frontend.rules.shape import cut, cut_axis, padded
from jax_frontend.unsupported import UnsupportedForm

rule = ImportRules()

_AXES = UnsupportedForm("convolution over more than three axes, or none", "use one to three spatial axes")
_INTEGERS = UnsupportedForm("convolution of integers", "convert both operands to float32")

Pair = tuple[int, int]
T = TypeVar("T")


@rule("conv_general_dilated", refuses=[_AXES, _INTEGERS])
def conv_general_dilated(call: Equation, x: Value, w: Value) -> Result:
    """One to three spatial axes, any layouts, groups, strides and dilations."""
    b, p = call.b, call.params
    numbers, groups, batches = p["dimension_numbers"], int(p["feature_group_count"]), int(p["batch_group_count"])
    spatial = len(numbers.lhs_spec) - 2
    if spatial not in (1, 2, 3):
        raise NotImportable(*_AXES)
    if x.dtype != FLOAT32:
        raise NotImportable(*_INTEGERS)
    deep = max(spatial, 2)
    strides, dilation, spread = (
        _leading(deep, [int(n) for n in p[key]], 1) for key in ("window_strides", "rhs_dilation", "lhs_dilation")
    )
    padding = _leading(deep, [(int(low), int(high)) for low, high in p["padding"]], (0, 0))
    size = _leading(deep, [call.output.shape[a] for a in numbers.out_spec[2:]], 1)
    x = _channels_last(b, x, numbers.lhs_spec)
    w = _channels_last(b, w, numbers.rhs_spec)  # OHWI
    reach = [(k - 1) * d for k, d in zip(w.shape[1:-1], dilation, strict=True)]
    wide = any(max(pair) > r for pair, r in zip(padding, reach, strict=True))  # beyond what a transposed one pads
    if any(s != 1 for s in spread) and (any(s != 1 for s in strides) or groups > 1 or deep == 3 or wide):
        x, spread = b(ops.Dilate((1, *spread, 1)), x), (1,) * deep
    if all(s == 1 for s in spread):  # padding of the kernels is never negative
        crops = [(min(low, 0), min(high, 0), 0) for low, high in padding]
        x = padded(b, x, [(0, 0, 0), *crops, (0, 0, 0)])
        padding = tuple((max(low, 0), max(high, 0)) for low, high in padding)
    windows = _Windows(strides, padding, dilation, spread, size)
    if batches > 1:
        rows, features = x.shape[0] // batches, w.shape[0] // batches
        parts = [
            windows.apply(b, cut_axis(b, x, 0, g * rows, rows), cut_axis(b, w, 0, g * features, features), groups)
            for g in range(batches)
        ]
        y = b(ops.Concat(len(x.shape) - 1), *parts)
    else:
        y = windows.apply(b, x, w, groups)
    if spatial == 1:
        y = b.reshape(y, (y.shape[0], *y.shape[2:]))
    last = (numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1])
    return b.transpose(y, tuple(int(i) for i in np.argsort(last)))


@dataclass(frozen=True)
class _Windows:
    """How the filter moves over two or three axes, and the size of what comes out."""

    strides: tuple[int, ...]
    padding: tuple[Pair, ...]
    dilation: tuple[int, ...]
    spread: tuple[int, ...]
    size: tuple[int, ...]

    def apply(self, b: Builder, x: Value, w: Value, groups: int) -> Value:
        """The convolution of x [N, spatial..., I] with w [O, spatial..., I / groups]."""
        if len(self.strides) == 3:
            return self._by_depth(b, x, w, groups)
        strides, dilation, spread, size = ((v[0], v[1]) for v in (self.strides, self.dilation, self.spread, self.size))
        padding: Padding = (self.padding[0], self.padding[1])
        if spread != (1, 1):
            return _transposed(b, x, w, spread, padding, dilation, size)
        if groups == 1:
            return b(ops.Conv2D(strides, padding, dilation), x, w)
        if groups == x.shape[3]:
            return b(ops.DepthwiseConv2D(strides, padding, dilation), x, b.transpose(w, (3, 1, 2, 0)))
        return _grouped(b, ops.Conv2D(strides, padding, dilation), x, w, groups)

    def _by_depth(self, b: Builder, x: Value, w: Value, groups: int) -> Value:
        """A sum over the depth of the filter: each slice of it is a convolution of images, a row of the batch each."""
        x = padded(b, x, [(0, 0, 0), (*self.padding[0], 0), *((0, 0, 0),) * 3])
        stride, dilation, batch, image = self.strides[0], self.dilation[0], x.shape[0], x.shape[2:]
        planes, rest = self.size[0], [getattr(self, f.name)[1:] for f in fields(self)]
        total: Value | None = None
        for place in range(w.shape[1]):
            begin = (0, place * dilation, 0, 0, 0)
            contracted = cut(b, x, begin, (batch, planes, *image), (1, stride, 1, 1, 1) if stride > 1 else ())
            filters = b.reshape(cut_axis(b, w, 1, place, 1), (w.shape[0], *w.shape[2:]))
            part = _Windows(*rest).apply(b, b.reshape(contracted, (batch * planes, *image)), filters, groups)
            total = part if total is None else b(ops.Add(), total, part)
        assert total is not None
        return b.reshape(total, (batch, planes, *total.shape[1:]))


def _leading(count: int, values: Sequence[T], unit: T) -> tuple[T, ...]:
    """A single spatial axis is the width of an image of height 1."""
    return (unit,) * (count - len(values)) + tuple(values)


def _channels_last(b: Builder, x: Value, spec: Sequence[int]) -> Value:
    """The operand with batch (or output features) first and channels last, of rank 4 at least."""
    x = b.transpose(x, (spec[0], *spec[2:], spec[1]))
    return x if len(spec) >= 4 else b.reshape(x, (x.shape[0], 1, *x.shape[1:]))


def _transposed(b: Builder, x: Value, w: Value, strides: Pair, padding: Padding, dilation: Pair, size: Pair) -> Value:
    """A convolution over a dilated input is the input gradient of a strided one with the filter turned around."""
    reach = tuple((k - 1) * d for k, d in zip(w.shape[1:3], dilation, strict=True))
    outer: Padding = tuple((r - low, r - high) for r, (low, high) in zip(reach, padding, strict=True))  # type: ignore[assignment]
    transposed = b.transpose(b(ops.Reverse((1, 2)), w), (3, 1, 2, 0))
    return b(ops.Conv2DInputGrad(strides, outer, dilation, size), x, transposed)


def _grouped(b: Builder, op: ops.Conv2D, x: Value, w: Value, groups: int) -> Value:
    """Groups of channels, each with its own filters: one convolution a group, side by side."""
    depth, features = x.shape[3] // groups, w.shape[0] // groups
    parts = [
        b(op, cut_axis(b, x, 3, g * depth, depth), cut_axis(b, w, 0, g * features, features)) for g in range(groups)
    ]
    return b(ops.Concat(3), *parts)
