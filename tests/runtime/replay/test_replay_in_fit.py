"""`fit` with a memory: which rows train (optax trains on the same), what is held out, drift and going back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import converter
from converter.runtime import Drifted, Event, ReplayMemory, TrainingSession
from converter.support.errors import UsageError
from jax_frontend import Model
from tests.runtime.programs import BATCH, EXAMPLES, program, train_with_optax
from tests.runtime.session.class_nets import OWN, built, rows_of_classes

FEATURES = ("train", "evaluate", "infer", "features")
MLP = EXAMPLES["mlp"]


def batches_of(session: TrainingSession, monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, ...]]:
    """What each step is given, as it is given."""
    taken: list[tuple[np.ndarray, ...]] = []
    step = session._step

    def spy(examples: Any, *rest: Any, **named: Any) -> float:
        taken.append(tuple(examples.arrays[name] for name in ("x", "y", "weight")))
        return step(examples, *rest, **named)

    monkeypatch.setattr(session, "_step", spy)
    return taken


def places(x: np.ndarray, rows: np.ndarray) -> list[int]:
    """Which of some rows others are."""
    return [int(np.flatnonzero((x == row).all(1))[0]) for row in rows]


def test_a_share_of_each_epoch_is_replayed_and_no_row_that_is_held_out_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = MLP.data(300)
    session = TrainingSession(program().data)
    memory = ReplayMemory(tmp_path / "m", session.manifest, limit=8000, held_out=0.2)
    taken = batches_of(session, monkeypatch)
    aside: set[int] = set()
    for call in range(3):
        new = np.arange(100 * call, 100 * call + 100)
        old = set(memory.numbers()[0].tolist())
        before = set(memory.numbers()[1].tolist())
        del taken[:]
        session.fit(x[new], y[new], epochs=2, memory=memory, replay=0.25, learning_rate=0.01, progress=False, seed=call)
        aside |= set(memory.numbers()[1].tolist())
        assert before <= set(range(100 * call))
        steps = len(taken) // 2
        epochs = [
            places(x, np.concatenate([rows for rows, _, _ in taken[e * steps : (e + 1) * steps]])) for e in (0, 1)
        ]
        fresh = [[row for row in epoch if row >= new[0]] for epoch in epochs]
        replayed = [[row for row in epoch if row < new[0]] for epoch in epochs]
        assert sorted(fresh[0]) == sorted(fresh[1]), "each new row once an epoch"
        assert len(set(fresh[0])) == len(fresh[0])
        for rows in replayed:
            assert set(rows) <= old
            assert len(rows) == (0 if not call else int(len(fresh[0]) * 0.25 / 0.75 + 0.5))
            assert len(set(rows)) == len(rows) or len(rows) > len(old)
        if call:
            assert replayed[0] != replayed[1], "drawn anew"
        assert not aside & {row for epoch in epochs for row in epoch}
    assert len(aside) > 10


def test_the_weights_are_those_of_optax_on_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = MLP.data(60)
    session = TrainingSession(program().data)
    memory = ReplayMemory(tmp_path / "m", session.manifest, held_out=0)
    session.remember(memory, x[:40], y[:40], np.linspace(0.5, 2, 40))
    taken = batches_of(session, monkeypatch)
    history = session.fit(x[40:], y[40:], epochs=2, memory=memory, learning_rate=0.05, progress=False, seed=3)
    assert "drift" not in history
    assert len(taken) == 2 * 40 / BATCH
    weights = {float(w) for *_, weight in taken for w in weight}
    assert len(weights) > 10, "rows keep their weights"
    _, expected = train_with_optax(MLP, "sgd", taken, 0.05)
    for name, value in session.parameters().items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-5, atol=2e-6, err_msg=name)


def test_an_empty_memory_changes_nothing(tmp_path: Path) -> None:
    x, y = MLP.data(30)
    session, alone = TrainingSession(program().data), TrainingSession(program().data)
    memory = ReplayMemory(tmp_path / "m", session.manifest, held_out=0)
    session.fit(x, y, memory=memory, learning_rate=0.05, progress=False)
    alone.fit(x, y, learning_rate=0.05, progress=False)
    for name, value in alone.state().items():
        np.testing.assert_array_equal(session.state()[name], value)


@pytest.mark.parametrize("frozen", [None, "int8"])
def test_features_that_are_kept_train_as_their_rows_do(frozen: str | None, tmp_path: Path) -> None:
    cnn = EXAMPLES["cnn"]
    x, y = cnn.data(120)
    options = {"frozen": frozen, "calibration": x} if frozen else {}
    built = converter.build(cnn.model(), update="head", batch=8, signatures=FEATURES, optimizer="sgd", **options)
    states, sizes = [], []
    for keeps in ("inputs", "features"):
        session = TrainingSession(built.data)
        memory = ReplayMemory(tmp_path / keeps, session.manifest, limit=1 << 20, keeps=keeps)
        session.remember(memory, x[:60], y[:60])
        session.fit(x[60:], y[60:], memory=memory, learning_rate=0.05, progress=False)
        states.append(session.state())
        sizes.append(len((tmp_path / keeps).read_bytes()))
        again = ReplayMemory(tmp_path / keeps, session.manifest)
        assert again.counts() == memory.counts()
    assert sizes[1] < sizes[0] / (4 if frozen else 2)
    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name], value)
    with pytest.raises(UsageError, match="keeps features"):
        memory.replayed()
    other = cnn.model()
    other.params["conv1"]["w"] = other.params["conv1"]["w"] + 1
    changed = converter.build(other, update="head", batch=8, signatures=FEATURES, optimizer="sgd")
    with pytest.raises(UsageError, match=r"the frozen weights differ, and features are kept|other frozen layers"):
        ReplayMemory(tmp_path / "features", changed.manifest)


def test_a_rise_of_the_loss_is_told_and_the_state_goes_back(tmp_path: Path) -> None:
    """Rows of one class in its turn, wrong ones at last: what was known is lost."""
    x, y = MLP.data(400)
    session = TrainingSession(program().data)
    memory = ReplayMemory(tmp_path / "m", session.manifest, limit=1 << 16)
    options: dict[str, Any] = {"memory": memory, "learning_rate": 0.3, "progress": False}
    first = session.fit(x[:300], y[:300], epochs=10, **options)
    assert "drift" not in first, "nothing was held out before it"
    kept = memory.held_out()
    assert kept is not None
    before = session.evaluate(*kept)["loss"]
    state = session.state()
    wrong = (y[300:350] + 1) % 4
    events: list[Event] = []
    history = session.fit(x[300:350], wrong, epochs=10, replay=0, roll_back=0.1, listener=events.append, **options)
    (told,) = [event for event in events if isinstance(event, Drifted)]
    assert type(events[-1]).__name__ == "Finished"
    assert told.rolled_back
    assert told.before == before
    assert history["drift"] == [told.after - told.before]
    assert history["validation_loss"][-1] == told.after, "the held-out rows are validation where none is given"
    for name, value in state.items():
        np.testing.assert_array_equal(session.state()[name], value)
    assert memory.seen == 350, "rows enter all the same"
    del events[:]
    session.fit(x[300:350], (wrong + 1) % 4, epochs=10, replay=0, listener=events.append, **options)
    (told,) = [event for event in events if isinstance(event, Drifted)]
    assert not told.rolled_back
    assert (session.state()["layers/1/w"] != state["layers/1/w"]).any()


class _Late:
    """Rows that are there when they are asked for."""

    def __init__(self, rows: np.ndarray, before: Callable[[], object]) -> None:
        self._rows, self._before = rows, before

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._before()
        return self._rows


def test_a_class_that_was_added_while_a_training_began_is_not_rolled_back(tmp_path: Path) -> None:
    x, y = rows_of_classes()
    with TrainingSession(built(optimizer="sgd").data) as session:
        memory = ReplayMemory(tmp_path / "m", session.manifest, limit=1 << 16)
        options: dict[str, Any] = {"memory": memory, "learning_rate": 3.0, "progress": False}
        session.fit(x, y, epochs=4, **options)

        def add() -> None:
            if "five" not in session.classes():
                session.add_class("five")

        events: list[Event] = []
        wrong = ((y + 1) % OWN).astype(np.int32)
        session.fit(_Late(x, add), wrong, epochs=4, replay=0, roll_back=0.0, listener=events.append, **options)
        (told,) = [event for event in events if isinstance(event, Drifted)]
        assert told.rolled_back
        assert "five" in session.classes()


def test_replay_keeps_what_training_on_new_rows_alone_forgets(tmp_path: Path) -> None:
    x, y = MLP.data(800)
    old, new = np.isin(y, (0, 1)), np.isin(y, (2, 3))
    accuracy = {}
    for replay in (0.0, 0.5):
        session = TrainingSession(program().data)
        memory = ReplayMemory(tmp_path / str(replay), session.manifest, limit=8000)
        for which in (old, new):
            session.fit(x[which], y[which], epochs=8, memory=memory, replay=replay, learning_rate=0.1, progress=False)
        accuracy[replay] = session.evaluate(*MLP.data(400, seed=9))["accuracy"]
    assert accuracy[0.0] < 0.6
    assert accuracy[0.5] > accuracy[0.0] + 0.2


def test_nothing_enters_when_the_training_fails_or_is_interrupted(tmp_path: Path) -> None:
    x, y = MLP.data(30)
    session = TrainingSession(program().data)
    memory = ReplayMemory(tmp_path / "m", session.manifest)

    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.fit(x, y, memory=memory, listener=interrupt, progress=False)
    assert (memory.seen, (tmp_path / "m").exists()) == (0, False)
    session.fit(x, y, memory=memory, listener=lambda event: False, progress=False)
    assert memory.seen == 30, "who ends a training ends it well"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory": "m"}, "memory is a ReplayMemory"),
        ({"replay": 0.96}, "replay: a share from 0 to 0.95"),
        ({"roll_back": -1}, "roll_back: a share from 0 on"),
        ({"roll_back": 0.1, "memory": None}, "roll_back goes by the held-out rows"),
        ({"y": None, "x": [MLP.data(8)]}, "rows of a stream do not enter"),
    ],
)
def test_what_fit_does_not_do_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    x, y = MLP.data(30)
    session = TrainingSession(program().data)
    memory = ReplayMemory(tmp_path / "m", session.manifest)
    with pytest.raises(UsageError, match=said):
        session.fit(**{"x": x, "y": y, "memory": memory, "progress": False} | options)
    assert memory.seen == 0


def test_rows_that_are_all_kept_aside_do_not_train(tmp_path: Path) -> None:
    x, y = MLP.data(200)
    session = TrainingSession(program().data)
    memory = ReplayMemory(tmp_path / "m", session.manifest, held_out=0.5)

    def one_by_one() -> None:
        for row in range(20):
            session.fit(x[row : row + 1], y[row : row + 1], memory=memory, epochs=1, progress=False)

    with pytest.raises(UsageError, match=r"all rows, 1, are kept aside"):
        one_by_one()
    seen = memory.seen
    session.remember(memory, x[seen : seen + 1], y[seen : seen + 1])
    assert memory.numbers()[1][-1] == seen


def test_several_inputs_and_targets_go_in_and_come_out_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(s).astype(np.float32) for name, s in {"a": (5, 3), "b": (2, 3)}.items()}

    def apply(params: Any, left: Any, right: Any) -> dict[str, Any]:
        hidden = left @ params["a"] + right @ params["b"]
        return {"kind": hidden, "size": hidden[:, :1]}

    inputs = [jax.ShapeDtypeStruct((1, size), "float32") for size in (5, 2)]
    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    session = TrainingSession(converter.build(Model(apply, params, inputs), loss=losses, batch=4).data)
    memory = ReplayMemory(tmp_path / "m", session.manifest, limit=4000, held_out=0.3)
    x = tuple(rng.standard_normal((30, size)).astype(np.float32) for size in (5, 2))
    y = {"kind": rng.integers(0, 3, 30).astype(np.int32), "size": rng.standard_normal((30, 1)).astype(np.float32)}
    session.remember(memory, x, y)
    assert set(memory.counts()) == {0}, "rows of several targets have no class"
    session.fit(x, y, memory=memory, epochs=1, progress=False)
    kept = memory.held_out()
    assert kept is not None
    number = memory.numbers()[1] % 30
    for found, given in zip(kept[0].values(), x, strict=True):
        np.testing.assert_array_equal(found, given[number])
    for name, given in y.items():
        np.testing.assert_array_equal(kept[1][name], given[number])
