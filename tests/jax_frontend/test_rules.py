"""Import rules against JAX: elementwise arithmetic, data movement, indexing, reductions."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.jax_frontend.common import check, op_names, traced

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4, 6)) * 2
P = RNG.uniform(0.3, 2.0, (3, 4, 6))
N = RNG.integers(-7, 8, (3, 4, 6))
ROWS = np.array([2, 0, 2, 1])

ELEMENTWISE: dict[str, Callable] = {
    "arithmetic": lambda x, p: (x + p * 2 - x / p) * -x,
    "scalars and rank 0": lambda x, p: x.sum() * p.mean() + x * jnp.float32(3) + 1,
    "broadcasting": lambda x, p: x[:, :1] + p[0] * x[0, 0] - p[..., :1],
    "weak types": lambda x, p: jnp.where(x > 0, 1, 0) * x + 2 * p + jnp.asarray(1) * x,
    "exponentials": lambda x, p: jnp.exp(x) + jnp.exp2(x) + jnp.expm1(x) + jnp.log(p) + jnp.log1p(p) + jnp.log2(p),
    "roots and powers": lambda x, p: jnp.sqrt(p) + lax.rsqrt(p) + x**3 + p**-2 + p**0.5 + p**2.5 + p**x + 2.0**x,
    "trigonometry": lambda x, p: jnp.sin(x) + jnp.cos(x) + jnp.tan(p / 2) + jnp.sinh(x) + jnp.cosh(x) + jnp.tanh(x),
    "sigmoids": lambda x, p: jax.nn.sigmoid(x) + jax.nn.softplus(x) + jax.nn.log_sigmoid(p) + jax.nn.soft_sign(x),
    "error functions": lambda x, p: lax.erf(x) + lax.erfc(x),
    "parts": lambda x, p: jnp.abs(x) + jnp.sign(x) * p + jnp.floor(x) * x + jnp.ceil(x) + jnp.round(x) + jnp.trunc(x),
    "extrema": lambda x, p: jnp.maximum(x, p) + jnp.minimum(x, 0.5) + jnp.clip(x, -1, 1) + lax.clamp(-1.0, x, p),
    "choices": lambda x, p: jnp.where((x > 0) & ~(p > 1) | (x < -1), x, p * 2),
    "several cases": lambda x, p: lax.select_n(jnp.floor(p).astype(int).clip(0, 2), x, p, x * p),
    "no derivative": lambda x, p: lax.stop_gradient(x) * p + jnp.floor_divide(p, 0.5),
    "remainders": lambda x, p: lax.rem(lax.stop_gradient(x), lax.stop_gradient(p)) + jnp.mod(lax.stop_gradient(x), 0.7),
    "finite": lambda x, p: jnp.where(jnp.isfinite(x / p), x, 0) + jnp.where(jnp.isnan(x), 0, p),
    "logaddexp": lambda x, p: jnp.logaddexp(x, p) + jnp.hypot(x, p),
    "half precision": lambda x, p: x.astype(jnp.bfloat16).astype(jnp.float32) * 0 + x.astype(jnp.float32) * p,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str) -> None:
    check(ELEMENTWISE[name], X, P, tolerance=5e-5)


INTEGERS: dict[str, Callable] = {
    "arithmetic": lambda n: n * 3 - n // 2 + n % 5 + abs(n),
    "comparison": lambda n: (n > 2) | (n == 0) & (n != 3),
    "conversion": lambda n: n.astype(jnp.float32) / 2 + (n > 0) + n.astype(bool),
    "back": lambda n: (n * 0.7).astype(jnp.int32) + jnp.sign(n),
    "exclusive or": lambda n: jnp.logical_xor(n > 0, n < 3),
    "extrema": lambda n: n.max(1) + n.min(1) + n.sum(1) + n.argmax(1),
    "truncated division": lambda n: lax.div(n, 3) + lax.rem(n, 4),
    "small types": lambda n: n.astype(jnp.int8) + n.astype(jnp.int16),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str) -> None:
    check(INTEGERS[name], N)


MOVEMENT: dict[str, Callable] = {
    "reshape": lambda x: x.reshape(6, -1) + x.reshape(-1).reshape(6, 12),
    "transpose": lambda x: x.T + x.transpose(2, 1, 0) * x.swapaxes(0, 2),
    "squeeze": lambda x: x[:, None, :, None].squeeze((1, 3)) + jnp.expand_dims(x, (0, 4))[0, ..., 0],
    "broadcast": lambda x: jnp.broadcast_to(x[:, None], (3, 2, 4, 6)) + x[:, 1:2, :][:, :, None],
    "tile": lambda x: jnp.tile(x, (2, 1, 3)),
    "tile more axes": lambda x: jnp.tile(x[0], (2, 2, 1, 1)),
    "repeat": lambda x: jnp.repeat(x, 3, axis=1),
    "repeat unevenly": lambda x: jnp.repeat(x, np.array([1, 0, 2]), axis=0, total_repeat_length=3),
    "reverse": lambda x: x[::-1, :, ::-1] + jnp.flip(x, 1),
    "roll": lambda x: jnp.roll(x, 2, 2) + jnp.roll(x, (1, -1), (0, 1)),
    "pad": lambda x: jnp.pad(x, ((1, 0), (0, 2), (0, 0)), constant_values=3.0),
    "pad inside and less": lambda x: lax.pad(x, 0.0, ((0, 0, 2), (-1, 1, 0), (2, -2, 1))),
    "pad reflected": lambda x: jnp.pad(x, ((0, 0), (1, 1), (2, 2)), mode="reflect"),
    "pad edge": lambda x: jnp.pad(x, ((0, 0), (1, 1), (2, 2)), mode="edge"),
    "concatenate": lambda x: jnp.concatenate([x, x[:, :1] * 2, x], 1),
    "stack": lambda x: jnp.stack([x, 2 * x, x + 1], axis=1),
    "hstack": lambda x: jnp.hstack([x, x]) + jnp.vstack([x, x]).reshape(3, 8, 6),
    "unstack": lambda x: sum(v * i for i, v in enumerate(jnp.unstack(x, axis=1))),
    "split": lambda x: [v * 2 for v in jnp.split(x, [1, 3], axis=2)],
    "even split": lambda x: [v * 2 for v in jnp.split(x, 2, axis=2)],
    "triangle": lambda x: jnp.tril(x) + jnp.triu(x, 1) * 2,
    "meshgrid": lambda x: x * jnp.meshgrid(jnp.arange(4.0), jnp.arange(6.0), indexing="ij")[1],
    "diagonal": lambda x: jnp.diagonal(x[0]) + jnp.trace(x[1]),
    "window": lambda x: lax.slice(x, (0, 1, 0), (3, 4, 5), (2, 1, 2)),
    "new axes": lambda x: x[:, None, 1:3, ..., None],
    "rearrange": lambda x: x.reshape(3, 2, 2, 3, 2).transpose(0, 2, 4, 1, 3).reshape(3, 4, 6),
}


@pytest.mark.parametrize("name", MOVEMENT)
def test_movement(name: str) -> None:
    check(MOVEMENT[name], X)


INDEXING: dict[str, Callable] = {
    "first token": lambda x, i: x[:, 0] + x[:, -1],
    "every second": lambda x, i: x[..., ::2] + x[..., 1::2],
    "last of an axis": lambda x, i: x[..., -1],
    "embedding": lambda x, i: x[0][i],
    "take": lambda x, i: jnp.take(x, i, axis=1),
    "take in the middle of ranks": lambda x, i: jnp.take(x, i.reshape(2, 2), axis=2),
    "take clipped": lambda x, i: jnp.take(x, i, axis=0, mode="clip"),
    "rows of several ranks": lambda x, i: x[i.reshape(2, 2) % 3],
    "last axis": lambda x, i: x[..., i],
    "middle axis": lambda x, i: x[:, i],
    "apart": lambda x, i: x[i % 3, :, i],
    "two axes": lambda x, i: x[i % 3, i],
    "three axes": lambda x, i: x[i % 3, i, i],
    "known places": lambda x, i: x[:, np.array([[0, 3], [1, 1]])],
    "known places of two axes": lambda x, i: x[np.array([0, 2]), :, np.array([1, 5])],
    "a mask known at compile time": lambda x, i: x[np.array([True, False, True])],
    "element of each row": lambda x, i: jnp.take_along_axis(x[0], i[:, None], 1),
    "several of each row": lambda x, i: jnp.take_along_axis(x[0], jnp.stack([i, i + 1], 1), 1),
    "each row's own": lambda x, i: x[0][jnp.arange(4), i],
    "slice at a place": lambda x, i: lax.dynamic_slice(x, (0, i[0], 0), (3, 2, 6)),
    "slice at a known place": lambda x, i: lax.dynamic_slice(x, (0, 1, 2), (3, 2, 3)),
    "slice past the end": lambda x, i: lax.dynamic_slice(x, (0, 3, 2), (3, 3, 3)),
    "index in dim": lambda x, i: lax.dynamic_index_in_dim(x, i[0], 1, keepdims=False),
    "one number": lambda x, i: x[i[0], i[1], 2],
    "set rows": lambda x, i: x.at[1].set(x[0] * 2),
    "set a box": lambda x, i: x.at[:, 1:3, 2:4].set(0.0),
    "set a column": lambda x, i: x.at[:, 0].set(1.0),
    "set a column of the last axis": lambda x, i: x.at[..., 0].set(x[..., 1]),
    "add rows": lambda x, i: x.at[i % 3].add(x[:1] * 2 + jnp.ones((4, 4, 6))),
    "add to known rows": lambda x, i: x.at[np.array([0, 0, 2])].add(x),
    "update slice": lambda x, i: lax.dynamic_update_slice(x, x[:2, :2, :2] * 3, (1, 0, 2)),
    "segment sum": lambda x, i: jax.ops.segment_sum(x.transpose(1, 0, 2), i, num_segments=3),
    "one hot of columns": lambda x, i: x[0, :3] @ jax.nn.one_hot(i, 6).T,
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str) -> None:
    check(INDEXING[name], X, ROWS)


REDUCTIONS: dict[str, Callable] = {
    "sums": lambda x: x.sum(1) + x.sum(1, keepdims=True)[:, 0] + x.sum(),
    "means": lambda x: x.mean((0, 2)) + x.mean((0, 2), keepdims=True)[0, :, 0] + x.mean(),
    "deviations": lambda x: x.std(1) + x.var(1),
    "largest": lambda x: x.max(2) + x.min(2) + x.max() - x.min(),
    "products": lambda x: x.prod(2) + x[:, :, :1].prod(),
    "norms": lambda x: jnp.linalg.norm(x, axis=-1) + jnp.abs(x).max((1, 2), keepdims=True)[..., 0],
    "places": lambda x: (x.argmax(1), x.argmin(2), jnp.argmax(x[0, 0])),
    "some and all": lambda x: (jnp.any(x > 1, 1), jnp.all(x > -3, (0, 2)), jnp.count_nonzero(x > 0, axis=1)),
    "running sums": lambda x: jnp.cumsum(x, 1) + lax.cumsum(x, 2, reverse=True),
    "sum of what repeats": lambda x: jnp.broadcast_to(x[:, :1], (3, 4, 6)).sum(1) + jnp.ones((3, 6)).sum(0),
    "softmax of another axis": lambda x: jax.nn.softmax(x, 1) + jax.nn.log_softmax(x, 0),
    "nan-safe": lambda x: jnp.nanmean(x, 1) + jnp.nansum(x, 1),
    "weighted": lambda x: jnp.average(x, axis=1, weights=np.arange(4.0)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    check(REDUCTIONS[name], X, tolerance=5e-5)


def test_arrays_without_elements_and_outputs_that_are_inputs() -> None:
    check(lambda x: (x, x, jnp.ones((2,)), x[:0], jnp.concatenate([x[:0], x])), X[0])
    check(lambda x: jnp.float32(2.0), X)


def test_known_arithmetic_is_not_in_the_graph() -> None:
    def rotary(x: jax.Array) -> jax.Array:
        angles = jnp.outer(jnp.arange(4.0), 1 / 100 ** (jnp.arange(3) / 3))
        return jnp.concatenate([x[..., :3] * jnp.cos(angles) - x[..., 3:] * jnp.sin(angles), x[..., 3:]], -1)

    graph = check(rotary, X)
    assert set(op_names(graph)) == {"Slice", "Mul", "Sub", "Concat"}


def test_a_bias_is_broadcast_by_the_addition() -> None:
    graph = traced(lambda x, w, b: x @ w + b, X, X[0, :, :].T, X[0, 0, :4])
    assert op_names(graph) == ["MatMul", "Add"]
