"""Operators that TensorFlow Lite Micro has not registered, or has no kernel of for integers and truth values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.legalize.pattern import avoids, reshaped
from converter.ir import BOOL, FLOAT32, INT32, Node, Value, is_described
from converter.ir.rewrite import Rewriter

#: Twice this makes 1 or more of the least number that float32 has.
_HUGE = 2.0**100
#: Operands that CONCATENATION takes.
_MOST_JOINED = 10
#: Exponents that are written as products.
_MOST_FACTORS = 64
#: What one of two halves of an integer is worth, each of which float32 has exactly.
_HALF = 65536
#: What moves numbers and has no kernel of int32, by the number of operands that are moved and the place of the first.
_MOVING: dict[type, tuple[int, int]] = {tfl.Transpose: (0, 1), tfl.Gather: (0, 1), tfl.SelectV2: (1, 3)}
_MOVING_TRUTH: dict[type, tuple[int, int]] = {**_MOVING, tfl.Pad: (0, 1), tfl.Unpack: (0, 1)}
#: What computes with integers and has no kernel of them.
_OF_INTEGERS = (tfl.Neg, tfl.Abs, tfl.Sign, tfl.FloorDiv, tfl.FloorMod, tfl.ArgMax)


def _number(b: Rewriter, value: float, dtype: np.dtype = FLOAT32) -> Value:
    return b.constant(np.array([value], dtype))


def _only(b: Rewriter, x: Value) -> float | None:
    """Return the number that a constant holds everywhere; None of what is not known or differs."""
    array = b.array(x)
    if array is None or is_described(array) or not array.size or (array != array.flat[0]).any():
        return None
    return float(array.flat[0])


@avoids(
    "absent-power",
    "TFLM: POW: refused (Didn't find op for builtin opcode 'POW')",
    lambda b, node: isinstance(node.op, tfl.Pow),
)
def by_products_or_an_exponential(b: Rewriter, node: Node) -> Value | None:
    """x^n by squarings; c^y as e^(y log c), x^c as e^(c log x) where no negative x has one.

    What both are of run time is not known to be of positive numbers. Of Adam's beta^t the logarithm is next to zero, so
    the exponent is exact far beyond what the power's own last bit is.
    """
    x, y = node.inputs
    base, exponent = _only(b, x), _only(b, y)
    if node.output.dtype != FLOAT32:
        return None
    if exponent is not None and exponent == round(exponent) and 1 <= abs(exponent) <= _MOST_FACTORS:
        power = _product(b, x, int(abs(exponent)))
        made = power if exponent > 0 else b(tfl.Div(), _number(b, 1.0), power)
        return made if made.shape == node.output.shape else b(tfl.Mul(), made, b.constant(np.ones_like(b.array(y))))
    if base is not None and base > 0:
        return b(tfl.Exp(), b(tfl.Mul(), y, b.constant(np.full(x.shape, np.log(base), np.float32))))
    if exponent is not None and exponent != round(exponent):
        return b(tfl.Exp(), b(tfl.Mul(), b(tfl.Log(), x), y))
    return None


def _product(b: Rewriter, x: Value, count: int) -> Value:
    """Return x to the power of a positive whole number, by squares."""
    if count == 1:
        return x
    half = _product(b, x, count // 2)
    square: Value = b(tfl.Mul(), half, half)
    return b(tfl.Mul(), square, x) if count % 2 else square


@avoids(
    "absent-sign",
    "TFLM: SIGN: refused (Didn't find op for builtin opcode 'SIGN')",
    lambda b, node: isinstance(node.op, tfl.Sign) and node.output.dtype == FLOAT32,
)
def by_two_clamps(b: Rewriter, node: Node) -> Value:
    """x times 2^100 between -1 and 1, twice: the least number of float32 is 2^-149."""
    clamped = tfl.Mul("RELU_N1_TO_1")
    return b(clamped, b(clamped, node.inputs[0], _number(b, _HUGE)), _number(b, _HUGE))


@avoids(
    "absent-one-hot",
    "TFLM: ONE_HOT: refused (Didn't find op for builtin opcode 'ONE_HOT')",
    lambda b, node: isinstance(node.op, tfl.OneHot) and node.op.depth <= 2**24,
)
def by_distances(b: Rewriter, node: Node) -> Value:
    """max(1 - (class - index)^2, 0); an index that float32 rounds is far from every class."""
    (indices,) = node.inputs
    column = b(tfl.Cast(FLOAT32), reshaped(b, indices, (indices.type.size, 1)))
    classes = b.constant(np.arange(node.op.depth, dtype=np.float32)[None])
    separate = b(tfl.SquaredDifference(), classes, column)
    return reshaped(b, b(tfl.Sub("RELU"), _number(b, 1.0), separate), node.output.shape)


@avoids(
    "absent-clamp",
    "TFLM: RELU_N1_TO_1: refused (Didn't find op for builtin opcode 'RELU_N1_TO_1'); MUL with that activation: right",
    lambda b, node: isinstance(node.op, tfl.ReluN1To1),
)
def clamped_product(b: Rewriter, node: Node) -> Value:
    """1 x, clamped."""
    return b(tfl.Mul("RELU_N1_TO_1"), node.inputs[0], _number(b, 1.0))


@avoids(
    "absent-tile",
    "TFLM: TILE: refused (Didn't find op for builtin opcode 'TILE'); CONCATENATION: right",
    lambda b, node: isinstance(node.op, tfl.Tile),
)
def joined_with_itself(b: Rewriter, node: Node) -> Value:
    """x joined with itself along each axis."""
    (x,) = node.inputs
    for axis, count in enumerate(node.op.multiples):
        x = x if count == 1 else b(tfl.Concatenation(axis), *[x] * count)
    return x


@avoids(
    "joined-of-many",
    "TFLM: CONCATENATION of 11 operands: refused (num_inputs <= kMaxInputNum was not true); of 10: right",
    lambda b, node: isinstance(node.op, tfl.Concatenation) and len(node.inputs) > _MOST_JOINED,
)
def joined_in_groups(b: Rewriter, node: Node) -> Value:
    """Ten at a time, and what they make."""
    starts = range(0, len(node.inputs), _MOST_JOINED)
    groups = [node.inputs[start : start + _MOST_JOINED] for start in starts]
    return b(node.op, *(group[0] if len(group) == 1 else b(node.op, *group) for group in groups))


@avoids(
    "arithmetic-of-integers",
    "TFLM: NEG, ABS, FLOOR_DIV, FLOOR_MOD, ARG_MAX of int32: refused (Type INT32 not supported), SIGN: absent; ADD, "
    "SUB, MUL, DIV, MAXIMUM, MINIMUM: right",
    lambda b, node: isinstance(node.op, _OF_INTEGERS) and node.inputs[0].dtype == INT32,
)
def of_what_it_has(b: Rewriter, node: Node) -> Value | None:
    """0 - x; the larger of x and -x; x between -1 and 1; the quotient towards zero, less 1 where that is above."""
    if isinstance(node.op, tfl.ArgMax):
        return None
    x, *others = node.inputs
    zero = _number(b, 0, INT32)
    if isinstance(node.op, tfl.Sign):
        return b(tfl.Minimum(), b(tfl.Maximum(), x, _number(b, -1, INT32)), _number(b, 1, INT32))
    if not others:
        negative = b(tfl.Sub(), zero, x)
        return negative if isinstance(node.op, tfl.Neg) else b(tfl.Maximum(), x, negative)
    (y,) = others
    quotient = b(tfl.Div(), x, y)
    rest = b(tfl.Sub(), x, b(tfl.Mul(), quotient, y))
    opposed = b(tfl.NotEqual(), b(tfl.Less(), rest, zero), b(tfl.Less(), y, zero))
    above = b(tfl.Cast(INT32), b(tfl.LogicalAnd(), opposed, b(tfl.NotEqual(), rest, zero)))
    if isinstance(node.op, tfl.FloorDiv):
        return b(tfl.Sub(), quotient, above)
    return b(tfl.Add(), rest, b(tfl.Mul(), above, y))


def _is_within(b: Rewriter, indices: Value, count: int) -> bool:
    """Return whether indices are known to be those of a table, or are kept between its ends."""
    array, below = b.array(indices), b.producer(indices, tfl.Minimum)
    if array is not None:
        return bool(((array >= 0) & (array < count)).all())
    above = None if below is None else b.producer(below.inputs[0], tfl.Maximum)
    if below is None or above is None:
        return False
    most, least = b.array(below.inputs[1]), b.array(above.inputs[1])
    return most is not None and least is not None and bool((most < count).all() and (least >= 0).all())


@avoids(
    "gather-unchecked",
    "TFLM: GATHER of an index that the table does not have: the process ends, or what lies beside the table is read",
    lambda b, node: (
        isinstance(node.op, tfl.Gather) and not _is_within(b, node.inputs[1], node.inputs[0].shape[node.op.axis])
    ),
)
def nan_beyond_the_table(b: Rewriter, node: Node) -> Value | None:
    """The nearest row, and 0 / 0 added to it where the index is another one; of integers the nearest row alone."""
    table, indices = node.inputs
    last = _number(b, table.shape[node.op.axis] - 1, INT32)
    kept = b(tfl.Minimum(), b(tfl.Maximum(), indices, _number(b, 0, INT32)), last)
    rows = b(node.op, table, kept)
    if table.dtype != FLOAT32:
        return rows
    is_there = b(tfl.Cast(FLOAT32), b(tfl.Equal(), indices, kept))
    after = (1,) * (table.type.rank - node.op.axis - 1)
    return b(tfl.Add(), rows, reshaped(b, b(tfl.Div(), _number(b, 0.0), is_there), (*indices.shape, *after)))


def _moves(node: Node, kinds: dict[type, tuple[int, int]], dtype: np.dtype) -> bool:
    return type(node.op) in kinds and node.inputs[kinds[type(node.op)][0]].dtype == dtype


def _moved(
    b: Rewriter, node: Node, kinds: dict[type, tuple[int, int]], change: Callable[[Value], Value]
) -> tuple[Value, ...]:
    """Return what a node makes of operands that are changed where it moves them."""
    first, end = kinds[type(node.op)]
    return b.node(node.op, *(change(v) if first <= n < end else v for n, v in enumerate(node.inputs))).outputs


@avoids(
    "moved-integers",
    "TFLM: TRANSPOSE, GATHER, SELECT_V2 of int32: refused (Type INT32 is not supported); of float32: right",
    lambda b, node: _moves(node, _MOVING, INT32),
)
def moved_in_halves(b: Rewriter, node: Node) -> Value:
    """The same of x / 65536 and of what is left, both of which float32 has exactly."""
    scale = _number(b, _HALF, INT32)

    def high(x: Value) -> Value:
        return b(tfl.Div(), x, scale)

    def low(x: Value) -> Value:
        return b(tfl.Sub(), x, b(tfl.Mul(), high(x), scale))

    def moved(half: Callable[[Value], Value]) -> Value:
        return b(tfl.Cast(INT32), *_moved(b, node, _MOVING, lambda x: b(tfl.Cast(FLOAT32), half(x))))

    above, below = moved(high), moved(low)
    return b(tfl.Add(), b(tfl.Mul(), above, scale), below)


@avoids(
    "moved-truth-values",
    "TFLM: TRANSPOSE, GATHER, SELECT_V2, PAD, UNPACK of bool: refused (Type BOOL is not supported); of float32: right",
    lambda b, node: _moves(node, _MOVING_TRUTH, BOOL),
)
def moved_as_numbers(b: Rewriter, node: Node) -> tuple[Value, ...]:
    """The same of 1 and 0, of which what is more than 0.5 is true."""
    made = _moved(b, node, _MOVING_TRUTH, lambda x: b(tfl.Cast(FLOAT32), x))
    return tuple(b(tfl.Greater(), result, _number(b, 0.5)) for result in made)
