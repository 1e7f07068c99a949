"""Bits of integers. TFLite has an exclusive or and a shift to the right; arithmetic in int32 wraps around."""

from __future__ import annotations

from functools import reduce, wraps
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from converter.ir import BOOL, Value, ops
from jax_frontend.importer import full
from jax_frontend.registry import Equation, ImportRules, Result
from jax_frontend.rules.random import mantissa, with_exponent
from jax_frontend.rules.spelled import written_out

rule = ImportRules()

#: 2^n as int32, the sign bit last.
_POWERS = (np.int64(1) << np.arange(32)).astype(np.uint32).view(np.int32)


def bitwise_and(x: Any, y: Any, **_: Any) -> Any:
    """x + y = (x ^ y) + 2 (x & y), in halves of 16 bits so that no sum overflows."""

    def half(u: Any, v: Any) -> Any:
        return lax.shift_right_arithmetic(u + v - lax.bitwise_xor(u, v), jnp.int32(1))

    xs, ys = (lax.shift_right_arithmetic(v, jnp.int32(16)) for v in (x, y))
    return half(xs, ys) * 65536 + half(x - xs * 65536, y - ys * 65536)


def rounded(x: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """The nearest number of fewer bits, of two the even one; beyond the largest infinity, below the smallest zero."""
    bits, least = lax.bitcast_convert_type(x, jnp.int32), 2 - (1 << (exponent_bits - 1))
    if (dropped := max(23 - mantissa_bits, 0)) > 0:
        last = lax.shift_right_arithmetic(bits, jnp.int32(dropped))
        odd = last - 2 * lax.shift_right_arithmetic(last, jnp.int32(1))
        up = bits + odd + ((1 << (dropped - 1)) - 1)
        bits = lax.shift_right_arithmetic(up, jnp.int32(dropped)) * (1 << dropped)
    number = lax.bitcast_convert_type(bits, jnp.float32)
    if exponent_bits < 8:
        size, largest = abs(number), (2 - 2.0**-mantissa_bits) * 2.0 ** (1 - least)
        number = jnp.where(size > largest, number * np.inf, jnp.where(size < 2.0**least, number * 0.0, number))
    return jnp.where(x == x, number, x)


def bitwise_or(x: Any, y: Any, **_: Any) -> Any:
    """The bits of one or the other, and those of both."""
    return lax.bitwise_xor(x, y) + bitwise_and(x, y)


def _logical(name: str, op: Any, formula: Any) -> None:
    @rule(name, broadcasts=True)
    def apply(call: Equation, *values: Value) -> Result:
        """Of bools as logic; of integers bit by bit, in the arithmetic of int32."""
        if call.output.dtype == BOOL:
            return call.b(op, *values)
        if name == "or" and (number := with_exponent(call, *values)) is not None:
            return number
        values = tuple(full(call.b, v, t) for v, t in zip(values, call.inputs, strict=True))
        return written_out(call, formula, values) if callable(formula) else call.b(formula, *values)


_logical("and", ops.LogicalAnd(), bitwise_and)
_logical("or", ops.LogicalOr(), bitwise_or)
_logical("xor", ops.NotEqual(), ops.BitwiseXor())
_logical("not", ops.LogicalNot(), lambda x, **_: -1 - x)


@rule("shift_right_arithmetic", broadcasts=True)
def shift_right_arithmetic(call: Equation, x: Value, n: Value) -> Result:
    """By 31 at most: there all is sign. A negative amount is a large one."""
    known = call.constant(n)
    if known is None or ((known < 0) | (known > 31)).any():
        b = call.b
        n = b(ops.Select(), b(ops.Less(), n, 0), b.constant(np.int32(31)), b(ops.Minimum(), n, 31))
    return call.b(ops.ShiftRight(), x, n)


def shift_left(x: Any, n: Any, **_: Any) -> Any:
    """A product with a power of two."""
    return jnp.where((n >= 0) & (n < 32), x * _power(n), 0)


@rule("shift_right_logical", broadcasts=True)
def shift_right_logical_(call: Equation, x: Value, n: Value) -> Result:
    """The arithmetic shift, with zeros in place of the sign's copies."""
    if (high := mantissa(call, x, n)) is not None:
        return high
    values = [full(call.b, v, t) for v, t in zip((x, n), call.inputs, strict=True)]
    return written_out(call, shift_right_logical, values)


def shift_right_logical(x: Any, n: Any, **_: Any) -> Any:
    """The arithmetic shift, with zeros in place of the sign's copies."""
    moved = lax.shift_right_arithmetic(x, n) + jnp.where((x < 0) & (n > 0), _power(32 - n), 0)
    return jnp.where((n >= 0) & (n < 32), moved, 0)


def _power(n: Any) -> Any:
    return jnp.take(jnp.asarray(_POWERS), jnp.clip(n, 0, 31), mode="clip")


def population_count(x: Any, **_: Any) -> Any:
    """Sums of neighbouring bits, then of pairs, of fours; the product adds the bytes up."""
    x = x - bitwise_and(shift_right_logical(x, jnp.int32(1)), jnp.int32(0x55555555))
    pairs = bitwise_and(shift_right_logical(x, jnp.int32(2)), jnp.int32(0x33333333))
    x = bitwise_and(x, jnp.int32(0x33333333)) + pairs
    x = bitwise_and(x + shift_right_logical(x, jnp.int32(4)), jnp.int32(0x0F0F0F0F))
    return shift_right_logical(x * 0x01010101, jnp.int32(24))


def clz(x: Any, **_: Any) -> Any:
    """How many shifts to the right leave nothing."""
    empty = [(shift_right_logical(x, jnp.int32(n)) == 0).astype(jnp.int32) for n in range(32)]
    return reduce(jnp.add, empty)


def _written_out(name: str, formula: Any) -> None:
    @rule(name)
    @wraps(formula)
    def apply(call: Equation, *values: Value) -> Result:
        return written_out(call, formula, values)


def unsigned_div(x: Any, y: Any, **_: Any) -> Any:
    """Of halves, which have no sign, doubled; then there is at most one more. By 0 all bits."""
    safe = jnp.where(y > 0, y, 1)
    quotient = lax.div(shift_right_logical(x, jnp.int32(1)), safe) * 2
    quotient = quotient + _not_below(x - quotient * safe, safe)
    return jnp.where(y > 0, quotient, jnp.where(y == 0, -1, _not_below(x, y)))


def unsigned_rem(x: Any, y: Any, **_: Any) -> Any:
    """What the quotient leaves; all of x where y is 0."""
    return jnp.where(y == 0, x, x - unsigned_div(x, y) * y)


def _not_below(x: Any, y: Any) -> Any:
    """1 where x >= y as numbers without a sign."""
    top = np.int32(-(2**31))
    return (x + top >= y + top).astype(jnp.int32)


_written_out("unsigned div", unsigned_div)
for _formula in (shift_left, population_count, clz):
    _written_out(_formula.__name__, _formula)
