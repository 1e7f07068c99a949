"""Random numbers while a model trains, made by the program itself from the number of the call.

A number is a hash of the call's number, of who draws it, and of the place in the tensor, in wrapping int32 arithmetic
that is the same on every runtime. So a training can be repeated exactly, and one that is taken up again from a saved
state goes on with new numbers: the number of the call is part of the state.

A key of JAX is one int32. Its bits are those of `hash(key + place * golden)`, as unsigned numbers.
"""

from __future__ import annotations

from math import isqrt, prod

import numpy as np

from converter.ir import FLOAT32, INT32, Builder, Parameter, Shape, TensorType, Value, ops

#: The state tensor that counts calls, exact up to 2^24 of them.
COUNTER = "random/step"
#: Odd numbers that spread the bits (the golden ratio; Wellons' hash lowbias32, github.com/skeeto/hash-prospector).
GOLDEN, FIRST, SECOND = 0x9E3779B1, 0x7FEB352D, 0x846CA68B
#: What tells keys that are made of a key from its bits, and from each other (constants of MurmurHash3).
_SPLIT, _FOLDED = 0x85EBCA6B, 0xC2B2AE35

#: Of `unsigned_remainder`, so that no sum overflows.
LARGEST_DIVISOR = 2**30


def call_counter() -> tuple[Value, Parameter]:
    """Return the state that counts calls."""
    return Value(TensorType((1,)), COUNTER), Parameter(COUNTER, np.zeros(1, np.float32), kind="slot")


def call_key(b: Builder, counter: Value, site: int) -> Value:
    """Return the key [1] of a call for one of those who draw: no two have the same."""
    call = b(ops.Cast(INT32), counter)
    return hashed(b, b(ops.Add(), b(ops.Mul(), call, int32(GOLDEN)), int32(site * FIRST)))


def random_bits(b: Builder, keys: Value, shape: Shape) -> Value:
    """Return numbers of all int32 for each of some keys: [*keys, *shape].

    As bits of JAX, 2^31 is to be added to them.
    """
    columns = next(n for n in range(isqrt(prod(shape)), prod(shape) + 1) if n and not prod(shape) % n)
    # The places are added one axis at a time, so that no constant is as large as the result.
    rows = b.constant(int32(GOLDEN * columns * np.arange(prod(shape) // columns)[:, None]))
    places = b(ops.Add(), b(ops.Add(), rows, b.reshape(keys, (*keys.shape, 1, 1))), int32(GOLDEN * np.arange(columns)))
    return b.reshape(hashed(b, places), (*keys.shape, *shape))


def uniform(b: Builder, bits: Value) -> Value:
    """Return numbers in 0..1, 1 excluded, of the highest 23 bits."""
    high = b(ops.Cast(FLOAT32), b(ops.ShiftRight(), bits, 9))
    return b(ops.Add(), b(ops.Mul(), high, 2.0**-23), 0.5)


def split_keys(b: Builder, keys: Value, shape: Shape) -> Value:
    """New keys of each of some keys: [*keys, *shape]."""
    return random_bits(b, hashed(b, b(ops.Add(), keys, int32(_SPLIT))), shape)


def folded_key(b: Builder, key: Value, number: Value) -> Value:
    """Return the key that belongs to a number."""
    start = hashed(b, b(ops.Add(), key, int32(_FOLDED)))
    return hashed(b, b(ops.Add(), start, b(ops.Mul(), number, int32(GOLDEN))))


def unsigned_remainder(b: Builder, x: Value, divisor: np.ndarray) -> Value:
    """Return the remainder of int32 taken for unsigned numbers, by positive ones up to LARGEST_DIVISOR."""
    above = b(ops.Mul(), b(ops.Cast(INT32), b(ops.Less(), x, 0)), int32(2**32 % divisor.astype(np.int64)))
    return b(ops.FloorMod(), b(ops.Add(), b(ops.FloorMod(), x, divisor), above), divisor)


def hashed(b: Builder, x: Value) -> Value:
    """Mix by two rounds of multiplications and shifts."""
    for shift, factor in ((16, FIRST), (15, SECOND)):
        x = b(ops.Mul(), b(ops.BitwiseXor(), x, b(ops.ShiftRight(), x, shift)), int32(factor))
    return x


def int32(numbers: int | np.ndarray) -> np.ndarray:
    """Return the lowest 32 bits, as int32 has them."""
    return (np.asarray(numbers, np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
