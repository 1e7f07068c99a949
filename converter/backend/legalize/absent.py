"""Missing kernels of an engine."""

from __future__ import annotations

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.legalize.pattern import avoids
from converter.ir import BOOL, FLOAT32, Node, Value
from converter.ir.rewrite import Rewriter

#: What Qualcomm's compiler has no form of.
_ABSENT = (
    tfl.Atan2, tfl.ReduceProd, tfl.UnsortedSegment, tfl.DynamicUpdateSlice, tfl.Bitcast, tfl.BitwiseXor, tfl.RightShift
)  # fmt: skip
#: What moves numbers, or repeats them.
_MOVING = (tfl.Slice, tfl.StridedSlice, tfl.ReverseV2, tfl.Gather, tfl.BroadcastTo)


@avoids(
    "truth-values",
    "Hexagon: EQUAL, NOT_EQUAL, SELECT_V2, SLICE, REVERSE_V2, GATHER of bool: refused (not supported in Qualcomm "
    "Compiler); of float32, and LOGICAL_AND, LOGICAL_NOT, RESHAPE, CONCATENATION, TRANSPOSE of bool: right",
    lambda b, node: (
        isinstance(node.op, (tfl.Equal, tfl.NotEqual, tfl.SelectV2, *_MOVING))
        and node.inputs[isinstance(node.op, tfl.SelectV2)].dtype == BOOL
    ),
)
def as_numbers(b: Rewriter, node: Node) -> Value:
    """The same of 1 and 0, of which what is more than 0.5 is true."""
    first = int(isinstance(node.op, tfl.SelectV2))  # behind the condition
    numbers = [b(tfl.Cast(FLOAT32), v) if v.dtype == BOOL else v for v in node.inputs[first:]]
    made = b(node.op, *node.inputs[:first], *numbers)
    return made if made.dtype == BOOL else b(tfl.Greater(), made, b.constant(np.array([0.5], np.float32)))


def _has_no_kernel(b: Rewriter, node: Node) -> bool:
    whole = all(v.dtype.kind == "i" for v in node.inputs)
    return (
        isinstance(node.op, (*_ABSENT, tfl.TopKV2))
        or (isinstance(node.op, tfl.FloorMod) and not whole)
        or (isinstance(node.op, (tfl.Neg, tfl.Sign, tfl.FloorDiv, tfl.SquaredDifference)) and whole)
    )


@avoids(
    "absent",
    "Hexagon: ATAN2, REDUCE_PROD, UNSORTED_SEGMENT_MAX, DYNAMIC_UPDATE_SLICE, BITCAST, BITWISE_XOR, RIGHT_SHIFT, "
    "FLOOR_MOD of float32, NEG, SIGN, FLOOR_DIV of int32: refused (not supported in Qualcomm Compiler); TOPK_V2 of "
    "which only the indices are read: the engine ends its process",
    _has_no_kernel,
)
def by_nothing(b: Rewriter, node: Node) -> None:
    """There is no other form."""
