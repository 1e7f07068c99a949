"""The cotangent of a convolution's filter."""

from __future__ import annotations

import numpy as np

from converter.ir import Value, ops
from converter.tflite import builtins as tfl
from converter.tflite.forms import Form
from converter.tflite.lower import Lowering, lowers
from converter.tflite.lowerings import winograd
from converter.tflite.lowerings.planes import IN_USE, Block, Planes, best_form, joined, prepared_cost, reach
from converter.tflite.lowerings.windows import macs, pad_explicitly, zero_bias


@lowers(ops.Conv2DFilterGrad)
def conv_filter_grad(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> Value:
    exchanged = c.target.moved("transpose", 2 * (x.type.nbytes + dy.type.nbytes))
    by_conv = c.target.macs("conv.runtime", macs(op, x, dy)) + exchanged
    forms = [
        Form("builtin", by_conv, lambda: _by_conv(c, op, x, dy)),
        _by_taps(c, op, x, dy),
        _by_taps(c, op, x, dy, by_inputs=True),
    ]
    if winograd.applies(op, op.kernel):
        forms.append(winograd.filter_grad(c, op, x, dy))
    return c.cheapest(forms)


def _by_conv(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> Value:
    """A convolution of x with dy, batch and channels exchanged: its output positions are the filter's."""
    padded = pad_explicitly(c, x, op.padding)
    image, kernel = c.transpose(padded, (3, 1, 2, 0)), c.transpose(dy, (3, 1, 2, 0))
    grad = c(tfl.Conv2D(op.dilation, "VALID", op.strides), image, kernel, zero_bias(c, dy.shape[3]))
    return c.transpose(c(tfl.Slice((0, 0, 0, 0), (x.shape[3], *op.kernel, dy.shape[3])), grad), (3, 1, 2, 0))


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
                whole = (count, rows, width, outputs)
                part = dy if dy.shape == whole else c(tfl.Slice((first, start, 0, 0), whole), dy)
                part = c.reshape(part, (count * rows * width, outputs))
                if not by_inputs and len(positions) > 1:
                    part = c.transpose(part, (1, 0))
                for n, (i, j) in enumerate(positions):
                    row, column = start * op.strides[0] + i * op.dilation[0], j * op.dilation[1]
                    met = c.reshape(planes.window(row, column, (rows, width)), (count * rows * width, channels))
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
