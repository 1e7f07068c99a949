"""A rule taken out of the table of an engine: the certificate fails, and names the layer that needed it.

.venv/bin/python -m pytest -m "slow or not slow" tests/certification/test_rules.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import converter
import jax_frontend
from converter import targets
from converter.engines import engine

RNG = np.random.default_rng(0)
MISSING = engine("gpu").missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

Case = tuple[Callable[..., Any], dict[str, Any], jax.ShapeDtypeStruct]


def weight(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32) / 3


def convolution() -> Case:
    def apply(params: Any, x: Any) -> Any:
        with jax.named_scope("culprit"):
            numbers = ("NHWC", "HWIO", "NHWC")
            y = jax.lax.conv_general_dilated(x, params["w"], (1, 1), "SAME", dimension_numbers=numbers)
            return jnp.mean(jax.nn.relu(y + params["b"]), (1, 2))

    return apply, {"w": weight(3, 3, 2, 4), "b": weight(4)}, jax.ShapeDtypeStruct((1, 8, 8, 2), np.float32)


def embedding() -> Case:
    def apply(params: Any, ids: Any) -> Any:
        with jax.named_scope("culprit"):
            return jnp.take(params["e"], ids, axis=0).mean(1)

    return apply, {"e": weight(6, 4)}, jax.ShapeDtypeStruct((1, 5), np.int32)


CASES: dict[str, Callable[[], Case]] = {
    "runtime-bias": convolution,
    "gather-2d-indices": embedding,
}


def without(rule: str) -> targets.Target:
    """The engine's table without a rule."""
    table = targets.target("gpu")
    assert rule in table.avoids
    return replace(table, avoids=[name for name in table.avoids if name != rule])


@pytest.mark.slow
@pytest.mark.parametrize("rule", CASES)
def test_a_rule_that_is_missed_is_missed_by_layer(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, params, x = CASES[rule]()
    model = jax_frontend.Model(apply, params, inputs=[x])
    settings: dict[str, Any] = {"optimizer": optax.sgd(1.0), "batch": 2, "signatures": ["train"], "check": False}
    settings["state"] = "stateless"
    path = tmp_path / "p.tflite"
    path.write_bytes(converter.build(model, target="gpu", **settings).data)
    certificate = converter.certify(path, on="gpu", steps=1)
    assert certificate.ok, certificate.failures
    table = without(rule)
    monkeypatch.setattr("converter.pipeline.find_target", lambda name: table)
    path.write_bytes(converter.build(model, target="gpu", **settings).data)
    certificate = converter.certify(path, on="gpu", steps=1)
    assert not certificate.ok
    assert "culprit" in {failure.layer for failure in certificate.failures}, certificate.failures
