"""Random numbers by the keys of a compiled program (`converter.ir.random_numbers`): JAX' bits.

JAX makes a uniform number of the highest bits of a random word, by the layout of floats in memory, and an integer by
remainders. Bits are marked until it is clear which of the two they become.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.extend.random
import numpy as np

from converter.ir import Builder, Value, ops
from converter.ir.folding import FoldingBuilder
from converter.ir.random_numbers import folded_key, random_bits, split_keys, uniform
from converter.support.errors import NotImportable
from jax_frontend.dtypes import KEYS
from jax_frontend.registry import Equation, ImportRules, Result
from jax_frontend.unsupported import UnsupportedForm

rule = ImportRules()

#: The bits of 1.0 in float32, whose mantissa is in the lowest 23.
_ONE, _MANTISSA = 0x3F800000, 23
_ADVICE = "draw with jax.random.uniform, normal, bernoulli or randint of float32 and int32"
_WIDTH = UnsupportedForm("random bits of another width than 32", _ADVICE)
_SIZE = UnsupportedForm("bits of another size taken for numbers", "use types of 32 bits")
#: Bits that become neither.
RAW_BITS = UnsupportedForm("random bits as they are", _ADVICE)


@cache
def generator() -> Any:
    """What JAX knows of the generator: its numbers are only known to the program."""

    def unknown(*_: Any) -> Any:
        raise NotImplementedError("keys of a compiled program have no value while it is built")

    return jax.extend.random.define_prng_impl(
        key_shape=(1,), seed=unknown, split=unknown, random_bits=unknown, fold_in=unknown, name=KEYS, tag=KEYS
    )


def key_type() -> jax.ShapeDtypeStruct:
    """The type of a key, for tracing."""
    return jax.eval_shape(lambda: jax.random.wrap_key_data(np.zeros(1, np.uint32), impl=generator()))


@rule("random_bits", refuses=[_WIDTH])
def bits(call: Equation, keys: Value) -> Result:
    """Bits of a hash, for uniform numbers and for integers."""
    if call.params["bit_width"] != 32:
        raise NotImportable(*_WIDTH)
    return call.b(ops.RandomBits(tuple(call.params["shape"])), keys)


@rule("random_split")
def split(call: Equation, keys: Value) -> Result:
    """Hashes of the key."""
    return split_keys(call.b, keys, tuple(call.params["shape"]))


@rule("random_fold_in")
def fold_in(call: Equation, keys: Value, numbers: Value) -> Result:
    """A hash of the key and the number."""
    return folded_key(call.b, keys, numbers)


@rule("random_clone", broadcasts=True)
def clone(call: Equation, keys: Value) -> Result:
    """The same key."""
    return keys


@rule("bitcast_convert_type", refuses=[_SIZE, RAW_BITS])
def bitcast_convert_type(call: Equation, x: Value) -> Result:
    """The same bits of 32 as another type; of random bits below the exponent of 1.0 a uniform number from 1 to 2."""
    assert isinstance(call.b, FoldingBuilder)
    node = call.b.producer(x, ops.RandomBits)
    if node is None:
        if np.dtype(call.params["new_dtype"]).itemsize != 4 or call.inputs[0].shape != call.output.shape:
            raise NotImportable(*_SIZE)
        return x if x.dtype == call.output.dtype else call.b(ops.Bitcast(call.output.dtype), x)
    if node.op.use != "float":
        raise NotImportable(*RAW_BITS)
    return call.b(ops.Add(), uniform(call.b, random_bits(call.b, node.inputs[0], node.op.shape)), 1.0)


def mantissa(call: Equation, x: Value, n: Value) -> Value | None:
    """Random bits without those that a mantissa has no place for, where that is what a shift to the right does."""
    return _used(call, x, n, "", 32 - _MANTISSA, "mantissa")


def with_exponent(call: Equation, x: Value, y: Value) -> Value | None:
    """Such a mantissa with the exponent of 1.0, where that is what is put together."""
    return _used(call, x, y, "mantissa", _ONE, "float")


def drawn(b: Builder, x: Value) -> Value | None:
    """The unsigned numbers that random bits are, if these are such bits."""
    assert isinstance(b, FoldingBuilder)
    node = b.producer(x, ops.RandomBits)
    if node is None or node.op.use:
        return None
    return b(ops.Add(), random_bits(b, node.inputs[0], node.op.shape), b.constant(np.int32(-(2**31))))


def _used(call: Equation, x: Value, y: Value, before: str, number: int, after: str) -> Value | None:
    assert isinstance(call.b, FoldingBuilder)
    node = call.b.producer(x, ops.RandomBits)
    if node is None or node.op.use != before or call.b.scalar(y) != number:
        return None
    return call.b(ops.RandomBits(node.op.shape, after), *node.inputs)
