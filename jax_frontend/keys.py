"""Random keys of `jax.random` as the two words that each is made of, int32 [..., 2]: its bits are those of JAX.

A constant key's bits are constants. Of a model they would be the same in every step, so there only those of keys that
come in as inputs are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp

from converter.support.errors import NotImportable
from jax_frontend.unsupported import RANDOM

#: The type of a key of JAX's default generator, and how many numbers it is.
KEY, WORDS = "key<fry>", 2
#: Equations that hand keys on to a jaxpr of their own, whose equations see them.
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "cond", "scan", "while",
          "custom_jvp_call", "custom_vjp_call", "optimization_barrier"}  # fmt: skip


def is_key(aval: Any) -> bool:
    """Return whether an abstract value of JAX is of keys that have words."""
    return str(getattr(aval, "dtype", "")) == KEY


def draws(eqn: Any) -> bool:
    """Return whether an equation does something with keys itself."""
    return eqn.primitive.name not in _CALLS and any(is_key(v.aval) for v in (*eqn.invars, *eqn.outvars))


def on_words(eqn: Any) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """Return the equation as a function of words, uint32 [..., 2], in place of keys; and the types of its operands."""
    types = [jax.ShapeDtypeStruct((*v.aval.shape, WORDS), "uint32") if is_key(v.aval) else v.aval for v in eqn.invars]
    name = eqn.primitive.name
    own = _OWN.get(name)
    if own is None and name.startswith("random"):
        raise NotImportable(RANDOM)
    if own is not None:
        return lambda *arrays: own(eqn, *arrays), types

    def of_one_word(*arrays: Any) -> Any:
        return eqn.primitive.bind(*arrays, **eqn.params)

    axes = [-1 if is_key(v.aval) else None for v in eqn.invars]
    return jax.vmap(of_one_word, in_axes=axes, out_axes=-1), types  # moves keys: word by word


def _seed(eqn: Any, seeds: Any) -> Any:
    return _each(jax.extend.random.threefry_prng_impl.seed, jnp.ndim(seeds))(seeds)


def _bits(eqn: Any, words: Any) -> Any:
    width, shape = int(eqn.params["bit_width"]), tuple(eqn.params["shape"])

    def of_one(key: Any) -> Any:
        return jax.extend.random.threefry_prng_impl.random_bits(key, width, shape)

    return _each(of_one, words.ndim - 1)(words)


def _split(eqn: Any, words: Any) -> Any:
    shape = tuple(eqn.params["shape"])
    return _each(lambda key: jax.extend.random.threefry_prng_impl.split(key, shape), words.ndim - 1)(words)


def _fold_in(eqn: Any, words: Any, numbers: Any) -> Any:
    return _each(jax.extend.random.threefry_prng_impl.fold_in, words.ndim - 1)(words, numbers)


def _same(eqn: Any, words: Any) -> Any:
    return words


def _each(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    for _ in range(axes):
        function = jax.vmap(function)
    return function


_OWN: dict[str, Callable[..., Any]] = {
    "random_seed": _seed,
    "random_bits": _bits,
    "random_split": _split,
    "random_fold_in": _fold_in,
    **dict.fromkeys(("random_wrap", "random_unwrap", "random_clone"), _same),
}
