"""Orders of samples: tests/runtime/orders.json, which the tests of the Kotlin and the TypeScript trainer read, too.

The Kotlin test holds them against java.util.Random itself.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from converter.runtime import TrainingSession
from converter.runtime.data.order import order_of
from tests.runtime.session.test_session import open_session

VECTORS = json.loads((Path(__file__).parents[1] / "orders.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['seed']} {v['epoch']} {len(v['order'])}")
def test_an_order_is_that_of_all_trainers(vector: dict) -> None:
    seed, epoch, order = vector["seed"], vector["epoch"], vector["order"]
    assert order_of(seed, epoch, len(order)).tolist() == order
    assert order_of(np.int64(seed), epoch, len(order)).tolist() == order


def test_numbers_are_those_that_java_prints() -> None:
    """`new Random(1_000_003)` gives these below 21, 20, ..., 2, which swap the places from the last on."""
    drawn = [16, 15, 12, 5, 8, 11, 7, 10, 10, 3, 9, 7, 2, 1, 6, 5, 0, 2, 2, 1]
    expected = list(range(21))
    for last, other in zip(range(20, 0, -1), drawn, strict=True):
        expected[last], expected[other] = expected[other], expected[last]
    assert order_of(1, 0, 21).tolist() == expected


def seen(session: TrainingSession, calls: list[dict], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The first numbers of the rows in the order in which steps take them."""
    taken: list[float] = []
    step = session._step

    def spy(examples, rate, signature):  # type: ignore[no-untyped-def]
        taken.extend(examples.arrays["x"].reshape(examples.rows, -1)[:, 0].tolist())
        return step(examples, rate, signature)

    monkeypatch.setattr(session, "_step", spy)
    x, y = np.repeat(np.arange(21, dtype=np.float32)[:, None], 12, 1) / 21, np.arange(21) % 4
    weight = np.ones(21, np.float32)
    weight[5] = 0
    for call in calls:
        session.fit(x, y, weight=weight, learning_rate=1e-6, progress=False, **call)
    return [round(21 * each) for each in taken]


@pytest.mark.parametrize(
    ("calls", "orders"),
    [
        ([{"epochs": 2, "seed": 3}], [(3, 0), (3, 1)]),
        ([{"epochs": 3, "seed": 3, "initial_epoch": 2}], [(3, 2)]),
        ([{"epochs": 2}, {"epochs": 1}], [(0, 0), (0, 1), (0, 2)]),
        ([{"epochs": 2, "seed": 9, "shuffle": False}], [None, None]),
    ],
    ids=["seed", "goes on", "no seed", "as they are"],
)
def test_fit_takes_rows_of_weight_in_this_order(
    calls: list[dict], orders: list[tuple[int, int] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.array([i for i in range(21) if i != 5])
    expected = [rows if order is None else rows[order_of(*order, 20)] for order in orders]
    with open_session() as session:
        assert seen(session, calls, monkeypatch) == np.concatenate(expected).tolist()
