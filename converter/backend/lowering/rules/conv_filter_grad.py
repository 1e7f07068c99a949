"""Filter gradients of convolutions; those of depthwise ones are in `depthwise.py`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering, LoweringRules
from converter.backend.lowering.forms import Form
from converter.backend.lowering.rules.gathered import columns_of, gathered
from converter.backend.lowering.rules.tiles import (
    Planes,
    Tile,
    best_form,
    in_use,
    joined,
    joining_cost,
    prepared_cost,
    reach,
    windows,
    windows_cost,
)
from converter.backend.lowering.rules.windows import macs, pad_explicitly, zero_bias
from converter.ir import Value, ops

lowers = LoweringRules()


@lowers(ops.Conv2DFilterGrad)
def conv_filter_grad(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> Value:
    builtin = Form("builtin", _by_conv_cost(c, op, x, dy), lambda: _by_conv(c, op, x, dy))
    if c.target.is_micro:
        pointwise = op.kernel == op.strides == (1, 1) and not any(map(any, op.padding))
        return _by_pixels(c, x, dy) if pointwise else builtin.emit()
    forms = [builtin, *_by_products(c, op, x, dy)]
    shape = (dy.shape[3], *op.kernel, x.shape[3])

    def after(rest: ops.Conv2D, contracted: Value) -> list[Form]:
        _, rows, columns, _ = columns_of(Value(x.type.with_shape(shape)), contracted)
        grad = ops.Conv2DFilterGrad(rest.strides, rest.padding, rest.dilation, kernel=(rows, columns))
        return [
            replace(form, emit=partial(lambda emit: c.reshape(emit(), shape), form.emit))
            for form in _by_products(c, grad, contracted, dy)
        ]

    return c.cheapest(forms + gathered(c, op, x, op.kernel, after))


def _by_pixels(c: Lowering, x: Value, dy: Value) -> Value:
    """Of a 1x1 filter: a convolution of dy with x, all pixels of a channel being one window, and no RESHAPE.

    The longest axis of pixels stands last, where the kernel has its innermost loop.
    """
    *others, longest = sorted(range(3), key=lambda axis: x.shape[axis])
    image, kernel = (c.transpose(v, (3, *others, longest)) for v in (dy, x))
    return c(tfl.Conv2D((1, 1), "VALID", (1, 1)), image, kernel, zero_bias(c, x.shape[3]))


def _by_products(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> list[Form]:
    forms = [_by_rows(c, op, x, dy), _by_rows(c, op, x, dy, by_inputs=True)]
    if op.kernel[0] > 1 == op.kernel[1]:  # a row of several columns is deep enough by itself
        forms.append(_by_rows(c, op, x, dy, by_inputs=True, whole=True))
    return forms


def _by_conv_cost(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> float:
    """After the exchange a pixel has a channel for each image: it is copied in short runs where images are few."""
    exchanged = c.target.moved("transpose", 2 * (x.type.nbytes + dy.type.nbytes))
    height, width = (n + sum(around) for n, around in zip(x.shape[1:3], op.padding, strict=True))
    padded = x.shape[3] * height * width * c.target.run if any(op.padding[1]) else 0.0
    patches = x.shape[3] * prod(op.kernel) * dy.type.size // dy.shape[3]
    pieces = patches // dy.shape[0] if op.strides != (1, 1) else patches // (dy.shape[0] * dy.shape[2])
    results = x.shape[3] * prod(op.kernel) * dy.shape[3]
    gathered = c.target.gathered(macs(op, x, dy), patches, results, pieces)
    return max(gathered, c.target.macs("conv.runtime", macs(op, x, dy))) + exchanged + padded


def _by_conv(c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value) -> Value:
    """A convolution of x with dy, batch and channels exchanged: its output positions are the filter's."""
    # PAD copies run by run of the last axis: after the exchange a run is no longer a pixel's few channels.
    image, kernel = (c.transpose(v, (3, 1, 2, 0)) for v in (x, dy))
    image = pad_explicitly(c, image, op.padding)
    grad = c(tfl.Conv2D(op.dilation, "VALID", op.strides), image, kernel, zero_bias(c, dy.shape[3]))
    return c.transpose(c(tfl.Slice((0, 0, 0, 0), (x.shape[3], *op.kernel, dy.shape[3])), grad), (3, 1, 2, 0))


def _by_rows(
    c: Lowering, op: ops.Conv2DFilterGrad, x: Value, dy: Value, by_inputs: bool = False, whole: bool = False
) -> Form:
    """What the filter's columns meet stands side by side; each of its rows is a product with dy, summed over blocks.

    Args:
        c: where to emit.
        op: the op.
        x: the convolution's input.
        dy: its output's cotangent.
        by_inputs: products are [kw * inputs, outputs], of x transposed; else [outputs, kw * inputs], of dy transposed.
        whole: by inputs, what the rows meet stands side by side, too, and there is one product.
    """
    (batch, height, width, outputs), channels, (kh, kw) = dy.shape, x.shape[3], op.kernel
    products, place = 1 if whole else kh, 4 * outputs * kh * kw * channels
    # A left operand that is read once, and as it is, is transposed by the kernel.
    plain = op.kernel == op.strides == (1, 1)

    def cost(block: Tile) -> float:
        rows, count = block.images * block.rows * width, block.number(batch, height)
        contracted = kh * kw * channels // products
        touched = in_use(rows, channels, outputs, contracted // channels)
        shape = (contracted, rows, outputs) if by_inputs else (outputs, rows, contracted)
        one = products * c.target.product(*shape, touched=touched)
        one += c.target.moved(
            "transpose", 8 * rows * outputs if not by_inputs else 8 * rows * channels * plain, touched
        )
        if plain:
            one += c.target.moved("delegated", 8 * rows * channels if count > 1 else 0, touched)
        else:
            one += windows_cost(c, block, op, x, op.kernel, width, touched, transposed=by_inputs)
        if whole:
            one += joining_cost(c, 4 * rows * contracted, kh, touched)
        cut = c.target.moved("delegated", 8 * rows * outputs, touched) if count > 1 else 0.0
        sums = (count - 1) * c.target.moved("delegated", 3 * place)
        gather = c.target.moved("transpose" if by_inputs else "delegated", 2 * place)
        return count * (one + cut) + sums + gather + (0.0 if plain else prepared_cost(c, block, x))

    def emit(block: Tile) -> Value:
        grads: list[Value] = []
        cover = reach((height, width), op.kernel, op.strides, op.dilation)
        for first, count, bands in block.cut(batch, height):
            planes = Planes.cut(c, x, first, count, op.padding, op.strides, cover)
            if by_inputs and not plain:
                planes = planes.with_channels_first()
            planes = planes.beside([j * op.dilation[1] for j in range(kw)], width)
            for start, rows in bands:
                contracted = windows(planes, op, op.kernel, start, (rows, width))
                part = _rows(c, dy, first, count, start, rows)
                if not by_inputs and kh > 1:
                    part = c.transpose(part, (1, 0))
                for n, line in enumerate([joined(c, list(contracted))] if whole else contracted):
                    if by_inputs:
                        grad = c(tfl.BatchMatmul(plain, False), line, part)
                    else:
                        grad = c(tfl.BatchMatmul(kh == 1, False), part, line)
                    if n == len(grads):
                        grads.append(grad)
                    else:
                        grads[n] = c(tfl.Add(), grads[n], grad)
        if by_inputs:
            stacked = joined(c, [c.reshape(grad, (1, *grad.shape)) for grad in grads])
            return c.reshape(c.transpose(stacked, (2, 0, 1)), (outputs, *op.kernel, channels))
        columns = joined(c, [c.reshape(grad, (outputs, 1, kw * channels)) for grad in grads], 1)
        return c.reshape(columns, (outputs, *op.kernel, channels))

    name = ("patches" if whole else "rows") + " by inputs" * by_inputs
    return best_form(name, cost, emit, batch, height, kw + 4 + kh + 3 * products)


def _rows(c: Lowering, dy: Value, first: int, count: int, start: int, rows: int) -> Value:
    """A block of the cotangent, [pixels, channels]."""
    whole = (count, rows, *dy.shape[2:])
    part = dy if dy.shape == whole else c(tfl.Slice((first, start, 0, 0), whole), dy)
    return c.reshape(part, (count * rows * dy.shape[2], dy.shape[3]))
