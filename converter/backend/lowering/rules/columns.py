"""Input gradients by a frozen filter as the forward pass stores it: one product, whose columns are summed (col2im).

CONV_2D and TRANSPOSE_CONV would want the filter with its channels exchanged: another constant, in the file and packed.
"""

from __future__ import annotations

from functools import reduce
from math import prod

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering
from converter.backend.lowering.forms import Form
from converter.backend.lowering.rules.tiles import joined, joining_cost
from converter.ir import Value, ops


def columns(c: Lowering, op: ops.Conv2DInputGrad, dy: Value, w: Value) -> Form:
    """Every pixel of the cotangent by the whole filter [O, kh * kw * I]; taps that meet one pixel are then added.

    Args:
        c: where to emit.
        op: the gradient.
        dy: [N, Ho, Wo, O].
        w: the filter [O, kh, kw, I], known at compile time.
    """
    outputs, kh, kw, inputs = w.shape
    (batch, height, width), pixels = dy.shape[:3], prod(dy.shape[:3])

    def emit() -> Value:
        matrix = c.reshape(w, (outputs, kh * kw * inputs))
        product = c(tfl.BatchMatmul(), c.reshape(dy, (pixels, outputs)), matrix)
        rows = _added(c, op, c.reshape(product, (batch, height, width, kh * kw * inputs)), 0, kh)
        return _added(c, op, rows, 1, kw)

    cost = c.target.product(pixels, outputs, kh * kw * inputs, constant=True)
    for axis, taps, line in ((0, kh, batch * width * kw * inputs), (1, kw, batch * op.size[0] * inputs)):
        cost += _adding_cost(c, op, axis, taps, line)
    return Form("columns", cost, emit)


def _added(c: Lowering, op: ops.Conv2DInputGrad, columns: Value, axis: int, taps: int) -> Value:
    """Sum what the taps along rows (axis 0) or columns (1) say of each pixel.

    Args:
        c: where to emit.
        op: the gradient.
        columns: [N, H, W, taps * C]; along the axis as long as the cotangent.
        axis: of the two.
        taps: of the filter along the axis.

    Returns:
        [N, H, W, C], along the axis as long as the input.
    """
    stride, size = op.strides[axis], op.size[axis]
    if taps == 1 and stride == 1 and columns.shape[1 + axis] == size and not op.padding[axis][0]:
        return columns
    cells = -(-size // stride)
    phases = []
    for phase in range(stride):
        first = [(tap, *divmod(op.padding[axis][0] + phase - tap * op.dilation[axis], stride)) for tap in range(taps)]
        found = [_shifted(c, columns, axis, taps, tap, begin, cells) for tap, begin, rest in first if not rest]
        met = [part for part in found if part is not None]
        shape = tuple(cells if i == 1 + axis else n for i, n in enumerate(columns.shape[:3]))
        nothing = columns.type.with_shape((*shape, columns.shape[3] // taps))
        phases.append(reduce(lambda a, b: c(tfl.Add(), a, b), met) if met else c.zeros(nothing))
    return phases[0] if stride == 1 else _interleaved(c, phases, axis, size)


def _shifted(c: Lowering, columns: Value, axis: int, taps: int, tap: int, begin: int, count: int) -> Value | None:
    """Return `count` places along the axis from `begin` on of what a tap says; zeros outside, None where all are."""
    length, channels = columns.shape[1 + axis], columns.shape[3] // taps
    low, high = max(begin, 0), min(begin + count, length)
    if low >= high:
        return None
    from_, shape = [0, 0, 0, tap * channels], [*columns.shape[:3], channels]
    from_[1 + axis], shape[1 + axis] = low, high - low
    part = columns if tuple(shape) == columns.shape else c(tfl.Slice(tuple(from_), tuple(shape)), columns)
    around = [(0, 0)] * 4
    around[1 + axis] = (low - begin, begin + count - high)
    return c(tfl.Pad(tuple(around)), part) if any(around[1 + axis]) else part


def _interleaved(c: Lowering, phases: list[Value], axis: int, size: int) -> Value:
    """Return one image in which the rows (axis 0) or columns (1) of the phases take turns, `size` of them in all."""
    batch, height, width, channels = phases[0].shape
    stride = len(phases)
    if axis == 0:
        flat = [c.reshape(part, (batch * height, width * channels)) for part in phases]
        whole = c.reshape(joined(c, flat, 1), (batch, height * stride, width, channels))
    else:
        whole = c.reshape(joined(c, phases, 3), (batch, height, width * stride, channels))
    shape = tuple(size if i == 1 + axis else n for i, n in enumerate(whole.shape))
    return whole if whole.shape == shape else c(tfl.Slice((0, 0, 0, 0), shape), whole)


def _adding_cost(c: Lowering, op: ops.Conv2DInputGrad, axis: int, taps: int, line: int) -> float:
    """Return the cost of `_added`, where one place along the axis has `line` numbers."""
    stride, places = op.strides[axis], -(-op.size[axis] // op.strides[axis])
    if taps == stride == 1:
        return 0.0
    slab = 4 * line * places
    touched = 2 * taps * slab
    copies = 2 * taps * c.target.moved("delegated", 2 * slab, touched)  # a SLICE and a PAD
    sums = max(taps - stride, 0) * c.target.moved("delegated", 3 * slab, touched)
    return copies + sums + joining_cost(c, stride * slab, stride, touched)
