"""Integers of 8 and 16 bits, and unsigned ones, in int32.

A narrow type's numbers are what they are; a result that leaves their range wraps, as its type says. uint32 is the 32
bits: its numbers from 2^31 on are negative here, and what depends on their order looks at them turned by 2^31.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from converter.ir import FLOAT32, Builder, Value, ops

_NARROW = ("uint8", "int8", "uint16", "int16")
#: Primitives whose result may leave the range of their operands' type.
_LEAVING = {
    "abs", "add", "add_any", "conv_general_dilated", "convert_element_type", "cumprod", "cumsum", "div", "dot_general",
    "integer_pow", "mul", "neg", "not", "pow", "reduce_prod", "reduce_sum", "reduce_window_sum", "scatter-add",
    "scatter-mul", "scatter-sub", "shift_left", "square", "sub",
}  # fmt: skip
#: Primitives that ask for the order of their operands, and whether they give one of these back.
_ORDERED = {
    **dict.fromkeys(("lt", "le", "gt", "ge", "argmax", "argmin"), False),
    **dict.fromkeys(("max", "min", "clamp", "reduce_max", "reduce_min", "cummax", "cummin", "sort", "top_k"), True),
}
#: Primitives on the bits of a number, and the integers of less than 32 bits for which 32 bits give the same: all that
#: comes before their bits are zeros, or copies of their sign.
_BITWISE = {
    "clz": "",
    "population_count": "uint",
    "shift_right_logical": "uint",
    "shift_right_arithmetic": "int",
}
_TOP = np.int32(-(2**31))


def is_narrow(aval: Any) -> bool:
    """Return whether an abstract value of JAX is of integers of 8 or 16 bits."""
    return str(aval.dtype) in _NARROW


def is_unsigned(aval: Any) -> bool:
    """Return whether it is of uint32."""
    return str(aval.dtype) == "uint32"


def counts_bits(primitive: str, avals: list[Any]) -> bool:
    """Return whether the result of a primitive tells that an operand of less than 32 bits has more."""
    kind = _BITWISE.get(primitive)
    return kind is not None and any(is_narrow(a) and (not kind or not str(a.dtype).startswith(kind)) for a in avals)


def by_order(b: Builder, primitive: str, avals: list[Any], values: list[Value]) -> list[Value]:
    """Return the operands of a primitive that asks for their order, with that of uint32 as int32 has it."""
    return [
        _turned(b, v) if primitive in _ORDERED and is_unsigned(a) else v for a, v in zip(avals, values, strict=True)
    ]


def as_typed(b: Builder, primitive: str, of: list[Any], avals: list[Any], values: list[Value]) -> list[Value]:
    """Return the results of a primitive, by operands `of`, as their types in JAX say."""
    if primitive == "convert_element_type" and is_unsigned(of[0]) and values[0].dtype == FLOAT32:
        (x,) = values
        return [b(ops.Select(), b(ops.Less(), x, 0.0), b(ops.Add(), x, 2.0**32), x)]
    made = []
    for aval, value in zip(avals, values, strict=True):
        if is_narrow(aval) and primitive in _LEAVING:
            value = _wrapped(b, value, np.iinfo(str(aval.dtype)))
        elif is_unsigned(aval) and _ORDERED.get(primitive):
            value = _turned(b, value)
        made.append(value)
    return made


def clamped(b: Builder, x: Value, dtype: np.dtype) -> Value:
    """Floats on their way to a narrow type, which ends at its ends."""
    info = np.iinfo(dtype)
    return b(ops.Minimum(), b(ops.Maximum(), x, float(info.min)), float(info.max))


def _wrapped(b: Builder, x: Value, info: np.iinfo) -> Value:
    """x modulo 2^bits, from `info.min` on."""
    above = b(ops.Sub(), x, info.min)
    rounds = b(ops.ShiftRight(), above, info.bits)
    return b(ops.Sub(), x, b(ops.Mul(), rounds, 1 << info.bits))


def _turned(b: Builder, x: Value) -> Value:
    return b(ops.Add(), x, b.constant(_TOP))
