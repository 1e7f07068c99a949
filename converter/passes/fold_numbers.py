"""Scalar folding: moves a scalar factor of a value into the constants that the value is computed from."""

from __future__ import annotations

import numpy as np

from converter.ir import FLOAT32, Graph, Node, Op, Value, known_result, ops
from converter.ir.rewrite import Rewriter, rewrite
from converter.passes.simplify import is_ordinary


def fold_numbers(graph: Graph) -> Graph:
    """Return the graph without products with a number that constants can hold.

    Before: Transpose(MatMul(x, W) + b) * 0.125.             After: Transpose(MatMul(x, W * 0.125) + b * 0.125).
    Before: (x * cosines + rotated * sines) * 0.125.          After: x * (cosines * 0.125) + rotated * (sines * 0.125).

    So frozen queries come scaled, and their cotangents go back so.
    """
    uses = graph.consumers()
    scaled: dict[tuple[Value, float], Value] = {}

    def of_constant(b: Rewriter, value: Value, number: float, spared: int) -> Value | None:
        # What others read as it is will be stored twice: no more than what is not computed.
        if len(uses.get(value, ())) > 1 and value.type.size > spared:
            return None
        if (value, number) not in scaled:
            factor = np.array(number, FLOAT32)
            array = known_result(ops.Mul(), value.type, b.graph.constants[value], factor)
            assert array is not None
            scaled[value, number] = b.constant(array, name=value.name)
        return scaled[value, number]

    def times(b: Rewriter, value: Value, number: float, spared: int) -> Value | None:
        """Return the value times the number, by no more operators than the value; None where that cannot be."""
        if value in b.graph.constants:
            return of_constant(b, value, number, spared)
        node = b.producer(value, Op)
        if node is None or not b.used_once(value):
            return None
        operands: list[Value | None] = list(node.inputs)
        match node.op:
            case op if any(all(k in group for k in range(len(operands))) for group in op.linear_in):
                operands = [times(b, v, number, spared) for v in node.inputs]
            case ops.Mul() | ops.MatMul():
                parts = ((k, times(b, node.inputs[k], number, spared)) for k in (1, 0))
                place, part = next(((k, v) for k, v in parts if v is not None), (0, None))
                operands[place] = part
            case _:
                return None
        with b.at(node.origin):
            return None if any(v is None for v in operands) else b(node.op, *(v for v in operands if v is not None))

    def fold(b: Rewriter, node: Node) -> Value | None:
        if not isinstance(node.op, ops.Mul) or node.output.dtype != FLOAT32:
            return None
        for value, factor in (node.inputs, node.inputs[::-1]):
            number = b.scalar(factor) if factor.type.size == 1 else None
            if is_ordinary(number) and value.type == node.output.type:
                return times(b, value, number, node.output.type.size)
        return None

    return rewrite(graph, fold)
