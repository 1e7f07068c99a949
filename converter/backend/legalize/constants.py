"""Constants beside values of run time, in elementwise operators."""

from __future__ import annotations

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.legalize.pattern import avoids, is_constant, is_elementwise, repeated, reshaped
from converter.backend.legalize.ranks import MOST, fewer
from converter.ir import BOOL, FLOAT32, INT32, Node, Value, is_described
from converter.ir.rewrite import Rewriter

_COMPARISONS = (tfl.Equal, tfl.NotEqual, tfl.Less, tfl.LessEqual, tfl.Greater, tfl.GreaterEqual)
#: The least positive number of float16.
_LEAST_HALF = 2.0**-24
#: What an operator says of its operands the other way round.
_MIRRORED = {
    tfl.Less: tfl.Greater(),
    tfl.Greater: tfl.Less(),
    tfl.LessEqual: tfl.GreaterEqual(),
    tfl.GreaterEqual: tfl.LessEqual(),
}


def _has_rows_of_constants(b: Rewriter, node: Node) -> bool:
    """A float constant that differs along the first axis of the result, which the engine takes for that of a batch."""
    if not is_elementwise(node) or isinstance(node.op, tfl.SelectV2) or len(node.inputs) < 2:
        return False
    rank = node.output.type.rank
    return any(
        is_constant(b, v) and v.dtype.kind == "f" and v.type.rank == rank and v.shape[0] > 1 for v in node.inputs
    )


@avoids(
    "constant-rows",
    "GPU: ADD, MUL, MAXIMUM, GREATER, ... of [3], [2,3], [2,3,4] or [2,3,4,5] with a constant of that shape, or of "
    "[1] with a larger one: only the constant's first row is read, errors of 1; constants of [1,...] are right",
    _has_rows_of_constants,
)
def behind_one_row(b: Rewriter, node: Node) -> Value | None:
    """The same on [1, ...]."""
    shapes = fewer([v.shape for v in node.inputs], MOST - 1)
    if shapes is None:
        return None
    made = b(node.op, *(reshaped(b, v, (1, *shape)) for v, shape in zip(node.inputs, shapes, strict=True)))
    return reshaped(b, made, node.output.shape)


def _begins_with_integers(b: Rewriter, node: Node) -> bool:
    if not isinstance(node.op, (tfl.Sub, tfl.Div, tfl.FloorMod, tfl.FloorDiv, tfl.Pow, *_MIRRORED)):
        return False
    x, y = node.inputs
    return is_constant(b, x) and x.dtype == INT32 and not is_constant(b, y)


@avoids(
    "constant-int32-first",
    "GPU: SUB, DIV, FLOOR_MOD, FLOOR_DIV, LESS, ... of a constant int32 [3] and [3]: the operands are exchanged",
    _begins_with_integers,
)
def with_the_constant_last(b: Rewriter, node: Node) -> Value | None:
    """c - x as -x + c, c < x as x > c."""
    constant, x = node.inputs
    if isinstance(node.op, tfl.Sub) and node.op.activation == "NONE":
        return b(tfl.Add(), b(tfl.Neg(), x), constant)
    mirrored = _MIRRORED.get(type(node.op))
    return None if mirrored is None else b(mirrored, x, constant)


def _is_of_lower_rank(b: Rewriter, node: Node) -> bool:
    """An int32 or bool constant that is repeated along new axes, or a bool of one element."""
    if not is_elementwise(node) or isinstance(node.op, tfl.SelectV2) or len(node.inputs) != 2:
        return False
    rank = node.output.type.rank
    known = [v for v in node.inputs if is_constant(b, v) and v.dtype.kind in "ib"]
    return any((v.type.rank < rank and v.type.size > 1) or (v.dtype == BOOL and v.type.size == 1) for v in known)


@avoids(
    "constant-int32-rank",
    "GPU: ADD, MUL, EQUAL, ... of int32 [2,3] and a constant [3], LOGICAL_AND of [2,3,4] and a constant [4]: wrong, "
    "errors of 1; of bool and a constant [1]: refused; constants of as many axes: right",
    _is_of_lower_rank,
)
def of_as_many_axes(b: Rewriter, node: Node) -> Value | None:
    """The constant with ones before its shape; one bool along the whole last axis."""
    shape, operands = node.output.shape, []
    for v in node.inputs:
        array = b.array(v)
        if array is not None and v.dtype.kind in "ib":
            array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
            if array.dtype == BOOL and array.size == 1:
                array = np.broadcast_to(array, (*array.shape[:-1], shape[-1]))
            v = b.constant(array, name=v.name)
        operands.append(v)
    return None if shape[-1] == 1 and BOOL in {v.dtype for v in node.inputs} else b(node.op, *operands)


@avoids(
    "constant-int32-large",
    "GPU: an int32 constant above 2^24 is rounded to float32: LESS of 2^24 and 2^24 + 1 is wrong, products do not wrap",
    lambda b, node: (
        is_elementwise(node)
        and any(
            v.dtype == INT32 and (a := b.array(v)) is not None and np.abs(a.astype(float)).max() > 2**24
            for v in node.inputs
        )
    ),
)
def nothing(b: Rewriter, node: Node) -> None:
    """Such numbers are those of hashes; an engine without exact integers has none."""


def _has_a_small_condition(b: Rewriter, node: Node) -> bool:
    if not isinstance(node.op, tfl.SelectV2):
        return False
    condition = node.inputs[0]
    return condition.type.rank < node.output.type.rank and condition.type.size > 1


@avoids(
    "select-condition-rank",
    "GPU: SELECT_V2 with a condition [8,8] of [2,4,8,8], [4] of [2,3,4]: wrong, errors of 1; [1,1,8,8] is right",
    _has_a_small_condition,
)
def with_axes_before_the_condition(b: Rewriter, node: Node) -> Value:
    """The condition with as many axes as the result, and the values too."""
    rank = node.output.type.rank
    wide = [v if v.type.size == 1 else reshaped(b, v, (1,) * (rank - v.type.rank) + v.shape) for v in node.inputs]
    return b(node.op, *wide)


def _has_broadcast_values(b: Rewriter, node: Node) -> bool:
    return isinstance(node.op, tfl.SelectV2) and any(v.shape not in (node.output.shape, (1,)) for v in node.inputs[1:])


@avoids(
    "select-value-shape",
    "GPU: SELECT_V2 of a condition [2,3,4] and values [1,3,4], [4] or [1,1,1]: refused (if, else tensors must be the "
    "same shape as output); [1] is right",
    _has_broadcast_values,
)
def with_whole_values(b: Rewriter, node: Node) -> Value:
    """Values of one element as [1], others as large as the result."""
    condition, *values = node.inputs
    shape = node.output.shape

    def whole(v: Value) -> Value:
        return reshaped(b, v, (1,)) if v.type.size == 1 else repeated(b, v, shape)

    return b(node.op, condition, *map(whole, values))


def _has_infinity(b: Rewriter, node: Node) -> bool:
    """A constant with an infinity or a NaN."""
    known = [array for v in node.inputs if (array := b.array(v)) is not None and array.dtype == FLOAT32]
    return is_elementwise(node) and any(not np.isfinite(array).all() and not is_described(array) for array in known)


@avoids(
    "constant-infinite",
    "GPU: SOFTMAX of what SELECT_V2 masked with a constant -inf, the first four or more: NaN; with -3.4e38: right",
    _has_infinity,
)
def with_the_largest_number(b: Rewriter, node: Node) -> Value | None:
    """The largest number for an infinity, where that is no factor; the engine knows neither infinities nor NaN.

    So what is read at an index out of range, which is NaN elsewhere, is the largest number, too.
    """
    if not isinstance(node.op, (tfl.SelectV2, tfl.Add, tfl.Sub, tfl.Maximum, tfl.Minimum, *_COMPARISONS)):
        return None
    operands, most = list(node.inputs), np.finfo(np.float32).max
    for place, v in enumerate(node.inputs):
        array = b.array(v)
        if array is not None and array.dtype == FLOAT32:
            if np.isnan(array).any() and not isinstance(node.op, tfl.SelectV2):
                return None
            operands[place] = b.constant(np.clip(np.where(np.isnan(array), most, array), -most, most), name=v.name)
    return b(node.op, *operands)


def vanishes(array: np.ndarray | None) -> bool:
    """Whether all of a constant is above zero, and zero in float16."""
    if array is None or array.dtype != FLOAT32 or is_described(array) or not array.size:
        return False
    return bool(array.min() > 0 and array.max() <= _LEAST_HALF / 2)


HALF = "constant-below-half"


@avoids(
    HALF,
    "Hexagon: RSQRT and LOG of 0 + 1e-8, which is 0 in float16: 12856 for 10000, -7.6 for -18, and of 0 + 1e-12 the "
    "same; of 0 + 6e-8, the least number of float16: 4096, and right. Masks of -1e9 or -inf: right",
    lambda b, node: isinstance(node.op, (tfl.Add, tfl.Maximum)) and any(vanishes(b.array(v)) for v in node.inputs),
)
def with_the_least_number(b: Rewriter, node: Node) -> Value:
    """What keeps a number from zero is the least that there is."""
    least = [b.constant(np.full(v.shape, _LEAST_HALF, np.float32)) if vanishes(b.array(v)) else v for v in node.inputs]
    return b(node.op, *least)


@avoids(
    "identical-operands",
    "GPU: SUB, DIV, EQUAL, MAXIMUM, ... of a tensor and itself: refused (No support of few identical inputs in the "
    "same operation); ADD and MUL: right. NaN is equal to NaN there",
    lambda b, node: (
        is_elementwise(node) and not isinstance(node.op, tfl.Add | tfl.Mul) and len(set(node.inputs)) < len(node.inputs)
    ),
)
def of_a_sum_with_zero(b: Rewriter, node: Node) -> Value | None:
    """x and x + 0; whether x is x is known."""
    shape = node.output.shape
    if isinstance(node.op, tfl.Equal | tfl.NotEqual):
        return b.constant(np.full(shape, isinstance(node.op, tfl.Equal)))
    *first, last = node.inputs
    if last.dtype == BOOL or last not in first:
        return None
    return b(node.op, *first, b(tfl.Add(), last, b.constant(np.zeros((1,) * last.type.rank, last.dtype))))
