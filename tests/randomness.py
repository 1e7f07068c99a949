"""The random numbers of a program by their definition, as a generator of JAX."""

from functools import cache
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np

GOLDEN, FIRST, SECOND, SPLIT, FOLDED = (np.uint32(n) for n in (
    0x9E3779B1, 0x7FEB352D, 0x846CA68B, 0x85EBCA6B, 0xC2B2AE35))  # fmt: skip


def hashed(x: Any) -> Any:
    """Two rounds on 32 bits; the sign comes in from the left."""
    for shift, factor in ((16, FIRST), (15, SECOND)):
        x = (x ^ (x.astype(jnp.int32) >> shift).astype(jnp.uint32)) * factor
    return x


def words(start: Any, shape: tuple[int, ...]) -> Any:
    places = np.arange(np.prod(shape, dtype=int), dtype=np.uint32)
    return hashed(start + GOLDEN * places).reshape(shape)


@cache
def generator() -> Any:
    """The generator of the program as one of JAX."""

    def bits(key: Any, width: int, shape: tuple[int, ...]) -> Any:
        assert width == 32
        return words(key[0], shape) + np.uint32(2**31)

    return jax.extend.random.define_prng_impl(
        key_shape=(1,),
        seed=lambda seed: jnp.asarray(seed, jnp.uint32).reshape(1),
        split=lambda key, shape: words(hashed(key[0] + SPLIT), shape)[..., None],
        random_bits=bits,
        fold_in=lambda key, data: hashed(hashed(key + FOLDED) + GOLDEN * jnp.asarray(data, jnp.uint32)),
        name="oracle",
        tag="oracle",
    )


@cache
def key_of(call: int, who: int = -1) -> Any:
    """The key of one call of the training step; the augmentation is -1."""
    start = np.array([(call * int(GOLDEN) + who * int(FIRST)) & 0xFFFFFFFF], np.uint32)
    return jax.random.wrap_key_data(hashed(jnp.asarray(start)), impl=generator())
