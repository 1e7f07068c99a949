"""Products of matrices and vectors."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from converter.frontends.torch.registry import Call, Rules

rule = Rules()

rule.computes(jnp.matmul, ["matmul", "mm", "bmm", "mv"])
rule.computes(jnp.dot, ["dot", "vdot"])
rule.computes(jnp.outer, ["outer"])


@rule("linear")
def linear(call: Call, x: Any, w: Any, bias: Any = None) -> Any:
    y = lax.dot_general(x, w, (((x.ndim - 1,), (w.ndim - 1,)), ((), ())))
    return y if bias is None else y + bias


def _added(bias: Any, product: Any, beta: Any, alpha: Any) -> Any:
    return (bias if beta == 1 else beta * bias) + (product if alpha == 1 else alpha * product)


@rule("addmm", "addmv", "baddbmm")
def addmm(call: Call, bias: Any, x: Any, w: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = jnp.matmul(x, w)
    return product if beta == 0 else _added(bias, product, beta, alpha)


@rule("einsum")
def einsum(call: Call, equation: str, operands: list[Any], *, path: Any = None) -> Any:
    return jnp.einsum(equation.replace(" ", ""), *operands)


@rule("bilinear")
def bilinear(call: Call, x: Any, y: Any, w: Any, bias: Any = None) -> Any:
    z = jnp.einsum("...i,oij,...j->...o", x, w, y)
    return z if bias is None else z + bias
