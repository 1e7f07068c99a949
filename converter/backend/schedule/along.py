"""Axes that an operator treats place by place: it can be computed for some places of one, then for the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from converter.backend import builtins as tfl
from converter.ir import Node, Value
from converter.ir.op import Op
from converter.ir.quantization import Quantization
from converter.ir.types import Shape


@dataclass(frozen=True)
class Along:
    """An axis that an operator treats place by place.

    Attributes:
        operands: where each operand has it; None: it is read whole, whatever the place.
        result: where the result has it; None: the operator adds up over it, and its activation is of the sum.
    """

    operands: tuple[int | None, ...]
    result: int | None


def axes_along(node: Node) -> Iterator[Along]:
    """Yield the axes that a lowered operator treats place by place; none of one that is not known here.

    Integers are not added up over an axis, for each part would be rounded.
    """
    if len(node.outputs) != 1:
        return
    for along in _axes(node):
        places = zip(node.inputs, along.operands, strict=True)
        if (along.result is not None or not isinstance(node.op, tfl.Int8)) and all(_is_cut(v, p) for v, p in places):
            yield along


def _is_cut(value: Value, axis: int | None) -> bool:
    """Return whether what integers stand for is known of some places of an axis, or the operand is read whole."""
    quantization = value.type.quantization
    return axis is None or quantization is None or not quantization.per_channel or quantization.axis == axis


def _axes(node: Node) -> Iterator[Along]:
    shapes, shape = [v.shape for v in node.inputs], node.output.shape
    op = node.op.op if isinstance(node.op, tfl.Int8) else node.op
    if op.elementwise or isinstance(op, (tfl.Quantize, tfl.Dequantize)):
        yield from (_repeated(shapes, shape, axis) for axis, size in enumerate(shape) if size > 1)
    elif isinstance(op, tfl.DepthwiseConv2D):
        if shapes[0][3] == shape[3]:
            yield Along((3, 3, 0), 3)
        yield Along((0, None, None), 0)
    elif isinstance(op, tfl.Conv2D):
        yield Along((None, 0, 0), 3)
        yield Along((0, None, None), 0)
        yield Along((3, 3, None), None)
    elif isinstance(op, tfl.FullyConnected):
        biases = len(shapes) - 2
        yield Along((None, 0, *(0,) * biases), len(shape) - 1)
        yield Along((len(shapes[0]) - 1, 1, *(None,) * biases), None)
    elif isinstance(op, (tfl.MaxPool2D, tfl.AveragePool2D)):
        yield from (Along((axis,), axis) for axis in (0, 3))
    elif isinstance(op, tfl.Pad):
        yield from (Along((axis,), axis) for axis, around in enumerate(op.paddings) if around == (0, 0))
    elif isinstance(op, tfl.Transpose):
        yield from (Along((axis,), place) for place, axis in enumerate(op.perm))
    elif isinstance(op, (tfl.Sum, tfl.Mean, tfl.ReduceMax, tfl.ReduceMin)):
        yield from _reduced(op, len(shapes[0]))
    elif isinstance(op, tfl.Reshape):
        yield from _reshaped(shapes[0], shape)


def for_places(op: Op, along: Along, part: slice) -> Op:
    """Return an operator as it is for some places of an axis of its result, or of what it adds up over."""
    axis, size = along.result, part.stop - part.start
    if isinstance(op, tfl.Int8):
        inner = for_places(op.op, along, part)
        assert isinstance(inner, tfl.Builtin)
        of = tuple(scales_of(q, axis, part) for q, axis in zip(op.of, along.operands, strict=True))
        return replace(op, op=inner, of=of)
    if axis is None:
        return replace(op, activation="NONE") if isinstance(op, (tfl.Conv2D, tfl.FullyConnected)) else op
    if isinstance(op, tfl.Reshape):
        return replace(op, shape=(*op.shape[:axis], size, *op.shape[axis + 1 :]))
    return op


def scales_of(quantization: Quantization | None, axis: int | None, part: slice) -> Quantization | None:
    """Return how the integers of some places of an axis stand for numbers."""
    if quantization is None or not quantization.per_channel or quantization.axis != axis:
        return quantization
    return replace(quantization, scales=quantization.scales[part])


def _repeated(shapes: list[Shape], shape: Shape, axis: int) -> Along:
    """Return an axis of an elementwise operator, along which operands may be repeated."""
    places = [axis - len(shape) + len(of) for of in shapes]
    return Along(tuple(p if p >= 0 and of[p] > 1 else None for p, of in zip(places, shapes, strict=True)), axis)


def _reduced(op: tfl.Sum | tfl.Mean | tfl.ReduceMax | tfl.ReduceMin, rank: int) -> Iterator[Along]:
    gone = {axis % rank for axis in op.axes}
    left = [axis for axis in range(rank) if op.keepdims or axis not in gone]
    for axis in range(rank):
        if axis not in gone:
            yield Along((axis,), left.index(axis))
        elif isinstance(op, tfl.Sum):
            yield Along((axis,), None)


def _reshaped(before: Shape, after: Shape) -> Iterator[Along]:
    """Yield axes that are as long, and have as many elements before them, in both shapes."""
    for axis, size in enumerate(before):
        for place, other in enumerate(after):
            if size == other > 1 and prod(before[:axis]) == prod(after[:place]):
                yield Along((axis,), place)
