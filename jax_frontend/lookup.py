"""Checked look-ups (`rows_of`): an index that the table does not have ends a call of the program with an error."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from converter.ir import Value, ops
from jax_frontend.registry import Equation, ImportRules, Result

rule = ImportRules()

_ROWS = Primitive("pocketune_rows_of")


def rows_of(table: jax.Array, indices: jax.Array) -> jax.Array:
    """Return rows of a table by their numbers, [..., columns].

    The program's own look-up refuses an index below 0 or past the end, where JAX takes the nearest row.

    Args:
        table: [rows, columns].
        indices: int32 [...].
    """
    return _ROWS.bind(table, indices)


def _nearest(table: Any, indices: Any) -> Any:
    return jnp.take(table, indices, 0, mode="clip")


def _differentiated(primals: Any, tangents: Any) -> Any:
    (table, indices), along = primals, ad.instantiate_zeros(tangents[0])
    return _ROWS.bind(table, indices), _nearest(along, indices)


_ROWS.def_impl(_nearest)
_ROWS.def_abstract_eval(lambda table, indices: ShapedArray((*indices.shape, *table.shape[1:]), table.dtype))
mlir.register_lowering(_ROWS, mlir.lower_fun(_nearest, multiple_results=False))
ad.primitive_jvps[_ROWS] = _differentiated


@rule("pocketune_rows_of")
def pocketune_rows_of(call: Equation, table: Value, indices: Value) -> Result:
    """Return the look-up of the runtime, which checks."""
    return call.b(ops.Gather(0), table, indices)
