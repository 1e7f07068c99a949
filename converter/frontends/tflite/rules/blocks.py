"""Operators between blocks of pixels, channels and rows."""

from __future__ import annotations

from math import prod

from converter.frontends.tflite.registry import Call, Result, Rules
from converter.ir import Value, ops

rule = Rules()


@rule("DEPTH_TO_SPACE")
def depth_to_space(call: Call, x: Value) -> Result:
    """Channels become blocks of pixels."""
    b, n, (rows, h, w, c) = call.b, int(call.option("blockSize")), x.shape
    separate = b.reshape(x, (rows, h, w, n, n, c // (n * n)))
    return b.reshape(b.transpose(separate, (0, 1, 3, 2, 4, 5)), (rows, h * n, w * n, c // (n * n)))


@rule("SPACE_TO_DEPTH")
def space_to_depth(call: Call, x: Value) -> Result:
    """Blocks of pixels become channels."""
    b, n, (rows, h, w, c) = call.b, int(call.option("blockSize")), x.shape
    separate = b.reshape(x, (rows, h // n, n, w // n, n, c))
    return b.reshape(b.transpose(separate, (0, 1, 3, 2, 4, 5)), (rows, h // n, w // n, n * n * c))


@rule("SPACE_TO_BATCH_ND")
def space_to_batch(call: Call, x: Value, block: Value, paddings: Value) -> Result:
    """Each place of a block becomes a batch of its own: [B, H, W, ...] -> [n m B, H / n, W / m, ...]."""
    b, sizes = call.b, [int(n) for n in call.known(block, "blocks").reshape(-1)]
    given = [(int(first), int(last)) for first, last in call.known(paddings, "paddings")]
    around = ((0, 0), *given, *((0, 0) for _ in x.shape[1 + len(given) :]))
    if any(first or last for first, last in around):
        x = b(ops.Pad(around), x)
    many = len(sizes)
    split = [number for size, n in zip(x.shape[1:], sizes, strict=False) for number in (size // n, n)]
    separate = b.reshape(x, (x.shape[0], *split, *x.shape[1 + many :]))
    places = [2 + 2 * i for i in range(many)]
    axes = (*places, 0, *(place - 1 for place in places), *range(1 + 2 * many, len(separate.shape)))
    moved = b.transpose(separate, axes)
    return b.reshape(moved, (x.shape[0] * prod(sizes), *moved.shape[many + 1 :]))


@rule("BATCH_TO_SPACE_ND")
def batch_to_space(call: Call, x: Value, block: Value, crops: Value) -> Result:
    """The other way round, with the edges cut off."""
    b, sizes = call.b, [int(n) for n in call.known(block, "blocks").reshape(-1)]
    many, rows = len(sizes), x.shape[0] // prod(sizes)
    separate = b.reshape(x, (*sizes, rows, *x.shape[1:]))
    axes = [many]
    for i in range(many):
        axes += [many + 1 + i, i]
    moved = b.transpose(separate, (*axes, *range(2 * many + 1, len(separate.shape))))
    shape = (rows, *(size * n for size, n in zip(x.shape[1:], sizes, strict=False)), *x.shape[1 + many :])
    whole = b.reshape(moved, shape)
    given = [(int(first), int(last)) for first, last in call.known(crops, "crops")]
    starts = (0, *(first for first, _ in given), *(0 for _ in shape[1 + many :]))
    kept = [size - first - last for size, (first, last) in zip(shape[1:], given, strict=False)]
    sizes_left = (rows, *kept, *shape[1 + many :])
    return whole if sizes_left == shape else b(ops.Slice(starts, sizes_left), whole)
