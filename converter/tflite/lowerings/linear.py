"""Matrix products."""

from __future__ import annotations

from math import prod

import numpy as np

from converter.ir import Value, ops
from converter.tflite import builtins as tfl
from converter.tflite.forms import Form
from converter.tflite.lower import Lowering, lowers


@lowers(ops.MatMul)
def matmul(c: Lowering, op: ops.MatMul, x: Value, w: Value) -> Value:
    """A frozen weight goes through FULLY_CONNECTED, which packs it; two runtime operands through the cheaper form."""
    macs = op.cost((x.type, w.type), (op.infer(x.type, w.type),)).flops // 2

    def batch_matmul() -> Value:
        return c(tfl.BatchMatmul(op.adj_x, op.adj_y), x, w)

    def fully_connected() -> Value:
        return dense(c, op, x, w)

    forms = [Form("batch_matmul", c.target.macs("batch_matmul", macs), batch_matmul)]
    if len(w.shape) == 2 and not op.adj_x:
        extra = 0 if op.adj_y or c.is_constant(w) else 2 * w.type.nbytes  # FULLY_CONNECTED wants [O, I]
        form = "fully_connected.constant" if c.is_constant(w) else "fully_connected.runtime"
        cost = c.target.macs(form, macs) + c.target.moved("transpose", extra)
        forms.append(Form("fully_connected", cost, fully_connected))
    elif len(w.shape) == 2 and len(x.shape) == 2:
        swaps = c.target.moved("transpose", 2 * (w.type.nbytes + x.type.nbytes))
        forms.append(Form("fully_connected", c.target.macs("fully_connected.runtime", macs) + swaps, fully_connected))
    return c.cheapest(forms)


@lowers(ops.Int8MatMul)
def int8_matmul(c: Lowering, op: ops.Int8MatMul, x: Value, w: Value) -> Value:
    """On rows [n, I]: the interpreter's own BATCH_MATMUL is wrong where an int8 matrix is broadcast over images."""
    rows = c.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
    kernel = tfl.FullyConnected() if op.adj_y else tfl.BatchMatmul()
    product = c(tfl.DynamicRange((None, op.of), kernel), rows, w)
    return c.reshape(product, (*x.shape[:-1], product.shape[-1]))


def dense(c: Lowering, op: ops.MatMul, x: Value, w: Value) -> Value:
    """FULLY_CONNECTED of [..., I] with a matrix, whichever way round they lie."""
    if op.adj_x:
        x = swapped(c, x)
    w = w if op.adj_y else swapped(c, w)
    rows = c.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
    return c.reshape(c(tfl.FullyConnected(), rows, w), (*x.shape[:-1], w.shape[0]))


def swapped(c: Lowering, x: Value) -> Value:
    """The last two axes exchanged; at compile time for a constant."""
    perm = (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
    array = c.array(x)
    return c.transpose(x, perm) if array is None else c.constant(np.transpose(array, perm), name=x.name)
