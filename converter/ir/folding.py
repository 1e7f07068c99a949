"""Folding builder for traces: constants are computed at once, and obvious detours are not built."""

from __future__ import annotations

from typing import Any

import numpy as np

from converter.ir import BOOL, FLOAT32, Op, Shape, TensorType, Value, ops
from converter.ir.builder import LookingBuilder
from converter.ir.graph_builder import Operand
from converter.ir.identities import OF_TRACES, simplified

#: A constant is not blown up by repetition beyond this many elements: it would lie in the file.
LARGEST_REPEATED_CONSTANT = 4096


class FoldingBuilder(LookingBuilder):
    """A Builder that evaluates ops on constants and applies identities."""

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
        # Masks are left as they are written: a saved state belongs to a model by what is imported of it.
        is_mask = isinstance(op, ops.Binary) and values[0].dtype == BOOL
        shorter = None if is_mask else simplified(self, op, values, OF_TRACES)
        return super().__call__(op, *values) if shorter is None else shorter

    def _folds(self, op: Op, values: list[Value]) -> bool:
        if not op.folds or isinstance(op, ops.CustomGradient):
            return False
        if isinstance(op, (ops.BroadcastTo, ops.OneHot)):
            return op.infer(values[0].type).size <= LARGEST_REPEATED_CONSTANT
        return True


def squeezed(shape: Shape) -> Shape:
    """Return the shape without leading axes of size 1: all that NumPy broadcasting looks at."""
    return next((shape[i:] for i, d in enumerate(shape) if d != 1), ())
