"""Narrow and unsigned integers wrap as their types say; random numbers by a key are those of JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import converter
import jax_frontend
from converter.support.errors import UnsupportedError

BYTES = np.array([0, 1, 100, 127, 128, 200, 255], np.uint8)
SIGNED = BYTES.view(np.int8)
WORDS = np.array([0, 1, -1, 5, 2**31 - 1, -(2**31), -7, 65536], np.int32)

CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "uint8": (lambda x: [x + x, x - jnp.uint8(5), x * x, -x, ~x, x // 2, x.sum(), x > 127, x.max()], [BYTES]),
    "int8": (lambda x: [x + x, x * jnp.int8(3), jnp.abs(x), x.astype(jnp.uint8), x < 0], [SIGNED]),
    "bits of a byte": (
        lambda x, y, n: [x >> n, (x >> n) << n, x >> jnp.uint8(9), lax.population_count(x), y >> n.astype(jnp.int8)],
        [BYTES, SIGNED, np.array([0, 1, 7, 3, 4, 8, 5], np.uint8)],
    ),
    "casts": (
        lambda x, y: [x.astype(jnp.uint8), x.astype(jnp.int16), y.astype(jnp.uint8), y.astype(jnp.int8)],
        [WORDS, np.array([-1.5, 3.7, 127.2, 300, -200], np.float32)],
    ),
    "uint32": (
        lambda x: [
            v.astype(t)
            for u in [x.astype(jnp.uint32)]
            for v, t in [
                (u // 10, jnp.int32), (u % 7, jnp.int32), (u // jnp.uint32(0xF0000000), jnp.int32), (u, jnp.float32),
                (u > jnp.uint32(2**31), jnp.int32), (jnp.max(u), jnp.int32), (jnp.sort(u), jnp.int32),
                (u * u >> 16, jnp.int32),
            ]
        ],
        [WORDS],
    ),
    "division by nothing": (lambda x, y: [lax.div(x, y), lax.rem(x, y), x % y], [WORDS, np.roll(WORDS, 1)]),
    "bits": (
        lambda x: [lax.bitcast_convert_type(x, jnp.int32), lax.bitcast_convert_type(WORDS, jnp.float32)[:2]],
        [np.array([1.0, -0.5, 3e20], np.float32)],
    ),
    "numbers by a key": (
        lambda key, x: [
            jax.random.uniform(key, (3, 2)),
            jax.random.normal(jax.random.fold_in(key, 3), (4,)),
            jnp.where(jax.random.bernoulli(jax.random.split(key)[1], 0.5, x.shape), x, 0),
            jax.random.randint(key, (5,), -3, 8),
        ],
        [np.asarray(jax.random.PRNGKey(3)), np.ones((3, 4), np.float32)],
    ),
    "numbers by a seed": (lambda seed: jax.random.uniform(jax.random.key(seed), (5,)), [np.int32(7)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_equal_to_jax(name: str) -> None:
    fn, arguments = CASES[name]
    expected = jax.tree_util.tree_leaves(jax.jit(fn)(*arguments))
    found = converter.function(fn, *arguments).run(*arguments)
    for mine, theirs in zip(found, expected, strict=True):
        if theirs.dtype == np.float32:
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(mine.astype(np.int64), np.asarray(theirs).astype(np.int64))


def test_a_function_may_draw_by_a_key_of_its_own() -> None:
    x = np.ones(3, np.float32)
    noise = jax.random.normal(jax.random.key(1), (3,))
    (found,) = converter.function(lambda x: x + jax.random.normal(jax.random.key(1), (3,)), x).run(x)
    np.testing.assert_allclose(found, x + noise, rtol=1e-5)


def test_a_model_may_not() -> None:
    """Its numbers would be the same in each step."""
    model = jax_frontend.Model(
        lambda p, x: x @ p["w"] * jax.random.bernoulli(jax.random.key(0), 0.5, (2,)),
        {"w": np.ones((3, 2), np.float32)},
        inputs=[jax.ShapeDtypeStruct((1, 3), np.float32)],
    )
    with pytest.raises(UnsupportedError, match="random numbers"):
        jax_frontend.trace(model, 2)
