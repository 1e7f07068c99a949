"""Outputs that no operator makes: an input, a parameter, a constant, and one value under two names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import converter
import jax_frontend
from converter.runtime import TrainingSession

BATCH = 4
RNG = np.random.default_rng(0)
X = RNG.standard_normal((BATCH, 3)).astype(np.float32)
IDS = RNG.integers(0, 9, BATCH).astype(np.int32)
PARAMS = {"w": RNG.standard_normal((3, 2)).astype(np.float32), "shown": RNG.random((BATCH, 2)).astype(np.float32)}
OUTPUTS = ("made", "twice", "input", "indices", "reshaped", "weight", "number")


def model(p: Any, x: Any, ids: Any) -> dict[str, Any]:
    made = x @ p["w"] + p["shown"]
    number = jnp.arange(2 * BATCH, dtype=jnp.float32).reshape(BATCH, 2)
    values = made, made, x, ids, x.reshape(BATCH, 3, 1), p["shown"], number
    return dict(zip(OUTPUTS, values, strict=True))


@pytest.mark.parametrize("state", ["variables", "stateless", "split"])
def test_outputs_that_nothing_makes(state: str, tmp_path: Path) -> None:
    rows = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (X, IDS)]
    program = converter.build(
        jax_frontend.Model(model, PARAMS, rows),
        loss={"made": "mse"},
        batch=BATCH,
        state=state,
    )
    path = program.write(tmp_path / "model.tflite")
    program.export_inference(tmp_path / "plain.tflite")
    for cache in (None, tmp_path):
        with TrainingSession(path, weight_cache=cache) as session:
            session.train((X, IDS), np.zeros((BATCH, 2)))
            expected = model(session.parameters(), X, IDS)
            found = session.infer((X, IDS))
            assert set(found) == set(OUTPUTS)
            for name, array in found.items():
                np.testing.assert_allclose(array, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
    plain = Interpreter(str(tmp_path / "plain.tflite"))
    runner = plain.get_signature_runner(plain.get_signature_list().popitem()[0])
    given = {"x": X, "ids": IDS}  # as the function calls them
    for name, array in runner(**given).items():
        np.testing.assert_allclose(array, model(PARAMS, X, IDS)[name], rtol=1e-6, atol=1e-6, err_msg=name)
