"""Every semantic op against JAX: its value, and each of its cotangents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.ir import evaluate, verify
from tests.cases import CASES, narrowed, with_gradients


@pytest.mark.parametrize("kind", CASES)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_value_and_cotangents_equal_jax(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    op, arrays, reference = CASES[kind](rng)
    arrays = narrowed(arrays)
    with jax.enable_x64(True):
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        expected, pull_back = jax.vjp(reference, *wide)
        dy = rng.standard_normal(expected.shape).astype(np.float32)
        cotangents = pull_back(jnp.asarray(dy, expected.dtype))

    results, _ = evaluate(verify(with_gradients(op, arrays, dy)), arrays, np.float64)

    np.testing.assert_allclose(results["y"], expected, rtol=1e-6, atol=1e-6, err_msg=str(op))
    for i, (array, cotangent) in enumerate(zip(arrays, cotangents, strict=True)):
        if array.dtype.kind == "f":
            found = results.get(str(i), np.zeros(array.shape))
            np.testing.assert_allclose(found, cotangent, rtol=1e-5, atol=1e-5, err_msg=f"{op}, operand {i}")
