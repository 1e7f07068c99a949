"""`converter.function`: a JAX function as a program, against JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
from converter.support.errors import UsageError

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
W = np.linspace(1, -1, 12, dtype=np.float32).reshape(3, 4)


def close(found: list[np.ndarray], expected: Any) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_outputs_and_cotangents_equal_jax() -> None:
    def fn(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(x @ w), (x**2).mean()

    outputs, vjp = jax.vjp(fn, X, W)
    cotangents = (np.cos(outputs[0]), np.float32(0.3))
    close(converter.function(fn, X, W).run(X, W), outputs)
    close(converter.function(fn, X, W, gradient=True).run(X, W, *cotangents), (*outputs, *vjp(cotangents)))


def test_arguments_and_results_as_they_come() -> None:
    """Trees, integers, rank 0, results that are arguments, constants or the same value."""

    def fn(tree: dict, n: jax.Array, s: float) -> Any:
        y = tree["a"] * s
        return {"same": tree["a"], "y": y, "again": y, "count": n + 1, "number": n, "constant": jnp.arange(3.0)}

    arguments = ({"a": X, "unused": W}, np.arange(2, dtype=np.int32), 2.0)
    f = converter.function(fn, *arguments, gradient=True)
    expected = fn(*arguments)
    cotangents = {k: np.ones_like(v) for k, v in expected.items()}
    found = f.run(*arguments, *jax.tree_util.tree_leaves(cotangents))
    close(found, [*map(np.asarray, jax.tree_util.tree_leaves(expected)), X * 0 + 5, W * 0, np.asarray(2 * X.sum())])
    floats = [v for v in jax.tree_util.tree_leaves(cotangents) if v.dtype.kind == "f"]
    close(f.run(*arguments, *floats), found)


def test_wrong_arguments_are_refused() -> None:
    f = converter.function(lambda x: x * 2, X)
    with pytest.raises(UsageError, match="takes 1 arrays"):
        f.run(X, X)
    with pytest.raises(UsageError, match=r"shape \[2, 3\], not \[3, 4\]"):
        f.run(W)


def test_a_refusal_lists_its_sites() -> None:
    def fn(x: jax.Array) -> jax.Array:
        with jax.named_scope("spectrum"):
            return jnp.fft.fft(x).real

    with pytest.raises(converter.UnsupportedError) as caught:
        converter.function(fn, X)
    (site,) = caught.value.sites
    assert (site.primitive, site.layer) == ("fft", "spectrum")
    assert site.source.startswith("tests/driver/test_functions.py:")
    assert site.reason
    assert site.advice
