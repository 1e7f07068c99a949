"""Masks (`masked`): which places a loss, or the statistics of a batch, count. In JAX the mark does nothing."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from converter.ir import Value, ops
from jax_frontend.importer import full
from jax_frontend.registry import Equation, ImportRules, Result

rule = ImportRules()

_MASKED = Primitive("pocketune_masked")
_MASKED.def_impl(lambda x, mask: x)
_MASKED.def_abstract_eval(lambda x, mask: x)
mlir.register_lowering(_MASKED, mlir.lower_fun(lambda x, mask: x, multiple_results=False))
ad.primitive_jvps[_MASKED] = lambda primals, tangents: (_MASKED.bind(*primals), tangents[0])


def masked(x: Any, mask: Any) -> Any:
    """Return an output `x` as it is; a loss of the compiled program counts the places where `mask` is not 0.

    Args:
        x: an array of JAX.
        mask: an array of its first axes.
    """
    return _MASKED.bind(x, jnp.asarray(mask).astype(jnp.float32))


@rule("pocketune_masked")
def pocketune_masked(call: Equation, x: Value, mask: Value) -> Result:
    """Return the mark itself."""
    whole = (full(call.b, value, type) for value, type in zip((x, mask), call.inputs, strict=True))
    return call.b(ops.Masked(), *whole)
