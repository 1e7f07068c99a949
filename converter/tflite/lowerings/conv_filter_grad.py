"""The cotangent of a convolution's filter."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from converter.ir import Shape, Value, ops
from converter.tflite import builtins as tfl
from converter.tflite.forms import Form
from converter.tflite.lower import Lowering, lowers
from converter.tflite.lowerings.gathered import columns_of, gathered
from converter.tflite.lowerings.planes import IN_USE, ROW, Block, Planes, best_form, joined, prepared_cost, reach
from converter.tflite.lowerings.windows import macs, pad_explicitly, zero_bias


@lowers(ops.Conv2DFilterGrad)
def conv_filter_grad(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> Value:
    exchanged = c.target.moved("transpose", 2 * (x.type.nbytes + dy.type.nbytes))
    by_conv = c.target.macs("conv.runtime", macs(op, x, dy)) + exchanged
    forms = [Form("builtin", by_conv, lambda: _by_conv(c, op, x, dy)), *_by_products(c, op, x, dy)]
    shape = (dy.shape[3], *op.kernel, x.shape[3])

    def behind(rest: ops.Conv2D, met: Value) -> list[Form]:
        _, rows, columns, _ = columns_of(Value(x.type.with_shape(shape)), met)
        grad = ops.Conv2DFilterGrad(rest.strides, rest.padding, rest.dilation, kernel=(rows, columns))
        return [
            replace(form, emit=partial(lambda emit: c.reshape(emit(), shape), form.emit))
            for form in _by_products(c, grad, met, dy)
        ]

    return c.cheapest(forms + gathered(c, op, x, op.kernel, behind))


def _by_products(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> list[Form]:
    forms = [_by_taps(c, op, x, dy), _by_taps(c, op, x, dy, by_inputs=True)]
    return forms if op.kernel == (1, 1) else [*forms, _by_patches(c, op, x, dy)]


def _by_conv(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> Value:
    """A convolution of x with dy, batch and channels exchanged: its output positions are the filter's."""
    # PAD copies run by run of the last axis: after the exchange a run is no longer a pixel's few channels.
    image, kernel = (c.transpose(v, (3, 1, 2, 0)) for v in (x, dy))
    image = pad_explicitly(c, image, op.padding)
    grad = c(tfl.Conv2D(op.dilation, "VALID", op.strides), image, kernel, zero_bias(c, dy.shape[3]))
    return c.transpose(c(tfl.Slice((0, 0, 0, 0), (x.shape[3], *op.kernel, dy.shape[3])), grad), (3, 1, 2, 0))


def _by_patches(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> Form:
    """One product with what all filter positions meet, side by side: better than many narrow ones."""
    (batch, height, width, outputs), channels, positions = dy.shape, x.shape[3], prod(op.kernel)

    def cost(block: Block) -> float:
        rows, count = block.images * block.rows * width, block.number(batch, height)
        patches = 4 * rows * positions * channels
        touched = 3 * patches
        one = (
            c.target.product(outputs, rows, positions * channels, touched=touched)
            + c.target.moved("delegated", 4 * patches, touched)
            + c.target.moved("transpose", 8 * rows * outputs, touched)
            + positions * (c.target.per_operator + rows * ROW * c.target.run)
        )
        place = 4 * outputs * positions * channels
        return (
            count * one + (count - 1) * c.target.moved("delegated", 3 * place) + prepared_cost(c, block, x, op.strides)
        )

    def emit(block: Block) -> Value:
        grad: Value | None = None
        cover = reach((height, width), op.kernel, op.strides, op.dilation)
        for first, count, bands in block.cut(batch, height):
            planes = Planes(c, x, first, count, op.padding, op.strides, cover)
            for start, rows in bands:
                met = _windows(planes, op, start, (rows, width), op.kernel)
                size = count * rows * width
                patches = c.reshape(c(tfl.Concatenation(3), *met), (size, positions * channels))
                part = c(tfl.BatchMatmul(True, False), _rows(c, dy, first, count, start, rows), patches)
                grad = part if grad is None else c(tfl.Add(), grad, part)
        assert grad is not None
        return c.reshape(grad, (outputs, *op.kernel, channels))

    return best_form("patches", cost, emit, batch, height, positions + 4)


def _windows(planes: Planes, op: ops.Windowed, start: int, size: tuple[int, int], kernel: Shape) -> list[Value]:
    """What each filter position meets of the rows of the output from `start` on."""
    return [
        planes.window(start * op.strides[0] + i * op.dilation[0], j * op.dilation[1], size)
        for i, j in np.ndindex(*kernel)
    ]


def _rows(c: Lowering, dy: Value, first: int, count: int, start: int, rows: int) -> Value:
    """A block of the cotangent, [pixels, channels]."""
    whole = (count, rows, *dy.shape[2:])
    part = dy if dy.shape == whole else c(tfl.Slice((first, start, 0, 0), whole), dy)
    return c.reshape(part, (count * rows * dy.shape[2], dy.shape[3]))


def _by_taps(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value, by_inputs: bool = False) -> Form:
    """One matrix product for each filter position, of dy with the inputs that it meets, summed over blocks.

    Args:
        c: where to emit.
        op: the op.
        x: the convolution's input.
        dy: its output's cotangent.
        by_inputs: the product is [inputs, outputs]: what is met is transposed, and dy fills the columns.
    """
    batch, height, width, outputs = dy.shape
    positions, channels = list(np.ndindex(*op.kernel)), x.shape[3]
    place = 4 * outputs * channels

    def cost(block: Block) -> float:
        rows = block.images * block.rows * width
        touched, count = IN_USE * rows * (channels + outputs), block.number(batch, height)
        shape = (channels, rows, outputs) if by_inputs else (outputs, rows, channels)
        one = c.target.product(*shape, touched=touched)
        if len(positions) > 1 or op.strides != (1, 1) or count > 1:
            one += c.target.moved("delegated", 8 * rows * channels, touched)
        turned = c.target.moved("transpose", 8 * rows * (channels if by_inputs else outputs), touched)
        turns = len(positions) if by_inputs else 1
        cut = c.target.moved("delegated", 8 * rows * outputs, touched) if count > 1 else 0.0
        sums = (count - 1) * c.target.moved("delegated", 3 * place, 3 * place * len(positions))
        gather = c.target.moved("transpose" if by_inputs else "delegated", 2 * place * len(positions))
        prepared = prepared_cost(c, block, x, op.strides) if len(positions) > 1 or op.strides != (1, 1) else 0.0
        return count * (len(positions) * one + turns * turned + cut) + len(positions) * sums + gather + prepared

    def emit(block: Block) -> Value:
        grads: list[Value] = []
        cover = reach((height, width), op.kernel, op.strides, op.dilation)
        for first, count, bands in block.cut(batch, height):
            planes = Planes(c, x, first, count, op.padding, op.strides, cover)
            for start, rows in bands:
                part = _rows(c, dy, first, count, start, rows)
                if not by_inputs and len(positions) > 1:
                    part = c.transpose(part, (1, 0))
                for n, window in enumerate(_windows(planes, op, start, (rows, width), op.kernel)):
                    met = c.reshape(window, (count * rows * width, channels))
                    if by_inputs:
                        grad = c(tfl.BatchMatmul(True, False), met, part)
                    else:
                        grad = c(tfl.BatchMatmul(len(positions) == 1, False), part, met)
                    if n == len(grads):
                        grads.append(grad)
                    else:
                        grads[n] = c(tfl.Add(), grads[n], grad)
        if by_inputs:
            stacked = joined(c, [c.reshape(grad, (1, channels, outputs)) for grad in grads])
            return c.reshape(c.transpose(stacked, (2, 0, 1)), (outputs, *op.kernel, channels))
        columns = joined(c, [c.reshape(grad, (outputs, 1, channels)) for grad in grads], 1)
        return c.reshape(columns, (outputs, *op.kernel, channels))

    return best_form("taps by inputs" if by_inputs else "taps", cost, emit, batch, height, 3 * len(positions) + 1)
