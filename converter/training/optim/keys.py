"""Random keys in an optimizer's state: the program's own (`converter.ir.random_numbers`), kept as float32."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from converter.ir import FLOAT32, INT32, Builder, Value, ops
from converter.ir.random_numbers import SECOND, int32
from jax_frontend.rules.random import key_type

#: A key is 32 bits: the upper half in -2^15..2^15-1 and the lower in 0..2^16-1, both exact in float32.
_HALVES, _UPPER = 2, 2**16


def is_key(leaf: Any) -> bool:
    """Return whether a leaf of a state, or its type, is a key of `jax.random`; raw ones are uint32 [..., 2]."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return False
    raw = dtype == np.uint32 and np.shape(leaf)[-1:] == (_HALVES,)
    return raw or bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def program_key(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the type of the program's key in the place of a key."""
    words = leaf.dtype == np.uint32
    return jax.ShapeDtypeStruct(leaf.shape[:-1] if words else leaf.shape, key_type().dtype)


def stored_key(leaf: Any) -> np.ndarray:
    """Return the halves [..., 2], float32, of the program's key that a key of JAX begins as: other keys, other ones."""
    words = np.asarray(leaf if leaf.dtype == np.uint32 else jax.random.key_data(leaf)).astype(np.int64)
    key = np.zeros(words.shape[:-1], np.int64)
    for word in np.moveaxis(words, -1, 0):
        key = int32(int32(key * SECOND) + word).astype(np.int64)
    return np.stack([key >> 16, key & (_UPPER - 1)], -1).astype(np.float32)


def joined(b: Builder, halves: Value) -> Value:
    """Return the key, int32 [...], of its halves, float32 [..., 2]."""
    shape = halves.shape[:-1]
    first = (0,) * len(shape)
    parts = [b(ops.Slice((*first, place), (*shape, 1)), halves) for place in range(_HALVES)]
    upper, lower = (b.reshape(b(ops.Cast(INT32), part), shape) for part in parts)
    return b(ops.Add(), b(ops.Mul(), upper, np.asarray(_UPPER, np.int32)), lower)


def halved(b: Builder, key: Value) -> Value:
    """Return the halves, float32 [..., 2], of a key, int32 [...]."""
    upper = b(ops.ShiftRight(), key, 16)  # with its sign
    lower = b(ops.Sub(), key, b(ops.Mul(), upper, np.asarray(_UPPER, np.int32)))
    parts = [b.reshape(b(ops.Cast(FLOAT32), half), (*key.shape, 1)) for half in (upper, lower)]
    return b(ops.Concat(len(key.shape)), *parts)
