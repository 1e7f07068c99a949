"""Look-ups that read NaN out of range, on engines that know no NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import converter
import jax_frontend


@pytest.mark.parametrize("target", ["gpu", "web", "gpu,litert-2"])
def test_an_embedding_builds_and_reads_no_small_number_outside(target: str) -> None:
    params = {"table": np.ones((5, 4), np.float32), "head": np.eye(4, 2, dtype=np.float32)}
    model = jax_frontend.Model(
        lambda p, x: jnp.take(p["table"], x, axis=0).mean(1) @ p["head"],
        params,
        [jax.ShapeDtypeStruct((1, 3), np.int32)],
    )
    program = converter.build(model, target=target, loss="mse", batch=2)
    assert all(
        np.isfinite(a).all() for g in program.signatures.values() for a in g.constants.values() if a.dtype == "f4"
    )
