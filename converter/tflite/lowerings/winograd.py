"""Winograd's minimal filtering, F(2x2, 3x3): 16 products where the definition takes 36.

Tiles of 4x4 inputs, two apart, give 2x2 outputs each: y = A' [(G w G') * (B' x B)] A. The products over channels, one
for each of the 16 places of a tile, are matrix products over all tiles; the transforms are sums of slices. The
cotangent of the filter is the same in reverse: dw = G' [(B' x B) * (A dy A')] G. (Lavin and Gray 2015.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from converter.ir import Shape, Value, ops
from converter.tflite import builtins as tfl
from converter.tflite.forms import Form
from converter.tflite.lower import Lowering
from converter.tflite.lowerings.filters import Filter
from converter.tflite.lowerings.planes import (
    IN_USE,
    Block,
    Planes,
    best_form,
    interleaved,
    joined,
    joining_cost,
    prepared_cost,
)

TILE = 4
#: That a block takes.
OPERATORS = 90
#: G: the filter at a tile's places.
BASIS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
#: The same for the cotangent, which takes minus the last place of A dy.
GRAD_BASIS = BASIS * np.array([[1], [1], [1], [-1]], np.float32)
TWO = (2, 2)


def applies(op: ops.Windowed, kernel: Shape) -> bool:
    """Whether a convolution has the shape that this is for."""
    return tuple(kernel) == (3, 3) and op.strides == (1, 1) and op.dilation == (1, 1)


def forward(c: Lowering, op: ops.Windowed, x: Value, w: Filter, outputs: Shape, extra: float) -> Form:
    """A 3x3 convolution with stride 1."""
    batch, down, across = x.shape[0], -(-outputs[0] // 2), -(-outputs[1] // 2)
    result = 16 * batch * down * across * w.outputs

    def cost(block: Block) -> float:
        tiles = block.images * block.rows * across
        touched = IN_USE * 4 * tiles * (w.inputs + w.outputs)
        one = (
            _input_cost(c, tiles, w.inputs, touched)
            + TILE * TILE * w.product_cost(tiles, TILE * TILE)
            + c.target.moved("delegated", 18 * 16 * tiles * w.outputs, touched)
            + c.target.moved("shuffled", 4 * 16 * tiles * w.outputs, touched)
            + 60 * c.target.per_operator
        )
        count = block.number(batch, down)
        return (
            count * one + extra + w.spread_cost(TILE) + prepared_cost(c, block, x, TWO) + joining_cost(c, result, count)
        )

    def emit(block: Block) -> Value:
        matrices, parts = w.spread(BASIS), []
        for first, count, bands in block.cut(batch, down):
            planes = Planes(c, x, first, count, op.padding, TWO, (2 * down + 2, 2 * across + 2))
            for start, rows in bands:
                tiles = count * rows * across
                summed = []
                for met, row in zip(_input_places(c, planes, start, rows, across), matrices, strict=True):
                    products = [w.product(v, matrix) for v, matrix in zip(met, row, strict=True)]
                    summed.append(_outputs(c, products))
                columns = [_outputs(c, column) for column in zip(*summed, strict=True)]
                phases = [[column[i] for column in columns] for i in range(2)]
                assert phases[0][0].shape == (tiles, w.outputs)
                parts.append(interleaved(c, phases, count * rows, across))
        whole = c.reshape(joined(c, parts), (batch, 2 * down, 2 * across, w.outputs))
        size = (batch, *outputs, w.outputs)
        return whole if whole.shape == size else c(tfl.Slice((0, 0, 0, 0), size), whole)

    return best_form("winograd", cost, emit, batch, down, OPERATORS)


def filter_grad(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> Form:
    """The cotangent of its filter."""
    batch, down, across = x.shape[0], -(-dy.shape[1] // 2), -(-dy.shape[2] // 2)
    inputs, outputs = x.shape[3], dy.shape[3]
    places = 4 * TILE * TILE * inputs * outputs

    def cost(block: Block) -> float:
        tiles = block.images * block.rows * across
        touched = IN_USE * 4 * tiles * (inputs + outputs)
        one = (
            _input_cost(c, tiles, inputs, touched)
            + c.target.moved("delegated", 11 * 16 * tiles * outputs, touched)
            + c.target.moved("shuffled", 6 * 16 * tiles * outputs, touched)
            + c.target.moved("transpose", 8 * 16 * tiles * outputs, touched)
            + TILE * TILE * c.target.product(outputs, tiles, inputs, touched=touched)
            + 40 * c.target.per_operator
        )
        count = block.number(batch, down)
        sums = (count - 1) * c.target.moved("delegated", 3 * places)
        gather = c.target.moved("delegated", 4 * places) + c.target.moved("shuffled", places)
        prepared = prepared_cost(c, block, x, TWO) + prepared_cost(c, block, dy, TWO)
        return count * one + sums + gather + prepared + c.target.product(9, 16, inputs * outputs)

    def emit(block: Block) -> Value:
        grads: list[list[Value]] = []
        for first, count, bands in block.cut(batch, down):
            images = Planes(c, x, first, count, op.padding, TWO, (2 * down + 2, 2 * across + 2))
            cotangents = Planes(c, dy, first, count, ops.conv.NO_PADDING, TWO, (2 * down, 2 * across))
            for start, rows in bands:
                pairs = zip(
                    _input_places(c, images, start, rows, across),
                    _output_places(c, cotangents, start, rows, across),
                    strict=True,
                )
                part = [
                    [c(tfl.BatchMatmul(True, False), d, v) for v, d in zip(met, back, strict=True)]
                    for met, back in pairs
                ]
                grads = (
                    part
                    if not grads
                    else [
                        [c(tfl.Add(), old, new) for old, new in zip(*lines, strict=True)]
                        for lines in zip(grads, part, strict=True)
                    ]
                )
        lines = [c.reshape(grad, (1, outputs * inputs)) for line in grads for grad in line]
        basis = np.ascontiguousarray(np.kron(GRAD_BASIS, GRAD_BASIS).T)
        taps = c(tfl.BatchMatmul(), c.constant(basis), joined(c, lines))
        return c.transpose(c.reshape(taps, (3, 3, outputs, inputs)), (2, 0, 1, 3))

    return best_form("winograd", cost, emit, batch, down, OPERATORS)


def _input_cost(c: Lowering, tiles: int, channels: int, touched: int) -> float:
    """What `_input_places` costs."""
    return c.target.moved("delegated", 30 * 16 * tiles * channels, touched)


def _input_places(c: Lowering, planes: Planes, start: int, rows: int, across: int) -> Iterator[list[Value]]:
    """B' x B, a row of a tile's places after the other: four [tiles, channels] each."""
    lines = [planes.rows(2 * start + i, rows) for i in range(TILE)]
    for line in _inputs(c, lines):
        size = (1, *line.shape[1:2], across, line.shape[3])
        parts = [c(tfl.Slice((j % 2, 0, j // 2, 0), size), line) for j in range(TILE)]
        yield [c.reshape(v, (size[1] * across, size[3])) for v in _inputs(c, parts)]


def _output_places(c: Lowering, planes: Planes, start: int, rows: int, across: int) -> Iterator[list[Value]]:
    """A dy A' but for the sign of the last row and column, in the same order."""
    for line in _spread_outputs(c, *(planes.rows(2 * start + i, rows) for i in range(2))):
        size = (1, *line.shape[1:])
        parts = [c(tfl.Slice((j, 0, 0, 0), size), line) for j in range(2)]
        yield [c.reshape(v, (size[1] * across, size[3])) for v in _spread_outputs(c, *parts)]


def _inputs(c: Lowering, d: Sequence[Value]) -> list[Value]:
    """B' along one axis."""
    return [c(tfl.Sub(), d[0], d[2]), c(tfl.Add(), d[1], d[2]), c(tfl.Sub(), d[2], d[1]), c(tfl.Sub(), d[1], d[3])]


def _outputs(c: Lowering, m: Sequence[Value]) -> list[Value]:
    """A' along one axis."""
    first = c(tfl.Add(), m[0], c(tfl.Add(), m[1], m[2]))
    return [first, c(tfl.Sub(), c(tfl.Sub(), m[1], m[2]), m[3])]


def _spread_outputs(c: Lowering, first: Value, second: Value) -> list[Value]:
    """A along one axis, with the last place positive."""
    return [first, c(tfl.Add(), first, second), c(tfl.Sub(), first, second), second]
