"""Folding builder for traces: constants are computed at once, and obvious detours are not built."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from converter.ir import BOOL, FLOAT32, Builder, Graph, Node, Op, Shape, TensorType, Value, ops
from converter.ir.graph_builder import Operand

#: A constant is not blown up by repetition beyond this many elements: it would lie in the file.
LARGEST_REPEATED_CONSTANT = 4096


class FoldingBuilder(Builder):
    """A Builder that evaluates ops on constants and leaves out identities, double reshapes and double transposes."""

    def __init__(self, graph: Graph | None = None) -> None:
        super().__init__(graph)
        self.producers: dict[Value, Node] = self.graph.producers()

    def append(self, node: Node) -> Node:
        self.producers |= dict.fromkeys(node.outputs, node)
        return super().append(node)

    def __call__(self, op: Op, *operands: Operand) -> Any:
        dtype = next((o.dtype for o in operands if isinstance(o, Value) and o.dtype != BOOL), FLOAT32)
        values = [o if isinstance(o, Value) else self.constant(o, dtype) for o in operands]
        known = [self.graph.constants.get(v) for v in values]
        if all(array is not None for array in known) and self._folds(op, values):
            with np.errstate(all="ignore"):
                type = op.infer(*(v.type for v in values))
                assert isinstance(type, TensorType)
                return self.constant(np.asarray(op.evaluate(*known), dtype=type.dtype))
        if values and all(v.type.size == 0 for v in values) and not isinstance(op, ops.CustomGradient):
            made = op.infer(*(v.type for v in values))
            if isinstance(made, TensorType) and (not made.size or isinstance(op, ops.Sum)):
                return self.broadcast_to(self.constant(np.zeros((), made.dtype)), made.shape)  # nothing, or its sum
        shorter = self._simplify(op, values)
        return super().__call__(op, *values) if shorter is None else shorter

    def _folds(self, op: Op, values: list[Value]) -> bool:
        if not op.folds or isinstance(op, ops.CustomGradient):
            return False
        if isinstance(op, (ops.BroadcastTo, ops.OneHot)):
            return op.infer(values[0].type).size <= LARGEST_REPEATED_CONSTANT
        return True

    def is_number(self, value: Value, number: float) -> bool:
        """Whether every element of a constant is this number."""
        array = self.graph.constants.get(value)
        return array is not None and array.size > 0 and bool(np.all(array == number))

    def source(self, value: Value, *kinds: type[Op]) -> Node | None:
        """The node that makes the value, if its op is of one of these kinds."""
        node = self.producers.get(value)
        return node if node is not None and isinstance(node.op, kinds) else None

    def _simplify(self, op: Op, values: list[Value]) -> Value | None:
        """The value this application comes to without a node of its own, or None."""
        # Masks are left as they are written: saved states belong to a model by what is imported of it.
        if isinstance(op, ops.Binary) and op.identity is not None and values[0].dtype != BOOL:
            return self._identity(op, op.identity, *values) or self._mean(op, *values)
        if isinstance(op, ops.Reshape):
            return self._reshape(op, values[0])
        if isinstance(op, ops.Transpose):
            return self._transpose(op, values[0])
        if isinstance(op, ops.Reverse):
            return self._reverse(op, values[0])
        if isinstance(op, ops.Unary) and op.involution:
            twice = self.source(values[0], type(op))
            return twice.inputs[0] if twice else None
        if isinstance(op, ops.Select):
            # NaN ? x : max(x, 0) + ..., which logaddexp writes: a sum passes a NaN on.
            check = self.source(values[0], ops.NotEqual)
            if check and check.inputs == (values[1], values[1]) and self.source(values[2], ops.Add):
                return values[2]
            # c ? 1 : 0 is c as a number.
            whole = values[0].shape == op.infer(*(v.type for v in values)).shape
            is_number = whole and self.is_number(values[1], 1) and self.is_number(values[2], 0)
            return self(ops.Cast(values[1].dtype), values[0]) if is_number else None
        if isinstance(op, ops.NotEqual) and self.is_number(values[1], 0):
            cast = self.source(values[0], ops.Cast)
            return cast.inputs[0] if cast and cast.inputs[0].dtype == np.bool_ else None
        return None

    def _identity(self, op: ops.Binary, neutral: float, x: Value, y: Value) -> Value | None:
        shape = np.broadcast_shapes(x.shape, y.shape)
        if x.shape == shape and self.is_number(y, neutral):
            return x
        if op.commutes and y.shape == shape and self.is_number(x, neutral):
            return y
        return None

    def _mean(self, op: Op, x: Value, y: Value) -> Value | None:
        """Sum(x) / count is a Mean."""
        if not isinstance(op, (ops.Mul, ops.Div)):
            return None
        if isinstance(op, ops.Mul) and x in self.graph.constants:
            x, y = y, x
        total = self.source(x, ops.Sum)
        divisor = self.graph.constants.get(y)
        if total is None or divisor is None or divisor.size != 1 or y.shape != () or x.dtype.kind != "f":
            return None
        count = prod(total.inputs[0].shape) / max(prod(x.shape), 1)
        factor = divisor.item() if isinstance(op, ops.Div) else 1 / divisor.item() if divisor.item() else 0.0
        if count <= 1 or abs(factor - count) > 1e-6 * count:
            return None
        return self(ops.Mean(total.op.axes, total.op.keepdims), total.inputs[0])

    def _reshape(self, op: ops.Reshape, x: Value) -> Value | None:
        if op.shape == x.shape:
            return x
        before = self.source(x, ops.Reshape)
        if before:
            return self.reshape(before.inputs[0], op.shape)
        reduction = self.source(x, ops.Sum, ops.Mean, ops.Max, ops.Min)
        if reduction:
            kept = type(reduction.op)(reduction.op.axes, keepdims=True)
            if kept.infer(reduction.inputs[0].type).shape == op.shape:
                return self(kept, reduction.inputs[0])
        return None

    def _transpose(self, op: ops.Transpose, x: Value) -> Value | None:
        before = self.source(x, ops.Transpose)
        if before:
            return self.transpose(before.inputs[0], tuple(before.op.perm[p] for p in op.perm))
        moved = [p for p in op.perm if x.shape[p] != 1]
        return self.reshape(x, op.infer(x.type).shape) if moved == sorted(moved) else None

    def _reverse(self, op: ops.Reverse, x: Value) -> Value | None:
        before = self.source(x, ops.Reverse)
        if before:
            axes = tuple(sorted(set(before.op.axes) ^ set(op.axes)))
            return self(ops.Reverse(axes), before.inputs[0]) if axes else before.inputs[0]
        turned = self.source(x, ops.Transpose)
        if turned:  # reverse first: two reversals around a transpose meet
            perm = turned.op.perm
            return self.transpose(self(ops.Reverse(tuple(perm[a] for a in op.axes)), turned.inputs[0]), perm)
        return None


def squeezed(shape: Shape) -> Shape:
    """The shape without leading axes of size 1: all that NumPy broadcasting looks at."""
    return next((shape[i:] for i, d in enumerate(shape) if d != 1), ())
