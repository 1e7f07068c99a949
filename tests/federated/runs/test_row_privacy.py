"""How far one row moves what a client answers: no further than the noise for it assumes."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

import converter
import jax_frontend
from converter.driver.program import Program
from converter.federated import Bounds, Participant, Privacy, identity
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from tests.federated.people import PARAMS, net, rows_of

RATE, NORM, ROWS = 0.25, 0.5, 40


@cache
def clipped(norm: float | None = NORM, optimizer: str = "sgd") -> Program:
    model = jax_frontend.Model(net, PARAMS, inputs=[jax.ShapeDtypeStruct((1, 8, 8, 1), np.float32)])
    asked: dict[str, Any] = {"loss": "sparse_categorical_crossentropy", "optimizer": optimizer, "check": False}
    return converter.build(model, update="head", batch=ROWS, row_clipping=norm, **asked)


def test_replacing_one_row_moves_an_answer_no_further_than_is_assumed() -> None:
    program, (x, y) = clipped(), rows_of(0)
    client = Participant(program.data, Bounds(steps=1, learning_rate=RATE))
    with TrainingSession(program.data) as session:
        arrays = client.exchange.sent(session.state())
    config = {"program": identity(program.data), "epochs": 1, "learning-rate": RATE}

    def answer(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        trained, _, _ = client.train(arrays, config, (x, y), {})
        return np.concatenate([one.ravel() for one in trained.values()]).astype(np.float64)

    noise, base = Privacy(1.0, 3.0).one_row(program.manifest, (x, y), client.bounds), answer(x, y)
    most = 3.0 / noise
    assert most == pytest.approx(2 * RATE * NORM / ROWS)
    moved = []
    for scale in (1.0, 30.0):
        other, label = x.copy(), y.copy()
        other[7], label[7] = scale * (1 - x[7]), (y[7] + 5) % 10
        moved.append(np.linalg.norm(answer(other, label) - base))
    assert max(moved) <= most * 1.0001
    assert max(moved) > most / 4, "the bound is of this order"


@pytest.mark.parametrize(
    ("asked", "data", "bounds", "why"),
    [
        ((None,), rows_of(0), Bounds(steps=1), "built without row_clipping"),
        ((NORM, "adam"), rows_of(0), Bounds(steps=1), "optimizer is adam"),
        ((), rows_of(0), Bounds(), "10,000 steps"),
        ((), rows_of(1), Bounds(steps=1), "50 rows do not fit in a step of 40"),
        ((), (*rows_of(0), np.ones(40, np.float32)), Bounds(steps=1), "count differently"),
    ],
    ids=["clipping", "optimizer", "steps", "batch", "weight"],
)
@pytest.mark.slow
def test_what_is_not_known_is_said(asked: tuple[Any, ...], data: Any, bounds: Bounds, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Privacy(1.0, 3.0).one_row(clipped(*asked).manifest, data, bounds)
