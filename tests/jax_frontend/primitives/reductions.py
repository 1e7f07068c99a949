"""Reductions, cumulative ops and products."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.jax_frontend.primitives.table import b, case, f, i

# Reductions.
for _name in ("sum", "max", "min", "prod", "mean", "any", "all", "argmax", "argmin", "var", "std", "median"):
    if _name != "median":
        for _axis in (None, 0, 1, -1):
            case(f"{_name} over {_axis}", lambda x, n=_name, a=_axis: getattr(jnp, n)(x, axis=a), f(3, 4, 5))
    case(f"{_name} of a vector", lambda x, n=_name: getattr(jnp, n)(x), f(5))
for _name in ("sum", "max", "min", "prod", "argmax", "argmin", "any", "all", "mean"):
    case(f"reduced {_name} of integers", lambda x, n=_name: (getattr(jnp, n)(x), getattr(jnp, n)(x, axis=1)), i(3, 4))
for _name in ("argmax", "argmin", "any", "all", "sum", "max", "min", "prod"):
    case(f"reduced {_name} of bools", lambda x, n=_name: (getattr(jnp, n)(x), getattr(jnp, n)(x, axis=1)), b(3, 4))
case("argmax with ties", lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 1)), [[1.0, 3, 3, 1], [2, 2, 2, 2]])
case("argmin of the extreme integer", lambda x: jnp.argmin(x, 0), np.array([5, -(2**31), 3, 2**31 - 1], np.int32))
case("max with ties", lambda x: (x.max(1), x.min(1), x.max()), [[1.0, 3, 3, 1], [2, 2, 2, 2]])
case("prod with zeros", lambda x: (x.prod(1), x.prod()), [[1.0, 0, 3, 2], [2, 0, 0, 1], [1, 2, 3, 4]])
case("prod of many", lambda x: x.prod(), 1 + f(100) / 20)
case("max of negative infinity", lambda x: x.max(1), [[-np.inf, -np.inf], [1, -np.inf]], gradient=False)
case(
    "reduce_sum of rank 6", lambda x: x.sum((0, 3)) + x.sum((1, 2)).sum() + x.max((0, 1, 5)).sum(), f(2, 1, 3, 2, 2, 2)
)
case("reductions of rank 0", lambda x: x.sum() + x.max() + x.prod() + x.mean(), np.float32(3))
case(
    "logsumexp",
    lambda x: (jax.nn.logsumexp(x), jax.nn.logsumexp(x, 0), jax.nn.logsumexp(x, 1, keepdims=True)),
    f(3, 4) * 5,
)
case("logsumexp with weights", lambda x, w: jax.nn.logsumexp(x, axis=1, b=w), f(3, 4), np.abs(f(3, 4)))
case(
    "softmax",
    lambda x: (jax.nn.softmax(x), jax.nn.softmax(x, 0), jax.nn.log_softmax(x, 1), jax.nn.log_softmax(x)),
    f(3, 4) * 5,
)
case(
    "softmax with a mask",
    lambda x, m: jax.nn.softmax(x, where=m),
    f(3, 4),
    [[True, True, False, True]] * 3,
)
case("softmax of a vector", jax.nn.softmax, f(5))
case(
    "norms",
    lambda x: (
        jnp.linalg.norm(x),
        jnp.linalg.norm(x, axis=1),
        jnp.linalg.norm(x, ord=1, axis=1),
        jnp.linalg.norm(x, ord=jnp.inf, axis=0),
    ),
    f(3, 4),
)
case("ptp and quantile", lambda x: jnp.ptp(x, 1), f(3, 4))
case("quantile", lambda x: (jnp.quantile(x, 0.3), jnp.quantile(x, 0.75, axis=1), jnp.median(x, 1)), f(3, 5))
case("percentile of rows", lambda x: jnp.percentile(x, jnp.array([10.0, 50.0]), axis=1), f(3, 5))
case(
    "reduce by a known monoid",
    lambda x: (
        lax.reduce(x, np.float32(0), lax.add, (1,)),
        lax.reduce(x, -np.float32(np.inf), lax.max, (0,)),
        lax.reduce(x, np.float32(np.inf), lax.min, (0, 1)),
        lax.reduce(x, np.float32(1), lax.mul, (1,)),
    ),
    f(3, 4),
)
case("reduce from another start", lambda x: lax.reduce(x, np.float32(2), lax.add, (1,)), f(3, 4), gradient=False)
case("reduce with a lambda", lambda x: lax.reduce(x, np.float32(0), lambda a, c: a + c, (1,)), f(3, 4))
case("reduce_precision", lambda x: lax.reduce_precision(x, 8, 23), f(4))
ROUNDED = np.array([0.7013, -1.9, 1 + 2**-8, 1 + 3 * 2**-8, 65519, 65520, 6.2e-5, 6e-5, -1e30, np.inf, -np.inf, 0])
for _e, _m in ((8, 7), (5, 10), (4, 3), (5, 23)):
    case(f"reduce_precision to {_e} and {_m} bits", lambda x, e=_e, m=_m: lax.reduce_precision(x, e, m), ROUNDED)
for _name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
    for _reverse in (False, True):
        case(f"{_name} reverse={_reverse}", lambda x, n=_name, r=_reverse: getattr(lax, n)(x, 1, reverse=r), f(3, 5, 2))
        if _name != "cumlogsumexp":
            case(
                f"{_name} of integers, reverse={_reverse}",
                lambda x, n=_name, r=_reverse: getattr(lax, n)(x, 1, reverse=r),
                i(3, 5, low=-3, high=4),
            )
    case(f"{_name} of a vector", lambda x, n=_name: getattr(lax, n)(x, 0), f(7))
case("cumsum of a long axis", lambda x: jnp.cumsum(x, 1), f(2, 300), atol=1e-5)
case("cummax with ties", lambda x: (lax.cummax(x, 0), lax.cummin(x, 0)), [1.0, 3, 3, 2, 3, 1, 1])
case("cumprod with zeros", lambda x: lax.cumprod(x, 0), [1.0, 2, 0, 3, 2], gradient=False)
case("diff", lambda x: (jnp.diff(x), jnp.diff(x, axis=0), jnp.diff(x, n=2)), f(3, 5))
case("associative scan", lambda x: lax.associative_scan(jnp.add, x, axis=0), f(7, 2))
case("trapezoid", lambda x: jnp.trapezoid(x, dx=0.5), f(3, 5))

# Products.
case("vector times vector", lambda x, y: x @ y, f(5), f(5))
case("matrix times vector", lambda x, y: (x @ y, y @ x.T), f(3, 5), f(5))
case("dot", jnp.dot, f(3, 4), f(4, 5))
case(
    "outer, inner, vdot, tensordot",
    lambda x, y: (jnp.outer(x, y), jnp.inner(x, y), jnp.vdot(x, y), jnp.tensordot(x, y, 0), jnp.tensordot(x, y, 1)),
    f(4),
    f(4),
)
for _formula, _shapes in {
    "ij,jk->ik": ((3, 4), (4, 5)),
    "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)),
    "bhqd,bhkd->bhqk": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "bhqk,bkhd->bqhd": ((2, 3, 4, 5), (2, 5, 3, 6)),
    "abc,cd->abd": ((2, 3, 4), (4, 5)),
    "abcd,cd->ab": ((2, 3, 4, 5), (4, 5)),
    "i,i->": ((4,), (4,)),
    "i,j->ij": ((3,), (4,)),
    "ij->ji": ((3, 4),),
    "ii->": ((3, 3),),
    "ii->i": ((3, 3),),
    "ij->": ((3, 4),),
    "ijk,jil->kl": ((2, 3, 4), (3, 2, 5)),
    "bij,bj->bi": ((2, 3, 4), (2, 4)),
    "b,b->b": ((3,), (3,)),
    "abcdef,fg->abcdeg": ((1, 2, 1, 2, 3, 4), (4, 5)),
    "abcde,abcef->abcdf": ((2, 1, 2, 3, 4), (2, 1, 2, 4, 2)),
    "abcdef,abcdfg->abcdeg": ((2, 1, 2, 2, 3, 4), (2, 1, 2, 2, 4, 2)),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 2)),
}.items():
    case(f"einsum {_formula}", partial(jnp.einsum, _formula), *(f(*s) for s in _shapes))
case("dot of integers", lambda x, y: x @ y, i(3, 4), i(4, 5))
case("dot of integer vectors", lambda x, y: x @ y, i(4), i(4))
case("batched dot of integers", lambda x, y: jnp.einsum("bij,bjk->bik", x, y), i(2, 3, 4), i(2, 4, 5))
case("dot of large integers", lambda x, y: x @ y, i(3, 4, low=-30000, high=30000), i(4, 5, low=-30000, high=30000))
case("dot of bools", lambda x, y: x @ y, b(3, 4), b(4, 5))
case("dot of integers and floats", lambda x, y: x @ y, i(3, 4), f(4, 5))
case("dot into int32", lambda x, y: lax.dot(x, y, preferred_element_type=jnp.float32), i(3, 4), i(4, 5))
case("dot of highest precision", lambda x, y: jnp.dot(x, y, precision="highest"), f(3, 4), f(4, 5))
case("dot with a preferred type", lambda x, y: lax.dot(x, y, preferred_element_type=jnp.float32), f(3, 4), f(4, 5))
case("matmul broadcasts", lambda x, y: x @ y, f(2, 1, 3, 4), f(5, 4, 2))
case("kron and cross", lambda x, y: (jnp.kron(x, y), jnp.cross(x[0, :3], y[0, :3])), f(2, 3), f(2, 4))
case("matrix power", lambda x: jnp.linalg.matrix_power(x, 3), f(3, 3))
case(
    "attention",
    lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
    f(2, 5, 2, 4),
    f(2, 5, 2, 4),
    f(2, 5, 2, 4),
)
case("product with nothing to add", lambda x, y: x @ y, f(3, 1), f(1, 4))
