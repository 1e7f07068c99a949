"""Data movement, indexing, sorting."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.jax_frontend.primitives.table import OTHERS, b, case, f, i

# Data movement.
case("pad", lambda x: lax.pad(x, 1.5, ((1, 2, 0), (0, 1, 0))), f(3, 4))
case("pad negatively", lambda x: lax.pad(x, 0.5, ((-1, 2, 0), (1, -2, 0))), f(3, 4))
case("pad between", lambda x: lax.pad(x, 0.0, ((0, 0, 1), (1, 1, 2))), f(3, 4))
case("pad between with a number", lambda x: lax.pad(x, 2.5, ((0, 0, 1), (1, 1, 2))), f(3, 4))
case(
    "pad between nothing", lambda x: lax.pad(x[:0], 1.5, ((1, 2, 1), (0, 1, 0))) + x[:, :1], np.ones((3, 4), np.float32)
)
case("pad with a computed value", lambda x, v: lax.pad(x, v, ((1, 0, 0), (0, 2, 0))), f(3, 4), np.float32(0.7))
case("pad between with a computed value", lambda x, v: lax.pad(x, v, ((1, -1, 1), (0, 2, 0))), f(3, 4), np.float32(0.7))
case("pad with negative infinity", lambda x: lax.pad(x, -np.inf, ((1, 1, 0),)), f(3))
case("pad integers", lambda x: lax.pad(x, np.int32(3), ((1, 1, 0), (0, 0, 1))), i(3, 4))
case("pad bools", lambda x: (jnp.pad(x, 1), jnp.pad(x, 1, constant_values=True)), b(3, 4))
case("pad of rank 6", lambda x: jnp.pad(x, ((1, 0),) * 6), f(1, 2, 1, 2, 1, 2))
case(
    "pad by modes",
    lambda x: [jnp.pad(x, 1, mode=m) for m in ("reflect", "edge", "symmetric", "wrap", "maximum")],
    f(3, 4),
)
case("pad everything away and more", lambda x: lax.pad(x, 1.0, ((-3, 4, 0),)), f(3))
for _name in ("dynamic_slice",):
    case(_name, lambda x, n: lax.dynamic_slice(x, (n[0], n[1]), (2, 3)), f(4, 5), np.array([1, 2], np.int32))
    case(
        f"{_name} clamped",
        lambda x, n: lax.dynamic_slice(x, (n[0], n[1]), (2, 3)),
        f(4, 5),
        np.array([-3, 9], np.int32),
    )
    case(f"{_name} by scalars", lambda x, n, m: lax.dynamic_slice(x, (n, m), (2, 3)), f(4, 5), np.int32(2), np.int32(1))
    case(f"{_name} of a vector", lambda x, n: lax.dynamic_slice(x, (n,), (3,)), f(6), np.int32(2))
    case(f"{_name} of integers", lambda x, n: lax.dynamic_slice(x, (n, 0), (2, 3)), i(4, 5), np.int32(1))
    case(f"{_name} of bools", lambda x, n: lax.dynamic_slice(x, (n, 0), (2, 3)), b(4, 5), np.int32(1))
case("dynamic_update_slice", lambda x, u, n: lax.dynamic_update_slice(x, u, (n, 1)), f(4, 5), f(2, 3), np.int32(1))
case(
    "dynamic_update_slice clamped",
    lambda x, u, n: lax.dynamic_update_slice(x, u, (n, n)),
    f(4, 5),
    f(2, 3),
    np.int32(9),
)
case("dynamic_update_slice, known", lambda x, u: lax.dynamic_update_slice(x, u, (1, 2)), f(4, 5), f(2, 3))
case("dynamic_update_slice of a vector", lambda x, u, n: lax.dynamic_update_slice(x, u, (n,)), f(6), f(2), np.int32(3))
case(
    "dynamic_update_slice of integers",
    lambda x, u, n: lax.dynamic_update_slice(x, u, (n, 1)),
    i(4, 5),
    i(2, 3),
    np.int32(1),
)
case(
    "dynamic_update_slice of bools",
    lambda x, u, n: lax.dynamic_update_slice(x, u, (n, 1)),
    b(4, 5),
    b(2, 3),
    np.int32(1),
)
case(
    "index_in_dim and update",
    lambda x, n: (lax.dynamic_index_in_dim(x, n, 0, False), lax.dynamic_update_index_in_dim(x, x[0] * 2, n, 0)),
    f(4, 5),
    np.int32(2),
)
case("index by a scalar", lambda x, n: (x[n], x[:, n], x[n, n], x[-1, n]), f(4, 5), np.int32(2))
case("index by a scalar, out of range", lambda x, n: (x[n], x[:, n]), f(4, 4), np.int32(9), gradient=False)
case("index a vector by a scalar", lambda x, n: x[n], f(5), np.int32(3))
case("index by negative numbers", lambda x, n: (x[n], x.at[n].add(1.0)), f(5), np.array([-1, -3, 2], np.int32))
case("index by a vector", lambda x, n: (x[n], x[:, n], x[n, n]), f(5, 5), i(4, low=0, high=5))
case(
    "index by two arrays",
    lambda x, n, m: (x[n, m], x[n[:, None], m[None]]),
    f(4, 5),
    i(3, low=0, high=4),
    i(3, low=0, high=5),
)
case("index by a mask known", lambda x: x[np.array([True, False, True, True])], f(4, 5))
case(
    "take",
    lambda x, n: (jnp.take(x, n), jnp.take(x, n, 0), jnp.take(x, n, 1), jnp.take(x, n, 1, mode="clip")),
    f(4, 5),
    i(3, low=0, high=4),
)
case(
    "take of integers and bools", lambda x, y, n: (x[n], y[n], x[:, n], y[:, n]), i(4, 5), b(4, 5), i(3, low=0, high=4)
)
case("take fills", lambda x, n: jnp.take(x, n, 0, mode="fill", fill_value=0.5), f(4, 5), np.array([1, 9, -1], np.int32))
case("take clips", lambda x, n: jnp.take(x, n, 0, mode="clip"), f(4, 5), np.array([1, 9, -7], np.int32))
case("take wraps", lambda x, n: jnp.take(x, n, 0, mode="wrap"), f(4, 5), np.array([1, 9, -7], np.int32))
case("take_along_axis 0", lambda x, n: jnp.take_along_axis(x, n, 0), f(4, 5), i(2, 5, low=0, high=4))
case("take_along_axis 1", lambda x, n: jnp.take_along_axis(x, n, 1), f(4, 5), i(4, 2, low=0, high=5))
case(
    "take_along_axis of rank 3",
    lambda x, n: (jnp.take_along_axis(x, n, 1), jnp.take_along_axis(x, n, -1)),
    f(2, 3, 3),
    i(2, 3, 3, low=0, high=3),
)
case("take_along_axis of integers", lambda x, n: jnp.take_along_axis(x, n, 1), i(4, 5), i(4, 2, low=0, high=5))
case(
    "take_along_axis with one index a row",
    lambda x, n: jnp.take_along_axis(x, n[:, None], 1)[:, 0],
    f(4, 5),
    i(4, low=0, high=5),
)
case(
    "gather of boxes",
    lambda x, n: jax.vmap(lambda m: lax.dynamic_slice(x, (m, m), (2, 3)))(n),
    f(4, 6),
    i(3, low=0, high=3),
)
case(
    "batched dynamic_slice",
    lambda x, n: jax.vmap(lambda r, m: lax.dynamic_slice(r, (m,), (3,)))(x, n),
    f(4, 6),
    i(4, low=0, high=5),
)
case("batched index", lambda x, n: jax.vmap(lambda r, m: r[m])(x, n), f(4, 6), i(4, low=0, high=6))
case("batched index of rows", lambda x, n: jax.vmap(lambda r, m: r[m])(x, n), f(2, 4, 3), i(2, 5, low=0, high=4))
case(
    "one_hot",
    lambda n: (jax.nn.one_hot(n, 5), jax.nn.one_hot(n, 5, axis=0), jax.nn.one_hot(n, 5, dtype=jnp.int32)),
    i(4, low=-1, high=7),
)
case("one_hot of a scalar", lambda n: jax.nn.one_hot(n, 5), np.int32(3))
case("scatter add", lambda x, n, u: x.at[n].add(u), f(5, 3), i(4, low=0, high=5), f(4, 3))
case("scatter add of elements", lambda x, n, u: x.at[n].add(u), f(5), i(4, low=0, high=5), f(4))
case(
    "scatter add at two indices",
    lambda x, n, m, u: x.at[n, m].add(u),
    f(5, 4),
    i(6, low=0, high=5),
    i(6, low=0, high=4),
    f(6),
)
case("scatter add of columns", lambda x, n, u: x.at[:, n].add(u), f(3, 5), i(4, low=0, high=5), f(3, 4))
case("scatter add by a scalar", lambda x, n: (x.at[n].add(1.0), x.at[0, n].add(2.0)), f(5, 3), np.int32(2))
case("scatter add out of range", lambda x, n, u: x.at[n].add(u), f(5, 3), np.array([1, 9, 3], np.int32), f(3, 3))
case("scatter add of integers", lambda x, n, u: x.at[n].add(u), i(5, 3), i(4, low=0, high=5), i(4, 3))
case(
    "scatter set at unique places",
    lambda x, n, u: x.at[n].set(u, unique_indices=True),
    f(5, 3),
    np.array([3, 0, 4], np.int32),
    f(3, 3),
)
case("scatter set", lambda x, n, u: x.at[n].set(u), f(5, 3), np.array([3, 0, 4], np.int32), f(3, 3))
case(
    "scatter set by a scalar",
    lambda x, n: (x.at[n].set(1.5), x.at[:, n].set(0.0), x.at[n, 1].set(2.0)),
    f(5, 5),
    np.int32(2),
)
case("scatter set by a scalar, with values", lambda x, n, u: x.at[n].set(u), f(5, 3), np.int32(2), f(3))
case("scatter set of integers", lambda x, n, u: x.at[n].set(u), i(5, 3), np.array([3, 0, 4], np.int32), i(3, 3))
case("scatter set of bools", lambda x, n: x.at[n].set(True), b(5, 3), np.array([3, 0, 4], np.int32))
case(
    "scatter set at two indices",
    lambda x, n, m, u: x.at[n, m].set(u),
    f(5, 4),
    np.array([0, 2, 4], np.int32),
    np.array([3, 1, 1], np.int32),
    f(3),
)
case("scatter set at known places", lambda x, u: x.at[np.array([0, 3])].set(u), f(5, 3), f(2, 3))
case(
    "scatter max and min",
    lambda x, n, u: (x.at[n].max(u), x.at[n].min(u)),
    f(5, 3),
    np.array([3, 0, 4], np.int32),
    f(3, 3),
    gradient=False,
)
case(
    "scatter multiply",
    lambda x, n, u: x.at[n].multiply(u),
    f(5, 3),
    np.array([3, 0, 4], np.int32),
    f(3, 3),
    gradient=False,
)
case(
    "scatter multiply at known places",
    lambda x, u: x.at[np.array([3, 0])].multiply(u),
    f(5, 3),
    f(2, 3),
    gradient=False,
)
case("segment sum, max", lambda x, n: jax.ops.segment_sum(x, n, 3), f(6, 2), i(6, low=0, high=3))
case(
    "segment max",
    lambda x, n: jax.ops.segment_max(x, n, 3),
    f(6, 2),
    np.array([0, 1, 2, 0, 1, 2], np.int32),
    gradient=False,
)
case("sort", lambda x: (jnp.sort(x), jnp.sort(x, 0), jnp.sort(x, descending=True)), f(4, 5))
case("sort of a vector", jnp.sort, f(7))
case("sort with ties", lambda x: (jnp.sort(x, 1), jnp.argsort(x, 1)), [[1.0, 3, 3, 1], [2, 2, 2, 2]])
case("sort of integers", lambda x: (jnp.sort(x), jnp.argsort(x)), i(3, 6))
case("sort of large integers", lambda x: (jnp.sort(x), jnp.argsort(x)), OTHERS)
case("argsort", lambda x: (jnp.argsort(x), jnp.argsort(x, 0), jnp.argsort(x, descending=True)), f(4, 5))
case("sort with two operands", lambda x, y: lax.sort((x, y), num_keys=1), f(4, 5), f(4, 5))
case("top_k", lambda x: lax.top_k(x, 3), f(4, 6))
case("top_k of a vector", lambda x: lax.top_k(x, 2), f(6))
case("top_k of integers", lambda x: lax.top_k(x, 2), i(3, 6))
case("top_k with ties", lambda x: lax.top_k(x, 3), [[1.0, 3, 3, 1], [2, 2, 2, 2]])
case("top_k over another axis", lambda x: lax.top_k(x, 2, axis=0), f(4, 6))
case("approx_max_k", lambda x: lax.approx_max_k(x, 3)[0], f(2, 6))
case("reshape with dimensions", lambda x: lax.reshape(x, (20, 3), (2, 0, 1)), f(3, 4, 5))
case("reshape to and from rank 0", lambda x: (x.reshape(()), x.reshape(()).reshape((1, 1)), x[0]), f(1))
case(
    "squeeze and expand",
    lambda x, s: (jnp.squeeze(x), jnp.expand_dims(s, (0, 1)), lax.squeeze(x, (0,)), s[None]),
    f(1, 1),
    np.float32(2),
)
case(
    "movement of integers and bools",
    lambda x, y: [
        (
            v.T,
            v[::-1],
            v[:, ::2],
            jnp.concatenate([v, v], 1),
            jnp.tile(v, (2, 1)),
            jnp.repeat(v, 2, 0),
            jnp.roll(v, 1, 1),
            v[1:3, None],
            jnp.broadcast_to(v, (2, 3, 4)),
            jnp.split(v, 2, 1),
        )
        for v in (x, y)
    ],
    i(3, 4),
    b(3, 4),
)
case(
    "movement of rank 6",
    lambda x: (x.transpose(5, 3, 1, 0, 2, 4), x[..., ::-1], jnp.concatenate([x, x], 3), x[:, :, 1:, :1]),
    f(2, 1, 3, 2, 1, 2),
)
case("transposition of rank 7", lambda x: x.transpose(6, 5, 4, 3, 2, 1, 0), f(2, 1, 3, 2, 1, 2, 2))
case(
    "arithmetic of rank 6",
    lambda x, y: (x + y[:, None], x * y[0], x / (2 + y[:, :1]), jnp.maximum(x, y), jnp.where(x > y, x, y)),
    f(2, 2, 3, 2, 1, 2),
    f(2, 3, 2, 1, 2),
)
case(
    "iota, eye, tri, linspace",
    lambda x: x + jnp.eye(4) + jnp.tri(4) + jnp.linspace(0, 1, 4) + lax.broadcasted_iota(jnp.float32, (4, 4), 1),
    f(4, 4),
)
case("tril and triu", lambda x: (jnp.tril(x), jnp.triu(x, 1), jnp.diag(x), jnp.diag(jnp.diag(x))), f(4, 4))
case(
    "rank 0 arithmetic",
    lambda x, n: (x * 2 + 1, jnp.where(x > 0, x, 0), x.astype(int) + n, n > 1, jnp.exp(x)),
    np.float32(1.5),
    np.int32(2),
)
case("searchsorted and bincount", lambda x: jnp.searchsorted(jnp.array([0.0, 1.0, 2.0]), x), f(5))
case(
    "searchsorted by comparison", lambda x: jnp.searchsorted(jnp.array([0.0, 1.0, 2.0]), x, method="compare_all"), f(5)
)
case("bincount", lambda n: jnp.bincount(n, length=5), i(9, low=0, high=5))
case("histogram-like", lambda n: (n[:, None] == jnp.arange(5)).sum(0), i(9, low=0, high=5))
case("interp", lambda x: jnp.interp(x, jnp.array([-1.0, 0.0, 1.0]), jnp.array([2.0, 0.0, 3.0])), f(5) / 2.5)
case("polyval", lambda x: jnp.polyval(jnp.array([1.0, -2.0, 0.5]), x), f(5))
case("piecewise", lambda x: jnp.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v * 2]), f(5))
case(
    "unstack, stack, swapaxes",
    lambda x: (jnp.stack(jnp.unstack(x), 1), jnp.swapaxes(x, 0, 2), jnp.moveaxis(x, 0, -1)),
    f(2, 3, 4),
)
case("empty arrays", lambda x: jnp.concatenate([x[:0], x]), f(3, 2))
case("take by a scalar", lambda x, n: jnp.take(x, n, axis=1), f(4, 6), np.int32(3))
case("sums of nothing", lambda x: (x[:0].sum(), jnp.zeros((2, 0)) @ jnp.ones((0, 3)) + x[0]), f(3))
case(
    "index between slices",
    lambda x, n, m: (x[n, :, m], x[n, 1:, m]),
    f(4, 3, 5),
    i(6, low=0, high=4),
    i(6, low=0, high=5),
)
case(
    "last of several updates", lambda x, n, u: x.at[n].set(u), f(5), np.array([1, 3, 1], np.int32), f(3), gradient=False
)

#: Known places, of which some lie outside.
OUTSIDE = np.array([2, 9, -7], np.int32)
case("known places out of range", lambda x: (x[OUTSIDE], x[:, OUTSIDE], x[OUTSIDE, np.array([0, 1, 1])], x[9]), f(4, 3))
case("known places out of range, filled", lambda x: jnp.take(x, OUTSIDE, axis=0), f(4, 3))
case(
    "known places out of range, filled with a number",
    lambda x: (x.at[OUTSIDE].get(mode="fill", fill_value=3.0), x.at[np.array([9])].get(mode="fill", fill_value=3.0)),
    f(4, 3),
)
case("known places out of range, of integers", lambda x: (x[OUTSIDE], jnp.take(x, OUTSIDE)), i(4))
case("known places out of range, promised", lambda x: x.at[OUTSIDE].get(mode="promise_in_bounds"), f(4, 3))
case("known places out of range, of each row", lambda x: jnp.take_along_axis(x, OUTSIDE[None, :2], 1), f(2, 3))
