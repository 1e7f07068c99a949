"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering, LoweringRules
from converter.backend.lowering.forms import PER_STORED, Form
from converter.ir import FLOAT32, INT32, Value, known_result, ops, rows_at_once
from converter.ir.quantization import UNSCALED

lowers = LoweringRules()

#: Elements of a stored matrix that are there as float32 at once: of integers, and of float32, whose pieces are others
#: than the whole that `infer` has.
LARGEST_UNPACKED, LARGEST_COPIED = 1 << 21, 1 << 22
#: But in no more pieces, each of which is some operators, and of what the delegate runs apart it keeps a table of all
#: tensors; unless pieces are larger than so many elements, as of a head of 150,000 words.
MOST_PIECES, LARGEST_PIECE = 4, 1 << 22


@lowers(ops.MatMul)
def matmul(c: Lowering, op: ops.MatMul, x: Value, w: Value) -> Value:
    """A frozen weight goes through FULLY_CONNECTED, which packs it; two runtime operands through the cheaper form."""
    if x.dtype == INT32:
        return _of_integers(c, op, x, w)
    if max(len(x.shape), len(w.shape)) > 5:
        return _merged(c, op, x, w)
    if c.is_constant(w) and len(w.shape) == 2 and not op.adj_x:
        if w in c.transposed:
            op, w = replace(op, adj_y=not op.adj_y), c.transposed[w]
        # It takes the bias and the activation for nothing, and an int8 weight. But a weight that the gradient meets the
        # other way round is stored once, where BATCH_MATMUL is as quick.
        as_stored = w in c.shared and not op.adj_y and c.target.reads_as_stored
        return _whole_or_in_blocks(c, op, x, w, lambda: c(tfl.BatchMatmul(), x, w) if as_stored else dense(c, op, x, w))
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

    times = result.size // (rows * columns * matrices)
    each = c.target.product(rows, depth, columns, times=times) * c.target.fetching(times * rows, depth)
    transposed = c.target.moved("packed", x.type.nbytes if op.adj_x else 0)
    forms = [Form("batch_matmul", transposed + matrices * each, batch_matmul), *_in_blocks(c, op, x, w)]
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
            at_once = c.target.product(pixels, depth, columns) * c.target.fetching(pixels, depth)
            forms.append(Form("flat batch_matmul", at_once + copies, flat))
        if not op.adj_x or len(x.shape) == 2:
            forms.append(Form("fully_connected", as_dense, fully_connected))
    return c.cheapest(forms)


def _whole_or_in_blocks(c: Lowering, op: ops.MatMul, x: Value, w: Value, whole: Callable[[], Value]) -> Value:
    """A product with a frozen matrix; `whole` is the form for all depths that are not too deep."""
    in_blocks = _in_blocks(c, op, x, w)
    if not in_blocks:
        return whole()
    columns, depth = op.infer(x.type, w.type).shape[-1], x.shape[-1]
    rows = x.type.size // depth
    cost = c.target.product(rows, depth, columns, constant=True) * c.target.fetching(rows, depth)
    return c.cheapest([Form("whole", cost, whole), *in_blocks])


def _in_blocks(c: Lowering, op: ops.MatMul, x: Value, w: Value) -> list[Form]:
    """The sum of products of less depth, of an operand's columns with the other's rows, where it is too deep for one.

    A head over many words has such a gradient: 8000 deep, it takes a core with 512 KiB of cache 2.4 times as long.
    """
    of_x, of_w = len(x.shape) - (2 if op.adj_x else 1), len(w.shape) - (1 if op.adj_y else 2)
    result, depth = op.infer(x.type, w.type), x.shape[of_x]
    blocks = c.target.depth_blocks(depth)
    if blocks == 1:
        return []
    size = -(-depth // blocks)
    (rows, columns), matrices = result.shape[-2:], prod(w.shape[:-2])
    each = c.target.product(rows, size, columns, times=result.size // (rows * columns * matrices))
    moved = c.target.moved("packed", x.type.nbytes) if op.adj_x else 0.0
    moved += c.target.moved("delegated", 2 * (x.type.nbytes + w.type.nbytes))
    moved += (blocks - 1) * c.target.moved("delegated", 3 * result.nbytes)
    beside = w in c.shared and c.is_constant(w)
    if beside:  # the blocks are constants of their own
        moved += PER_STORED * c.target.per_mac["fully_connected.constant"] * w.type.nbytes

    def emit() -> Value:
        total: Value | None = None
        for begin in range(0, depth, size):
            count = min(size, depth - begin)
            operands = _part(c, x, of_x, begin, count), _part(c, w, of_w, begin, count)
            of_block = c(tfl.BatchMatmul(op.adj_x, op.adj_y), *operands)
            total = of_block if total is None else c(tfl.Add(), total, of_block)
        assert total is not None
        return total

    return [Form("depth in blocks", blocks * matrices * each + moved, emit, beside)]


def _part(c: Lowering, x: Value, axis: int, begin: int, size: int) -> Value:
    """So many places of an axis from one on."""
    from_, shape = [0] * len(x.shape), list(x.shape)
    from_[axis], shape[axis] = begin, size
    return c(tfl.Slice(tuple(from_), tuple(shape)), x)


def _exchanged(c: Lowering, op: ops.MatMul, x: Value, w: Value) -> Form:
    """(w' x')': where x has few rows they fill the columns of a tile, and XNNPACK reads w where it lies.

    The left operand of a product is transposed where it does not lie row by row; kernels that are no quicker than
    FULLY_CONNECTED, which packs both operands, do so, too.
    """
    result = op.infer(x.type, w.type)
    (rows, columns), depth = result.shape, w.shape[1 if op.adj_y else 0]
    reads = op.adj_y and c.target.per_mac["batch_matmul"] < c.target.per_mac["fully_connected.runtime"]
    transposed = c.target.moved("packed", 0 if reads else w.type.nbytes) + c.target.moved(
        "transpose", 2 * result.nbytes
    )
    cost = c.target.product(columns, depth, rows) * c.target.fetching(columns, depth) + transposed
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


@lowers(ops.DynamicRangeMatMul)
def dynamic_range_matmul(c: Lowering, op: ops.DynamicRangeMatMul, x: Value, w: Value) -> Value:
    """On rows [n, K]; the same bytes are the integers that the derivative unpacks."""
    return int8_matmul(c, ops.Int8MatMul(UNSCALED), x, c.quantized(_known(c, w), UNSCALED, w.name))


@lowers(ops.CastMatMul)
def cast_matmul(c: Lowering, op: ops.CastMatMul, x: Value, w: Value, *scales: Value) -> Value:
    """Pieces of the matrix, whole rows of it, are unpacked one after the other."""
    stored, rows = c.array(w), w.shape[0]
    most = LARGEST_COPIED if w.dtype == FLOAT32 else LARGEST_UNPACKED
    pieces = min(-(-w.type.size // most), max(MOST_PIECES, -(-w.type.size // LARGEST_PIECE)))
    size = rows if stored is None else rows_at_once(rows, pieces)
    parts = []
    for begin in range(0, rows, size):
        piece = w if stored is None or size >= rows else c.constant(stored[begin : begin + size], name=w.name)
        part = [c.constant(_known(c, of)[begin : begin + size], name=of.name) for of in scales]
        contracted = unpacked_in_blocks(c, piece, *part) if part else c(tfl.CastWeight(), piece)
        of = x if op.adj_y or size >= rows else _part(c, x, len(x.shape) - 1, begin, piece.shape[0])
        parts.append(matmul(c, ops.MatMul(adj_y=op.adj_y), of, contracted))
    if len(parts) == 1:
        return parts[0]
    if op.adj_y:
        return c(tfl.Concatenation(len(x.shape) - 1), *parts)
    return reduce(lambda total, part: c(tfl.Add(), total, part), parts)


def unpacked_in_blocks(c: Lowering, w: Value, scales: Value) -> Value:
    """Integers [A, B] as float32, times the scales of their blocks, [A, blocks]: a pass that costs next to nothing.

    The integers are the same bytes as [A, blocks, B / blocks], and scales of float16 become float32 beside them.
    """
    in_blocks = (*scales.shape, w.shape[1] // scales.shape[1])
    cut = c.constant(_known(c, w).reshape(in_blocks), name=w.name)
    of = c.constant(_known(c, scales).reshape(*scales.shape, 1), name=scales.name)
    of = of if of.dtype == FLOAT32 else c(tfl.CastWeight(), of)
    return c.reshape(c(tfl.Mul(), c(tfl.CastWeight(), cut), of), w.shape)


def _known(c: Lowering, constant: Value) -> np.ndarray:
    """The numbers of what is a constant."""
    numbers = c.array(constant)
    assert numbers is not None
    return numbers


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
