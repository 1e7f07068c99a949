"""Pooling of what a head reads of blocks: positions come together as the net brings them together before its head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from converter.ir import FLOAT32, Builder, Graph, Node, Value, ops
from converter.ir.rewrite import Rewriter
from converter.training.schemes.positions import Mask, token_or_mask

#: A mask that leaves no position is no pole, as in the mean pooling of sentence encoders.
_LEAST = 1e-9


@dataclass(frozen=True)
class Pooling:
    """How a value [rows, positions..., channels] becomes what is multiplied by A: [rows, channels], or with positions.

    Attributes:
        positions: of the value, of each row.
        kept: whether each stays one of its own, as the head gives something for each.
        token: the one that is read.
        mask: what they are weighted by in the mean; without one and without a token all count alike.
        parts: along each axis of a picture or series; each part has a mean of its own, one after the other in what is
            read. Parts overlap where an axis does not divide, and are positions where it has no more than these.
    """

    positions: int
    kept: bool = False
    token: int | None = None
    mask: Mask | None = None
    parts: int = 1

    def current(self, b: Rewriter) -> Pooling:
        """Return the same for the graph that a rewriter makes."""
        return self if self.mask is None else replace(self, mask=replace(self.mask, value=b.current(self.mask.value)))

    def width(self, x: Value) -> int:
        """Return how many numbers of a row, or of each position where each is kept, are read of a value."""
        positions = x.shape[1:-1] if self.parts > 1 else ()
        return prod(min(self.parts, size) for size in positions) * x.shape[-1]

    def apply(self, b: Builder, x: Value, rows: int) -> Value:
        """Return the value, pooled: [rows, channels], or [rows, positions, channels] where each position is kept."""
        channels = x.shape[-1]
        if self.parts > 1:
            return self._of_parts(b, x, rows)
        if self.kept:  # rows stay the first axis: what is kept is kept by row
            return b.reshape(x, (rows, channels) if self.positions == 1 else (rows, self.positions, channels))
        if self.token is not None:
            by_position = b.reshape(x, (rows, self.positions, channels))
            return b.reshape(b.part(by_position, self.token, self.token + 1, axis=1), (rows, channels))
        if self.mask is not None:
            mask = b.reshape(self.mask.value, (rows, self.positions, 1))
            mask = b(ops.LogicalNot(), mask) if self.mask.inverted else mask
            mask = mask if mask.dtype == FLOAT32 else b(ops.Cast(FLOAT32), mask)
            weighted = b(ops.Mul(), b.reshape(x, (rows, self.positions, channels)), mask)
            return b(ops.Div(), b.sum(weighted, (1,)), b(ops.Maximum(), b.sum(mask, (1,)), _LEAST))
        if x.shape[0] != rows or len(x.shape) < 3:
            x = b.reshape(x, (rows, self.positions, channels))
        return b(ops.Mean(tuple(range(1, len(x.shape) - 1))), x)

    def _of_parts(self, b: Builder, x: Value, rows: int) -> Value:
        """Return the means of parts, [rows, parts * channels]."""
        if len(x.shape) == 3:
            x = b.reshape(x, (rows, x.shape[1], 1, x.shape[2]))
        strides, window = zip(*(_part(size, self.parts) for size in x.shape[1:3]), strict=True)
        means = b(ops.Mul(), b(ops.SumPool2D(window, strides), x), 1.0 / prod(window))
        return b.reshape(means, (rows, prod(means.shape[1:])))

    def __str__(self) -> str:
        if self.parts > 1:
            return f"in means of {self.parts} parts along each axis"
        if self.kept:
            return "as it is" if self.positions == 1 else f"at each of {self.positions} positions"
        if self.token is not None:
            return f"of position {self.token} of {self.positions}, which the head reads"
        if self.mask is not None:
            return f"in the mean of {self.positions} positions, weighted as before the head"
        return f"in the mean of {self.positions} positions"


def _part(size: int, parts: int) -> tuple[int, int]:
    """Return how far apart the parts of an axis are, and how long: together they are all of it."""
    parts = min(parts, size)
    stride = size // parts
    return stride, size - (parts - 1) * stride


def pooling_of(graph: Graph, value: Value, head: Node, rows: int, parts: int = 1) -> Pooling | str:
    """Return how a value is pooled on its way to what the head gives, or why it cannot be.

    Args:
        graph: the forward graph.
        value: [rows, positions..., channels], or with the first axes as one.
        head: gives [rows, positions..., classes].
        rows: of a batch.
        parts: along each axis of positions, a mean of each; 1: one mean, or what the net reads of a text.
    """
    own, given = prod(value.shape[:-1]), prod(head.output.shape[:-1])
    if own % rows or given % rows:
        return f"it has the shape {list(value.shape)}, which {rows} rows do not share evenly"
    own, given = own // rows, given // rows
    if own == given:
        return Pooling(own, kept=True)
    if given != 1:
        return f"it has {own} positions, and the last layer gives {given}"
    if parts > 1 and (len(value.shape) not in (3, 4) or value.shape[0] != rows):
        return f"parts are of pictures and series, and it has the shape {list(value.shape)}"
    if len(value.shape) > 3 and max(value.shape[1:-1]) != own:  # no net that reads one pixel of a picture is known
        return Pooling(own, parts=parts)
    token, mask = token_or_mask(graph, head.inputs[0], own, rows)
    if parts > 1 and (token is not None or mask is not None):
        return f"parts are of pictures and series, and it is read {Pooling(own, token=token, mask=mask)}"
    return Pooling(own, token=token, mask=mask, parts=parts)
