"""How XNNPACK adds up a product: what docs/decisions/sums.md rests on."""

import jax
import numpy as np
import pytest

import converter


def one_by_one(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float32 [M, K] x [K, N], each product added with one rounding (that of float64 before it is far below)."""
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        sums = (sums + a[:, k : k + 1].astype(np.float64) * b[k]).astype(np.float32)
    return sums


@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_added_one_by_one(transposed: bool) -> None:
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return a @ (b.T if transposed else b)

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 1024), (1024, 32)))
    given = np.ascontiguousarray(b.T) if transposed else b
    (found,) = converter.function(product, a, given).run(a, given)
    np.testing.assert_array_equal(found, one_by_one(a, b))
