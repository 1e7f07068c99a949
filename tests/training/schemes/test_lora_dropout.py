"""Dropout of adapters: of what A reads, in a step alone."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import converter
import jax_frontend
from converter import LoRA
from converter.runtime import TrainingSession
from converter.support.errors import UsageError


def test_dropout_of_adapters_acts_in_a_step_alone() -> None:
    """An input of A is zero with the rate's probability, others are scaled: the mean stays, and `infer` is exact."""
    rng = np.random.default_rng(0)
    weight, head = rng.standard_normal((64, 32), np.float32) / 8, rng.standard_normal((32, 3), np.float32)
    model = jax_frontend.Model(
        lambda params, x: x @ params["w"] @ params["head"],
        {"w": weight, "head": head},
        [jax.ShapeDtypeStruct((1, 64), np.float32)],
    )
    x, y = rng.standard_normal((4, 64), np.float32), np.zeros((4, 3), np.float32)

    def built(rate: float) -> bytes:
        lora = LoRA(4, 8, dropout=rate)
        options = {
            "loss": "mse",
            "optimizer": "sgd",
            "batch": 4,
            "signatures": ("train", "evaluate", "infer", "infer_1"),
        }
        return converter.build(model, update={"w": lora}, **options).data

    with TrainingSession(built(0.0)) as plain, TrainingSession(built(0.4)) as session:
        assert session.state().keys() == {*plain.state(), "random/step"}
        for _ in range(3):
            assert plain.train(x, y, 0.002) < 100
        session._open().take({**session.state(), **plain.state()})
        a, b = (plain.parameters()[f"w/lora_{which}"] for which in "ab")
        np.testing.assert_allclose(session.infer(x), x @ (weight + 2 * a @ b) @ head, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(session.infer(x[:1]), session.infer(x)[:1], rtol=1e-5, atol=1e-6)
        assert session.evaluate(x, y)["loss"] == pytest.approx(plain.evaluate(x, y)["loss"], rel=1e-5)
        seen = np.array([session.train(x, y, 1e-9) for _ in range(200)])
        assert len(np.unique(seen)) > 190
        # Of masks m / (1 - p): E[(f + D)^2] = (f + E[D])^2 + Var[D], with Var of each input p / (1 - p) x^2.
        exact = x @ (weight + 2 * a @ b) @ head
        spread = 0.4 / 0.6 * np.square(x) @ np.square(2 * a @ b @ head)
        expected = (np.square(exact) + spread).mean()
        assert seen.mean() == pytest.approx(expected, rel=4 * seen.std() / np.sqrt(len(seen)) / expected)
        assert spread.mean() > 0.01 * expected


@pytest.mark.parametrize("rate", [-0.1, 1.0, True, "0.1"])
def test_dropout_of_adapters_is_a_share(rate: Any) -> None:
    with pytest.raises(UsageError, match="dropout must be a number"):
        LoRA(4, dropout=rate)
