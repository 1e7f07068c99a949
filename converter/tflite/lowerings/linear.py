"""Matrix products."""

from __future__ import annotations

from math import prod

from converter.ir import INT32, Value, known_result, ops
from converter.tflite import builtins as tfl
from converter.tflite.forms import Form
from converter.tflite.lower import Lowering, lowers


@lowers(ops.MatMul)
def matmul(c: Lowering, op: ops.MatMul, x: Value, w: Value) -> Value:
    """A frozen weight goes through FULLY_CONNECTED, which packs it; two runtime operands through the cheaper form."""
    if x.dtype == INT32:
        return _of_integers(c, op, x, w)
    if max(len(x.shape), len(w.shape)) > 5:
        return _merged(c, op, x, w)
    if c.is_constant(w) and len(w.shape) == 2 and not op.adj_x:
        # It takes the bias and the activation for nothing, and an int8 weight. But a weight that the gradient meets the
        # other way round is stored once, where BATCH_MATMUL is as quick.
        quick = c.target.per_mac["batch_matmul"] < 1.1 * c.target.per_mac["fully_connected.constant"]
        return c(tfl.BatchMatmul(), x, w) if w in c.shared and not op.adj_y and quick else dense(c, op, x, w)
    result = op.infer(x.type, w.type)
    (rows, columns), depth = result.shape[-2:], x.shape[-2 if op.adj_x else -1]
    matrices = prod(w.shape[:-2])

    def batch_matmul() -> Value:
        return c(tfl.BatchMatmul(op.adj_x, op.adj_y), x, w)

    def fully_connected() -> Value:
        return dense(c, op, x, w)

    def flat() -> Value:
        pixels = c.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
        return c.reshape(c(tfl.BatchMatmul(False, op.adj_y), pixels, w), result.shape)

    each = c.target.product(rows, depth, columns, times=result.size // (rows * columns * matrices))
    turned = c.target.moved("packed", x.type.nbytes if op.adj_x else 0)
    forms = [Form("batch_matmul", turned + matrices * each, batch_matmul)]
    if len(w.shape) == len(x.shape) == 2:
        forms.append(_exchanged(c, op, x, w))
    if len(w.shape) == 2:
        pixels = result.size // columns
        # Its kernel packs the weight, too, and wants it as [O, I], the rows as [n, I].
        moved = c.target.moved("packed", w.type.nbytes)
        moved += c.target.moved("transpose", 2 * (op.adj_x * x.type.nbytes + (not op.adj_y) * w.type.nbytes))
        as_dense = c.target.tiles("fully_connected.runtime", pixels, depth, columns) + moved
        if not op.adj_x and len(x.shape) > 2:
            copies = c.target.reshaped(x.type.nbytes + result.nbytes)
            forms.append(Form("flat batch_matmul", c.target.product(pixels, depth, columns) + copies, flat))
        if not op.adj_x or len(x.shape) == 2:
            forms.append(Form("fully_connected", as_dense, fully_connected))
    return c.cheapest(forms)


def _exchanged(c: Lowering, op: ops.MatMul, x: Value, w: Value) -> Form:
    """(w' x')': where x has few rows they fill the columns of a tile, and XNNPACK reads w where it lies.

    The left operand of a product is turned where it does not lie row by row; kernels that are no quicker than
    FULLY_CONNECTED, which packs both operands, do so, too.
    """
    result = op.infer(x.type, w.type)
    (rows, columns), depth = result.shape, w.shape[1 if op.adj_y else 0]
    reads = op.adj_y and c.target.per_mac["batch_matmul"] < c.target.per_mac["fully_connected.runtime"]
    turned = c.target.moved("packed", 0 if reads else w.type.nbytes) + c.target.moved("transpose", 2 * result.nbytes)
    cost = c.target.product(columns, depth, rows) + turned
    return Form(
        "exchanged",
        cost,
        lambda: c.transpose(c(tfl.BatchMatmul(not op.adj_y, not op.adj_x), w, x), (1, 0)),
    )


def _of_integers(c: Lowering, op: ops.MatMul, x: Value, w: Value) -> Value:
    """The kernels of matrix products know no int32: products of all pairs, summed."""
    left = swapped(c, x) if op.adj_x else x
    right = swapped(c, w) if op.adj_y else w
    pairs = c(tfl.Mul(), c.reshape(left, (*left.shape, 1)), c.reshape(right, (*right.shape[:-2], 1, *right.shape[-2:])))
    return c(tfl.Sum((len(pairs.shape) - 2,)), pairs)


def _merged(c: Lowering, op: ops.MatMul, x: Value, w: Value) -> Value:
    """The kernels take five axes: more leading ones become one."""
    result = op.infer(x.type, w.type)
    batch = result.shape[:-2]
    flat = [c.reshape(c.broadcast_to(v, (*batch, *v.shape[-2:])), (prod(batch), *v.shape[-2:])) for v in (x, w)]
    return c.reshape(c(tfl.BatchMatmul(op.adj_x, op.adj_y), *flat), result.shape)


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
    array, turn = c.array(x), ops.Transpose(perm)
    known = None if array is None else known_result(turn, turn.infer(x.type), array)
    return c.transpose(x, perm) if known is None else c.constant(known, name=x.name)
