"""Operands that elementwise operators repeat by themselves: none is reshaped or repeated before."""

from __future__ import annotations

import numpy as np

from converter.backend import builtins as tfl
from converter.ir import Graph, Node, Shape, TensorType, Value, is_described
from converter.ir.op import ShapeError
from converter.ir.rewrite import Rewriter, map_bodies, rewrite


def without_repeats(graph: Graph) -> Graph:
    """Elementwise operators read what a RESHAPE or a product by ones read, where that repeats to the same result.

    Before: dx = SELECT_V2(mask [1,5,5,C], MUL(g [1,1,1,C], ones [1,5,5,1]), 0).   After: dx = SELECT_V2(mask, g, 0).
    Before: y = MUL(x [1,4], RESHAPE(s [1]) [1,1]).   After: y = MUL(x, s).

    A RESHAPE of a RESHAPE is one, and one that only adds axes of one element stands as late as it can. For runtimes in
    which each of these is a copy in memory.
    """
    return rewrite(map_bodies(graph, without_repeats), _rule)


def _rule(b: Rewriter, node: Node) -> Value | None:
    if isinstance(node.op, tfl.Reshape):
        before = b.producer(node.inputs[0], tfl.Reshape)
        source = before.inputs[0] if before is not None else node.inputs[0]
        if source.shape == node.output.shape and source.type == node.output.type:
            return source
        return b(node.op, source) if before is not None else None
    if not node.op.elementwise or len(node.outputs) != 1:
        return None
    operands: list[Value] = list(node.inputs)
    for place, value in enumerate(node.inputs):
        contracted = _repeated(b, value)
        if contracted is not None:
            others = [*operands[:place], contracted, *operands[place + 1 :]]
            operands = others if _shape(node, others) == node.output.shape else operands
    if operands != list(node.inputs):
        return b(node.op, *operands)
    return _reshaped_behind(b, node)


def _reshaped_behind(b: Rewriter, node: Node) -> Value | None:
    """The RESHAPE of an operand after the operator, where its reader may leave it out."""
    operands = [_reshaped(b, value) or value for value in node.inputs]
    shape = _shape(node, operands)
    if operands == list(node.inputs) or shape is None or _significant(shape) != _significant(node.output.shape):
        return None
    return b(tfl.Reshape(node.output.shape), b(node.op, *operands))


def _reshaped(b: Rewriter, value: Value) -> Value | None:
    """Return what a RESHAPE for one reader, or of one element, adds axes of one element to, or takes them from."""
    maker = b.producer(value, tfl.Reshape)
    if maker is None or not (b.used_once(value) or value.type.size == 1):
        return None
    source: Value = maker.inputs[0]
    return source if _significant(source.shape) == _significant(value.shape) else None


def _repeated(b: Rewriter, value: Value) -> Value | None:
    """Return what a value is as it is, or repeated."""
    maker = b.producer(value, tfl.Builtin)
    match maker.op if maker is not None else None:
        case tfl.Reshape():
            assert maker is not None
            (source,) = maker.inputs
            return source if _significant(source.shape) == _significant(value.shape) else None
        case tfl.BroadcastTo():
            assert maker is not None
            return maker.inputs[0]
        case tfl.Mul(activation="NONE"):
            assert maker is not None
            for source, ones in (maker.inputs, maker.inputs[::-1]):
                if _is_ones(b.array(ones)) and source.dtype == value.dtype:
                    return source
    return None


def _is_ones(array: np.ndarray | None) -> bool:
    return array is not None and not is_described(array) and bool((array == 1).all())


def _significant(shape: Shape) -> Shape:
    """The shape from the first axis on that is not of one element."""
    first = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return shape[first:]


def _shape(node: Node, operands: list[Value]) -> Shape | None:
    try:
        made = node.op.infer(*(v.type for v in operands))
    except ShapeError:
        return None
    return made.shape if isinstance(made, TensorType) else None
