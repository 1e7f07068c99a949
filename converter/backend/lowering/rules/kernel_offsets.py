"""Convolutions as matrix products, one for each tap, block by block, so that a block stays in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering
from converter.backend.lowering.forms import Form
from converter.backend.lowering.rules.filters import Filter
from converter.backend.lowering.rules.tiles import (
    IN_USE,
    MOST_OPERATORS,
    Planes,
    Tile,
    best_form,
    in_use,
    interleaved,
    joined,
    joining_cost,
    prepared_cost,
    reach,
    windows,
    windows_cost,
)
from converter.backend.lowering.rules.windows import crop
from converter.ir import Shape, Value, ops


def forward(c: Lowering, op: ops.Windowed, x: Value, w: Filter, outputs: Shape) -> Form:
    """By a filter known at run time: what its columns meet stands side by side, and each of its rows is a product."""
    batch, (height, width), (kh, kw) = x.shape[0], outputs, w.kernel
    result = 4 * batch * height * width * w.outputs

    def cost(block: Tile) -> float:
        rows = block.images * block.rows * width
        touched = in_use(rows, w.inputs, w.outputs, kw)
        one = windows_cost(c, block, op, x, w.kernel, width, touched) + kh * w.product_cost(rows, kh, taps=kw)
        one += (kh - 1) * c.target.moved("delegated", 12 * rows * w.outputs, touched)
        cut = c.target.moved("delegated", 2 * w.w.type.nbytes) if w.kernel != (1, 1) else 0.0
        count = block.number(batch, height)
        return count * one + cut + prepared_cost(c, block, x) + joining_cost(c, result, count)

    def emit(block: Tile) -> Value:
        matrices = w.rows()
        cover, parts = reach(outputs, w.kernel, op.strides, op.dilation), []
        for first, count, bands in block.cut(batch, height):
            planes = Planes.cut(c, x, first, count, op.padding, op.strides, cover)
            planes = planes.beside([j * op.dilation[1] for j in range(kw)], width)
            for start, rows in bands:
                contracted = windows(planes, op, w.kernel, start, (rows, width))
                total = _sum(c, w, zip(contracted, matrices, strict=True))
                parts.append(c.reshape(total, (count * rows, width * w.outputs)))
        return c.reshape(joined(c, parts), (batch, height, width, w.outputs))

    return best_form("rows", cost, emit, batch, height, kw + 1 + 3 * kh)


def input_grad(c: Lowering, op: ops.Conv2DInputGrad, dy: Value, w: Filter) -> Form | None:
    """The cotangent of a strided convolution's input: one small convolution for each pixel of a stride's cell.

    Pixel m s + r meets the filter rows that are r (plus the padding) modulo s only, at rows m, m - 1, ... of dy.
    None where a pixel of the cell meets no filter position.
    """
    if op.dilation != (1, 1) or any(k < s for k, s in zip(w.kernel, op.strides, strict=True)):
        return None
    batch, cells = dy.shape[0], tuple(-(-n // s) for n, s in zip(op.size, op.strides, strict=True))
    axes = [_phases(k, s, low) for k, s, (low, _) in zip(w.kernel, op.strides, op.padding, strict=True)]
    lead = tuple(-min(offset for phase in axis for _, offset in phase) for axis in axes)
    last = tuple(max(offset for phase in axis for _, offset in phase) for axis in axes)
    cover = tuple(n + low + high for n, low, high in zip(cells, lead, last, strict=True))
    height, width = cells
    result = 4 * batch * prod(op.size) * w.outputs
    positions, contracted = (
        prod(w.kernel),
        prod(len({offset for phase in axis for _, offset in phase}) for axis in axes),
    )

    def cost(block: Tile) -> float:
        rows = block.images * block.rows * width
        touched = IN_USE * rows * (w.inputs + prod(op.strides) * w.outputs)
        one = w.product_cost(rows, positions) + c.target.moved("delegated", 12 * rows * w.outputs, touched)
        slices = contracted * c.target.moved("delegated", 8 * rows * w.inputs, touched)
        count = block.number(batch, height)
        cut = 0.0 if w.constant else c.target.moved("delegated", 2 * w.w.type.nbytes)
        joins = c.target.moved("shuffled", 4 * result // count, touched)
        prepared = prepared_cost(c, block, dy)
        return count * (positions * one + slices + joins) + cut + prepared + joining_cost(c, result, count)

    def emit(block: Tile) -> Value:
        mirror = tuple(k - 1 for k in w.kernel)
        matrices = {(i, j): w.tap(mirror[0] - i, mirror[1] - j) for i, j in np.ndindex(*w.kernel)}
        parts = []
        for first, count, bands in block.cut(batch, height):
            planes = Planes.cut(c, dy, first, count, ((lead[0], 0), (lead[1], 0)), (1, 1), cover)
            for start, rows in bands:
                offsets = product(*({offset for phase in axis for _, offset in phase} for axis in axes))
                contracted = {
                    (y, x): c.reshape(
                        planes.window(start + lead[0] + y, lead[1] + x, (rows, width)), (count * rows * width, w.inputs)
                    )
                    for y, x in sorted(offsets)
                }
                phases = [
                    [
                        _sum(c, w, [(contracted[y, x], matrices[i, j]) for (i, y), (j, x) in product(down, across)])
                        for across in axes[1]
                    ]
                    for down in axes[0]
                ]
                parts.append(interleaved(c, phases, count * rows, width))
        whole = tuple(n * s for n, s in zip(cells, op.strides, strict=True))
        grad = c.reshape(joined(c, parts), (batch, *whole, w.outputs))
        return grad if whole == op.size else c(tfl.Slice((0, 0, 0, 0), (batch, *op.size, w.outputs)), grad)

    # A block packs a copy of its own of what is known at compile time.
    return best_form("phases", cost, emit, batch, height, MOST_OPERATORS if w.constant else 3 * positions)


def input_grad_by_parts(c: Lowering, op: ops.Conv2DInputGrad, dy: Value, w: Filter) -> Form | None:
    """The same for a 1x1 filter: one product, then zeros between its pixels."""
    if w.kernel != (1, 1):
        return None
    (batch, height, width), (down, across) = dy.shape[:3], op.strides
    whole = (batch, height * down, width * across, w.outputs)

    def emit() -> Value:
        pixels = w.product(c.reshape(dy, (batch * height * width, w.inputs)), w.tap(0, 0))
        cells = c.reshape(pixels, (batch * height, 1, width, 1, w.outputs))
        spread = c(tfl.Pad(((0, 0), (0, down - 1), (0, 0), (0, across - 1), (0, 0))), cells)
        return crop(c, c.reshape(spread, whole), op.padding, op.size)

    cost = w.product_cost(batch * height * width, 1) + c.target.moved("shuffled", 8 * prod(whole))
    return Form("apart", cost, emit)


def _phases(kernel: int, stride: int, low: int) -> list[list[tuple[int, int]]]:
    """For each pixel of a cell the filter positions that it meets, and how many rows of dy further on."""
    contracted = []
    for pixel in range(low, low + stride):
        cell, first = divmod(pixel, stride)
        contracted.append([(first + n * stride, cell - n) for n in range(-(-(kernel - first) // stride))])
    return contracted


def _sum(c: Lowering, w: Filter, terms: Iterable[tuple[Value, Value]]) -> Value:
    total: Value | None = None
    for x, matrix in terms:
        part = w.product(x, matrix)
        total = part if total is None else c(tfl.Add(), total, part)
    assert total is not None
    return total
