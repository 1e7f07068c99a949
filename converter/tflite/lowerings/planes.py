"""Images cut into blocks and planes, so that what a filter position meets is a slice of whole rows, in the cache.

With a stride s an image becomes s*s planes, each every s-th row and column of it: a SLICE with a stride is slow, and
one of a plane is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import NamedTuple

from converter.ir import Shape, Value, ops
from converter.tflite import builtins as tfl
from converter.tflite.forms import Form
from converter.tflite.lower import Lowering
from converter.tflite.lowerings.windows import pad_explicitly

#: Operands of a CONCATENATION that XNNPACK takes.
MOST_JOINED = 4
#: What beginning a pixel's row of a CONCATENATION costs, of what copying a run does.
ROW = 0.25
#: Operators that one op may become: more of them make a program long to build and to load.
MOST_OPERATORS = 256
#: Bytes in use around one element (of the block's inputs and outputs together) while a block is computed.
IN_USE = 10


class Block(NamedTuple):
    """How much is computed at a time: `images` whole ones, or `rows` of the output of one."""

    images: int
    rows: int

    def cut(self, batch: int, height: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """(first image, images, [(first row, rows)]) of all blocks."""
        for first in range(0, batch, self.images):
            bands = [(row, min(self.rows, height - row)) for row in range(0, height, self.rows)]
            yield first, min(self.images, batch - first), bands

    def number(self, batch: int, height: int) -> int:
        """How many blocks there are."""
        return ceil(batch / self.images) * ceil(height / self.rows)


def best_form(
    name: str, cost: Callable[[Block], float], emit: Callable[[Block], Value], batch: int, height: int, operators: int
) -> Form:
    """A form with the block that is cheapest for a batch of images with `height` rows.

    Args:
        name: of the form.
        cost: of computing all in such blocks.
        emit: what writes it in such blocks.
        batch: images.
        height: rows of an image.
        operators: that a block takes, about.
    """
    blocks = [Block(1, ceil(height / parts)) for parts in (8, 4, 2, 1) if height >= 4 * parts or parts == 1]
    images = 2
    while images < 2 * batch:
        blocks.append(Block(min(images, batch), height))
        images *= 2
    most = max(1, MOST_OPERATORS // operators)
    fit = [block for block in blocks if block.number(batch, height) <= most or block == blocks[-1]]
    least, block = min((cost(block), block) for block in fit)
    return Form(name, least, partial(emit, block))


def reach(outputs: Shape, kernel: Shape, strides: Shape, dilation: Shape) -> tuple[int, ...]:
    """Rows and columns of the padded input that a convolution with these outputs meets."""
    axes = zip(outputs, kernel, strides, dilation, strict=True)
    return tuple((n - 1) * s + (k - 1) * d + 1 for n, k, s, d in axes)


def prepared_cost(c: Lowering, block: Block, x: Value, strides: Shape) -> float:
    """What cutting a batch into padded planes costs."""
    touched = 3 * x.type.nbytes * block.images // x.shape[0]
    copies = 2 if block.images < x.shape[0] else 1
    planes = c.target.moved("shuffled", 2 * x.type.nbytes, touched) if strides != (1, 1) else 0.0
    return c.target.moved("delegated", 2 * copies * x.type.nbytes, touched) + planes


class Planes:
    """Some images of a batch, padded, as strides[0] * strides[1] planes."""

    def __init__(
        self, c: Lowering, x: Value, first: int, count: int, padding: ops.Padding, strides: Shape, cover: Shape
    ) -> None:
        """Pads and cuts.

        Args:
            c: where to emit.
            x: [N, H, W, C].
            first: the first image.
            count: how many images.
            padding: before height and width, and as much behind as `cover` asks for.
            strides: of the convolution, height and width.
            cover: rows and columns of the padded image that are met.
        """
        self.c, self.strides, self.count, self.channels = c, strides, count, x.shape[3]
        self.size = tuple(ceil(n / s) for n, s in zip(cover, strides, strict=True))
        self._first = 0
        if strides == (1, 1) and self.size == x.shape[1:3] and padding[0][0] == padding[1][0] == 0:
            self._first, self.images = first, x  # windows are slices of the batch itself
            return
        if count < x.shape[0]:
            x = c(tfl.Slice((first, 0, 0, 0), (count, *x.shape[1:])), x)
        behind = [m * s - n - low for m, s, n, (low, _) in zip(self.size, strides, x.shape[1:3], padding, strict=True)]
        x = pad_explicitly(c, x, ((padding[0][0], behind[0]), (padding[1][0], behind[1])))
        if strides != (1, 1):
            rows, columns = self.size
            x = c.reshape(x, (count * rows, strides[0], columns, strides[1], self.channels))
            x = c.transpose(x, (3, 1, 0, 2, 4))
        # Planes by column and row, then images: [sw * sh * count, rows, columns, C].
        self.images = c.reshape(x, (strides[1] * strides[0] * count, *self.size, self.channels))

    def window(self, row: int, column: int, size: Shape) -> Value:
        """[count, *size, C]: every stride-th element of the padded images from (row, column) on."""
        sh, sw = self.strides
        plane = self._first + (column % sw * sh + row % sh) * self.count
        begin, whole = (plane, row // sh, column // sw, 0), (self.count, *size, self.channels)
        return self.images if whole == self.images.shape else self.c(tfl.Slice(begin, whole), self.images)


def joined(c: Lowering, parts: Sequence[Value], axis: int = 0) -> Value:
    """CONCATENATION of any number, few at a time."""
    while len(parts) > 1:
        groups = [parts[i : i + MOST_JOINED] for i in range(0, len(parts), MOST_JOINED)]
        parts = [c(tfl.Concatenation(axis), *group) if len(group) > 1 else group[0] for group in groups]
    return parts[0]


def joining_cost(c: Lowering, nbytes: int, parts: int) -> float:
    """What `joined` costs for a result of `nbytes`."""
    cost = 0.0
    while parts > 1:
        parts = ceil(parts / MOST_JOINED)
        cost += c.target.moved("delegated", 2 * nbytes)
    return cost


def interleaved(c: Lowering, phases: Sequence[Sequence[Value]], rows: int, columns: int) -> Value:
    """[rows, sh * columns * sw * C]: the images whose pixel (i, j) of each sh x sw cell is phases[i][j], rows flat.

    Args:
        c: where to emit.
        phases: each [rows * columns, C].
        rows: of cells, of all images.
        columns: of cells.
    """
    channels = phases[0][0].type.size // (rows * columns)
    lines = []
    for row in phases:
        line = joined(c, [c.reshape(part, (rows * columns, channels)) for part in row], 1)
        lines.append(c.reshape(line, (rows, columns * len(row) * channels)))
    return joined(c, lines, 1)
