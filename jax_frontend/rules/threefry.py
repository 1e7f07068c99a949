"""Threefry random bits, JAX's counter-based generator, in the arithmetic of int32 (Salmon et al. 2011)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from converter.ir import Value
from jax_frontend.registry import Equation, ImportRules, Result
from jax_frontend.rules.spelled import written_out

rule = ImportRules()

#: By how many places a word is turned, four rounds at a time.
_TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.int32(0x1BD11BDA)


@rule("threefry2x32")
def threefry2x32(call: Equation, *words: Value) -> Result:
    """Twenty rounds of an addition, a rotation and an exclusive or on two words."""
    return written_out(call, _threefry, words)


def _threefry(k0: Any, k1: Any, x0: Any, x1: Any, **_: Any) -> Any:
    keys = (k0, k1, lax.bitwise_xor(lax.bitwise_xor(k0, k1), jnp.full_like(k0, _PARITY)))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for places in _TURNS[group % 2]:
            x0 = x0 + x1
            x1 = lax.bitwise_xor(x0, _turned(x1, places))
        x0, x1 = x0 + keys[(group + 1) % 3], x1 + keys[(group + 2) % 3] + np.int32(group + 1)
    return x0, x1


def _turned(x: Any, places: int) -> Any:
    """The bits moved to the left; those that leave there come in from the right."""
    sign = lax.shift_right_arithmetic(x, jnp.full_like(x, 31))
    return (x - sign) * np.int32(1 << places) + lax.shift_right_arithmetic(x, jnp.full_like(x, 32 - places))


@rule("iota_2x32_shape")
def iota_2x32_shape(call: Equation) -> Result:
    """The number of each element, in two words."""
    type = call.outputs[0]
    low = np.arange(type.size, dtype=np.int32).reshape(type.shape)
    return call.b.constant(np.zeros_like(low)), call.b.constant(low)
