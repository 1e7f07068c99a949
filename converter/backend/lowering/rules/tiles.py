"""Image tiling: blocks in which the inputs of a filter's rows are a slice of whole rows, in the cache.

With a stride s, neighbouring rows, and neighbouring pixels of a row, are grouped into cells of s: every s-th of them is
a SLICE of all cells, where a SLICE with a stride would be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, prod
from typing import NamedTuple

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering
from converter.backend.lowering.forms import Form
from converter.backend.lowering.rules.windows import pad_explicitly
from converter.ir import Shape, Value, ops

#: Operands of a CONCATENATION that XNNPACK takes.
MOST_JOINED = 4
#: What beginning a pixel's row of a CONCATENATION costs, of what copying a run does.
ROW = 0.25
#: Operators that one op may become: more of them make a program long to build and to load.
MOST_OPERATORS = 256
#: Bytes in use around one element (of the block's inputs and outputs together) while a block is computed.
IN_USE = 10


class Tile(NamedTuple):
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
    name: str, cost: Callable[[Tile], float], emit: Callable[[Tile], Value], batch: int, height: int, operators: int
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
    blocks = [Tile(1, ceil(height / parts)) for parts in (8, 4, 2, 1) if height >= 4 * parts or parts == 1]
    images = 2
    while images < 2 * batch:
        blocks.append(Tile(min(images, batch), height))
        images *= 2
    most = max(1, MOST_OPERATORS // operators)
    fit = [block for block in blocks if block.number(batch, height) <= most or block == blocks[-1]]
    least, block = min((cost(block), block) for block in fit)
    return Form(name, least, partial(emit, block))


def reach(outputs: Shape, kernel: Shape, strides: Shape, dilation: Shape) -> tuple[int, ...]:
    """Rows and columns of the padded input that a convolution with these outputs meets."""
    axes = zip(outputs, kernel, strides, dilation, strict=True)
    return tuple((n - 1) * s + (k - 1) * d + 1 for n, k, s, d in axes)


@dataclass(frozen=True)
class Planes:
    """Some images of a batch, padded.

    Attributes:
        c: where to emit.
        images: [n, rows, columns, C]; with strides (sh, sw) other than 1 [n, rows / sh, sh, columns / sw, sw * C].
            With `transposed` the last axis stands first.
        first: the first image.
        count: how many images.
        channels: C.
        strides: of the convolution that reads them, height and width.
        transposed: whether channels stand first.
    """

    c: Lowering
    images: Value
    first: int
    count: int
    channels: int
    strides: tuple[int, int]
    transposed: bool = False

    @staticmethod
    def cut(
        c: Lowering, x: Value, first: int, count: int, padding: ops.Padding, strides: tuple[int, int], cover: Shape
    ) -> Planes:
        """Pads some images of a batch.

        Args:
            c: where to emit.
            x: [N, H, W, C].
            first: the first image.
            count: how many images.
            padding: before height and width, and as much after as `cover` asks for.
            strides: of the convolution, height and width.
            cover: rows and columns of the padded image that are read.
        """
        rows, columns = (ceil(n / s) for n, s in zip(cover, strides, strict=True))
        channels, (sh, sw) = x.shape[3], strides
        if strides == (1, 1) and (rows, columns) == x.shape[1:3] and padding[0][0] == padding[1][0] == 0:
            return Planes(c, x, first, count, channels, strides)  # windows are slices of the batch itself
        if count < x.shape[0]:
            x = c(tfl.Slice((first, 0, 0, 0), (count, *x.shape[1:])), x)
        size, before = (rows * sh, columns * sw), (padding[0][0], padding[1][0])
        after = [whole - n - low for whole, n, low in zip(size, x.shape[1:3], before, strict=True)]
        x = pad_explicitly(c, x, ((before[0], after[0]), (before[1], after[1])))
        if strides != (1, 1):
            x = c.reshape(x, (count, rows, sh, columns, sw * channels))
        return Planes(c, x, 0, count, channels, strides)

    def with_channels_first(self) -> Planes:
        """The same, transposed."""
        rest = self.images.shape[1:]
        images = self._part((self.first, *(0 for _ in rest)), (self.count, *rest))
        images = self.c.transpose(images, (len(images.shape) - 1, *range(len(images.shape) - 1)))
        return replace(self, images=images, first=0, transposed=True)

    def beside(self, columns: Sequence[int], width: int) -> Planes:
        """The same rows, with what stands at these columns, and every stride-th after, side by side as channels.

        One column alone, the first, is left where it stands.
        """
        if len(columns) == 1:
            return self
        parts, (sh, sw), lead = [], self.strides, self._axes()[1:-2]
        for column, number in _runs(columns, sw):
            begin = (self.first, *(0 for _ in lead), column // sw, column % sw * self.channels)
            parts.append(self._part(begin, (self.count, *lead, width, number * self.channels)))
        images, channels = joined(self.c, parts, 0 if self.transposed else len(lead) + 2), len(columns) * self.channels
        if len(lead) == 2 and sh == 1:
            whole = (self.count, lead[0], width)
            images = self.c.reshape(images, (channels, *whole) if self.transposed else (*whole, channels))
        return replace(self, images=images, first=0, channels=channels, strides=(sh, 1))

    def window(self, row: int, column: int, size: Shape) -> Value:
        """[count, *size, C] (transposed: C first): every stride-th element of the images from (row, column) on."""
        (rows, width), (sh, sw) = size, self.strides
        if self.strides == (1, 1):
            return self._part((self.first, row, column, 0), (self.count, rows, width, self.channels))
        begin = (self.first, row // sh, row % sh, column // sw, column % sw * self.channels)
        part = self._part(begin, (self.count, rows, 1, width, self.channels))
        whole = (self.count, rows, width)
        return self.c.reshape(part, (self.channels, *whole) if self.transposed else (*whole, self.channels))

    def _axes(self) -> Shape:
        """The shape of the images, channels last."""
        shape = self.images.shape
        return (*shape[1:], shape[0]) if self.transposed else shape

    def _part(self, begin: Shape, size: Shape) -> Value:
        """A SLICE, given with the channels last."""
        if self.transposed:
            begin, size = (begin[-1], *begin[:-1]), (size[-1], *size[:-1])
        return self.images if size == self.images.shape else self.c(tfl.Slice(begin, size), self.images)


def _runs(columns: Sequence[int], stride: int) -> Iterator[tuple[int, int]]:
    """(first, how many) of columns that stand beside each other in one cell."""
    first, number = columns[0], 1
    for column in columns[1:]:
        if column == first + number and column % stride:
            number += 1
        else:
            yield first, number
            first, number = column, 1
    yield first, number


def windows(planes: Planes, op: ops.Windowed, kernel: Shape, start: int, size: Shape) -> Iterator[Value]:
    """What each of a filter's rows meets of an output's rows from `start` on, each made when it is asked for.

    Args:
        planes: the images, with what the filter's columns meet side by side.
        op: the convolution.
        kernel: rows and columns of its filter.
        start: the first row of the output.
        size: rows and columns of the output.

    Returns:
        [pixels, kw * C] each; transposed, the other way round.
    """
    pixels = planes.count * size[0] * size[1]
    shape = (planes.channels, pixels) if planes.transposed else (pixels, planes.channels)
    first = [start * op.strides[0] + i * op.dilation[0] for i in range(kernel[0])]
    return (planes.c.reshape(planes.window(row, 0, size), shape) for row in first)


def in_use(pixels: int, inputs: int, outputs: int, positions: int) -> int:
    """Bytes in use while so many pixels of the output are computed, where so many positions stand side by side."""
    return pixels * max(IN_USE * (inputs + outputs), 8 * inputs * positions)


def windows_cost(
    c: Lowering,
    block: Tile,
    op: ops.Windowed,
    x: Value,
    kernel: Shape,
    width: int,
    touched: int,
    transposed: bool = False,
) -> float:
    """What the `windows` of a block cost, with what stands side by side for them."""
    pixels, (kh, kw), channels = block.images * block.rows * width, kernel, x.shape[3]
    cost = kh * c.target.moved("delegated", 8 * pixels * kw * channels, touched)
    if kw > 1:
        # All rows of the images are copied, in runs where the columns that are read do not stand beside each other.
        images, runs = op.strides[0] * pixels, kw * (1 + (op.strides[1] > 1)) * (channels / width if transposed else 1)
        line = 4 * images * kw * channels
        cost += images * runs * ROW * c.target.run + joining_cost(c, line, kw, touched)
        cost += c.target.moved("delegated", 2 * line, touched) + ceil(kw / op.strides[1] - 1) * c.target.per_operator
    return cost + (
        c.target.moved("transpose", 8 * pixels * prod(op.strides) * channels, touched) if transposed else 0.0
    )


def prepared_cost(c: Lowering, block: Tile, x: Value) -> float:
    """What padding a batch, block by block, costs."""
    touched = 3 * x.type.nbytes * block.images // x.shape[0]
    copies = 2 if block.images < x.shape[0] else 1
    return c.target.moved("delegated", 2 * copies * x.type.nbytes, touched)


def joined(c: Lowering, parts: Sequence[Value], axis: int = 0) -> Value:
    """CONCATENATION of any number, few at a time."""
    while len(parts) > 1:
        groups = [parts[i : i + MOST_JOINED] for i in range(0, len(parts), MOST_JOINED)]
        parts = [c(tfl.Concatenation(axis), *group) if len(group) > 1 else group[0] for group in groups]
    return parts[0]


def joining_cost(c: Lowering, nbytes: int, parts: int, touched: int | None = None) -> float:
    """Return the cost of `joined` for a result of `nbytes`; `touched`: see `Target.moved`."""
    cost = 0.0
    while parts > 1:
        parts = ceil(parts / MOST_JOINED)
        cost += c.target.moved("delegated", 2 * nbytes, touched) + (parts - 1) * c.target.per_operator
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
