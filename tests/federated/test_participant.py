"""A client's part in rounds, without any network: what it trains, what it keeps, what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import converter
from converter.federated import Bounds, Participant, Plan, RefusedRound, identity
from converter.federated.app import _Opened
from converter.runtime import TrainingSession
from converter.support.errors import NumericError, UsageError
from tests.federated.people import KINDS, averaged, built, rows_of
from tests.runtime.session.class_nets import NAMES, rows_of_classes, small_model


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_average_to_plain_fedavg(kind: str) -> None:
    program, people = built(kind), [rows_of(k) for k in range(3)]
    client = Participant(program.data)
    config = {"program": identity(program.data), "epochs": 2, "learning-rate": 0.02}
    with TrainingSession(program.data) as session:
        arrays = client.exchange.sent(session.state())
    for number in (1, 2):
        answers = [client.train(arrays, config | {"server-round": number}, rows, {}) for rows in people]
        weights = [figures["num-examples"] for _, figures, _ in answers]
        assert weights == [40, 50, 60]
        shares = np.array(weights) / sum(weights)
        arrays = {
            name: sum(share * one[0][name] for share, one in zip(shares, answers, strict=True)).astype(np.float32)
            for name in arrays
        }
    wanted = averaged(program, people, rounds=2, epochs=2, rate=0.02)
    for name, array in client.exchange.taken(arrays).items():
        np.testing.assert_allclose(array, wanted[name], atol=1e-5)


def test_slots_stay_at_home_and_go_on() -> None:
    """One client alone: two rounds are one training of twice the epochs."""
    program, (x, y) = built("head", "adam"), rows_of(0)
    client = Participant(program.data)
    config = {"program": identity(program.data), "learning-rate": 0.01, "epochs": 2, "seed": 3}
    with TrainingSession(program.data) as session:
        arrays, slots = client.exchange.sent(session.state()), {}
        for number in (1, 2):
            arrays, figures, slots = client.train(arrays, config | {"server-round": number}, (x, y), slots)
            assert set(arrays) == set(client.exchange.trained)
        history = session.fit(x, y, 4, 0.01, progress=False, seed=3)
        state = session.state()
    for name, array in client.exchange.taken(arrays).items():
        np.testing.assert_array_equal(array, state[name])
    assert figures["loss"] == pytest.approx(history["loss"][-1])
    assert all(np.array_equal(array, state[name]) for name, array in slots.items())
    with pytest.raises(RefusedRound, match="slots of the last round"):
        client.train(arrays, config, (x, y), {"foreign": np.zeros(3, np.float32)})


def test_a_class_that_came_between_rounds_trains_in_the_next(tmp_path: Path) -> None:
    """The owner's file goes before what Flower kept of the last round; oracle: a session that has the file."""
    model, asked = small_model(), {"update": "full", "batch": 4, "optimizer": "sgd", "labels": NAMES, "check": False}
    program = converter.build(model, classes="4+3", **asked)
    (x, y), own = rows_of_classes(28), tmp_path / "own.state"
    client = Participant(program.data, personal=["last/*"], own=own)
    config = {"program": client.exchange.identity, "learning-rate": 0.01, "seed": 3}
    with TrainingSession(program.data) as session:
        sent = client.exchange.sent(session.state())
        arrays, _, kept = client.train(sent, config, (x, y), {})
        client.close()
        session.restore(own)
        y[:7] = session.add_class("mine")
        session.save(own)
        client = Participant(program.data, personal=["last/*"], own=own)
        _, figures, _ = client.train(arrays, config | {"server-round": 2}, (x, y), kept)
        history = session.fit(x, y, 2, 0.01, progress=False, seed=3, initial_epoch=1)
        expected = session.parameters()
        assert figures["loss"] == pytest.approx(history["loss"][-1], abs=1e-6)
        session.restore(own)
        assert session.classes()[4] == "mine"
        for name, values in session.parameters().items():
            np.testing.assert_allclose(values, expected[name], atol=1e-6)


def test_slots_travel_where_the_server_sends_them() -> None:
    program, rows = built("head", "adam"), rows_of(0)
    client = Participant(program.data)
    config = {"program": identity(program.data), "learning-rate": 0.01}
    with TrainingSession(program.data) as session:
        sent = client.exchange.sent(session.state(), slots=True)
    arrays, _, _ = client.train(sent, config, rows, {})
    assert set(arrays) == set(sent) > set(client.exchange.trained)
    again, _, kept = client.train(arrays, config | {"server-round": 2}, rows, {})
    assert again["optimizer/0/count"] == [10.0]
    del kept["optimizer/0/count"]
    with pytest.raises(RefusedRound, match="did not send optimizer/0/count"):
        client.train({n: a for n, a in arrays.items() if n != "optimizer/0/count"}, config, rows, {})


def test_a_round_ends_after_so_many_steps_and_evaluates() -> None:
    program, rows = built("head"), rows_of(0)
    client = Participant(program.data)
    config = {"program": identity(program.data), "learning-rate": 0.01}
    with TrainingSession(program.data) as session:
        arrays = client.exchange.sent(session.state())
        stepped, _, _ = client.train(arrays, config | {"epochs": 3, "steps": 7}, rows, {})
        seen = []
        session.fit(*rows, 3, 0.01, False, 0, listener=lambda event: len(seen) < 7 and seen.append(event) is None)
        assert client.evaluate(arrays, config, rows).keys() == {"num-examples", "loss", "accuracy", "seconds"}
        session.reset()
        assert client.evaluate(arrays, config, rows)["loss"] == pytest.approx(session.evaluate(*rows)["loss"])
    assert not np.array_equal(stepped["head/w"], arrays["head/w"])
    weight = np.zeros(40, np.float32)
    weight[:5] = 1
    assert client.train(arrays, config, (*rows, weight), {})[1]["num-examples"] == 5
    assert client.describe(rows) == {"program": identity(program.data), "num-examples": 40, "bytes": 10280}


def test_a_refused_round_leaves_the_next_as_it_is() -> None:
    program, rows = built("head"), rows_of(0)
    client = Participant(program.data, Bounds(epochs=2, norm=1e60))
    config = {"program": identity(program.data), "learning-rate": 0.01}
    with TrainingSession(program.data) as session:
        arrays = client.exchange.sent(session.state())
    first, _, _ = client.train(arrays, config, rows, {})
    bad = {
        "names no program": {"learning-rate": 0.1},
        "names the program deadbeef": {"program": "deadbeef"},
        "allows 1 to 2": config | {"epochs": 3},
    }
    for said, other in bad.items():
        with pytest.raises(RefusedRound, match=said):
            client.train(arrays, other, rows, {})
    with pytest.raises(NumericError):
        client.train({name: np.full_like(a, 3e38) for name, a in arrays.items()}, config, rows, {})
    with pytest.raises(UsageError, match="expected float32"):
        client.train(arrays, config, (rows[0][:, :3], rows[1]), {})
    second, _, _ = client.train(arrays, config, rows, {})
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"epoch": 2}, "'epoch', which is not known: .* Did you mean 'epochs'"),
        ({"epochs": 0}, "epochs is 0, and the owner of this client allows 1 to 10"),
        ({"epochs": 2.0}, "expected is a whole number"),
        ({"epochs": True}, "expected is a whole number"),
        ({"steps": 10_001}, "allows 1 to 10000"),
        ({"learning-rate": 1.5}, "allows 0.0 to 1.0"),
        ({"learning-rate": float("nan")}, "expected is a number"),
        ({"learning-rate": "0.1"}, "expected is a number"),
        ({"learning-rate": [0.1]}, "expected is a number"),
        ({"seed": -1}, "allows 0 to"),
        ({"server-round": 0}, "allows 1 to"),
        ({"proximal-mu": 101.0}, "allows 0.0 to 100.0"),
    ],
)
def test_a_plan_beyond_its_bounds_is_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(RefusedRound, match=said):
        Plan.of(config, Bounds())


def test_a_plan_is_read() -> None:
    config = {"epochs": 3, "steps": 20, "learning-rate": 1, "seed": 5, "server-round": 4, "program": "x"}
    assert Plan.of(config, Bounds()) == Plan(epochs=3, steps=20, learning_rate=1, seed=5, round=4)
    assert Plan.of({}, Bounds()) == Plan()
    given = {"epochs": np.int64(3), "learning-rate": np.float32(0.5), "seed": np.uint8(5)}
    plan = Plan.of(given, Bounds())
    assert plan == Plan(epochs=3, learning_rate=0.5, seed=5)
    assert {type(value) for value in (plan.epochs, plan.learning_rate, plan.seed)} == {int, float}


def test_bounds_that_nothing_is_within_are_refused() -> None:
    for bounds in ({"epochs": 0}, {"learning_rate": float("inf")}, {"norm": -1.0}):
        with pytest.raises(UsageError, match="nothing is within it"):
            Bounds(**bounds)


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.tflite"):
        _Opened(tmp_path / "missing.tflite", Bounds(), 1)()
