"""fit: what it takes, what it tells, when it ends; NumPy and single steps are the oracle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from converter.runtime import Evaluated, Finished, Started, Step, TrainingSession
from converter.runtime.interpreters.memory import Arguments
from converter.support.errors import UsageError
from tests.runtime.programs import BATCH, EXAMPLES, program


def session() -> TrainingSession:
    return TrainingSession(program("mlp", optimizer="adam").data)


def data(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return EXAMPLES["mlp"].data(rows, seed)


def by_steps(x: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None, epochs: int = 1) -> dict[str, np.ndarray]:
    """The state after a step for each batch of rows, in order."""
    with session() as one:
        for _ in range(epochs):
            for start in range(0, len(x), BATCH):
                rows = slice(start, start + BATCH)
                one.train(x[rows], y[rows], 0.01, None if weight is None else weight[rows])
        return one.state()


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array)


def pieces(size: int, *arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    for start in range(0, len(arrays[0]), size):
        yield tuple(array[start : start + size] for array in arrays)


@pytest.mark.parametrize("size", [1, 3, BATCH, 2 * BATCH + 3, 100])
def test_batches_of_any_size_become_those_of_the_program(size: int) -> None:
    x, y = data(3 * BATCH + 2)
    with session() as s:
        s.fit(list(pieces(size, x, y)), epochs=2, learning_rate=0.01)
        assert_same(s.state(), by_steps(x, y, epochs=2))


def test_weights_of_rows_and_a_generator_for_one_epoch() -> None:
    x, y = data(2 * BATCH)
    weight = np.random.default_rng(0).random(2 * BATCH).astype(np.float32)
    with session() as s:
        s.fit(pieces(5, x, y, weight), epochs=1, learning_rate=0.01)
        assert_same(s.state(), by_steps(x, y, weight))


def test_a_tensorflow_dataset() -> None:
    x, y = data(2 * BATCH)
    with session() as s:
        s.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(3), epochs=2, learning_rate=0.01)
        assert_same(s.state(), by_steps(x, y, epochs=2))


class Loader:
    """As torch's DataLoader: lists, iterated anew for each epoch, of another order."""

    def __init__(self, *arrays: np.ndarray) -> None:
        self.arrays = arrays
        self.epochs = 0

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        self.epochs += 1
        return (list(batch) for batch in pieces(4, *self.arrays))


def test_a_loader_is_asked_once_an_epoch() -> None:
    loader = Loader(*data(BATCH))
    with session() as s:
        history = s.fit(loader, epochs=3)
    assert loader.epochs == 3
    assert len(history["loss"]) == 3


@pytest.mark.parametrize(
    ("source", "epochs", "said"),
    [
        (pieces(2, *data(4)), 2, "can be gone through once, and there are 2 epochs"),
        (Loader(data(4)[0]), 1, r"batch 0 is list, and expected is \(x, y\) or \(x, y, weight\)"),
        (Loader(data(8)[0], data(8)[0]), 1, "batch 0: y: expected int32"),
        (Loader(data(4)[0][:, 1:], data(4)[1]), 1, "batch 0: x: expected float32"),
        (Loader(*data(4), np.zeros(4, np.float32)), 1, "no rows to learn from"),
        ((batch for batch in ()), 1, "no rows to learn from"),
    ],
)
def test_what_is_no_data(source: Any, epochs: int, said: str) -> None:
    with session() as s, pytest.raises(UsageError, match=said):
        s.fit(source, epochs=epochs)


def test_what_the_listener_hears() -> None:
    x, y = data(2 * BATCH + 1)
    heard: list[Any] = []
    with session() as s:
        history = s.fit(x, y, epochs=2, validation=data(9, 1), listener=heard.append)
    kinds = [type(event) for event in heard]
    epoch = [Step] * 3 + [Evaluated]
    assert kinds == [Started, *epoch, *epoch, Finished]
    assert heard[0] == Started(epochs=2, steps=6)
    assert [event.step for event in heard if isinstance(event, Step)] == list(range(6))
    told = [event.figures for event in heard if isinstance(event, Evaluated)]
    assert {name: [figures[name] for figures in told] for name in told[0]} == history
    assert set(history) == {"loss", "seconds", "validation_loss", "validation_accuracy"}
    assert heard[-1] == Finished(epochs=2, stopped_early=False)


def test_the_listener_ends_it() -> None:
    x, y = data(4 * BATCH)
    heard: list[Any] = []

    def enough(event: Any) -> bool:
        heard.append(event)
        return not (isinstance(event, Step) and event.step == 5)

    with session() as s:
        history = s.fit([(x, y)], epochs=3, learning_rate=0.01, listener=enough)
        assert_same(s.state(), by_steps(np.concatenate([x, x])[: 6 * BATCH], np.concatenate([y, y])[: 6 * BATCH]))
    assert len(history["loss"]) == 1
    assert heard[-1] == Finished(epochs=1, stopped_early=True)


def test_patience_gives_the_best_state_back() -> None:
    x, y = data(BATCH)
    far = data(40, 7)
    states: list[dict[str, np.ndarray]] = []
    with session() as s:

        def note(event: Any) -> None:
            if isinstance(event, Evaluated):
                states.append(s.state())

        # Eight rows are soon known by heart, and the loss of others rises.
        history = s.fit(x, y, epochs=200, learning_rate=0.05, validation=far, patience=3, listener=note)
        best = int(np.argmin(history["validation_loss"]))
        assert len(history["loss"]) == best + 4 < 200
        assert_same(s.state(), states[best])
        assert s.evaluate(*far)["loss"] == history["validation_loss"][best]


def test_one_epoch_in_a_loop_shuffles_anew_and_a_seed_does_not() -> None:
    x, y = data(4 * BATCH)
    with session() as loop, session() as at_once:
        looped = [loop.fit(x, y, epochs=1, learning_rate=0.01)["loss"][0] for _ in range(3)]
        assert looped == at_once.fit(x, y, epochs=3, learning_rate=0.01)["loss"]
    with session() as s:
        first = s.fit(x, y, epochs=1, seed=5)["loss"]
        s.reset()
        assert s.fit(x, y, epochs=1, seed=5)["loss"] == first
        s.reset()
        assert s.fit(x, y, epochs=1, seed=6)["loss"] != first


@pytest.mark.parametrize("patience", [0, -1, 1.5, "3"])
def test_a_patience_is_a_whole_number(patience: Any) -> None:
    with session() as s, pytest.raises(UsageError, match="patience must be a whole number"):
        s.fit(*data(4), patience=patience)


def test_class_weights_are_weights_of_rows() -> None:
    x, y = data(2 * BATCH)
    weight = np.where(y == 1, 3.0, np.where(y == 2, 0.0, 1.0)).astype(np.float32)
    with session() as one, session() as other, session() as streamed:
        one.fit(x, y, weight=weight, epochs=2)
        other.fit(x, y, class_weight={1: 3, 2: 0.0}, epochs=2)
        assert_same(other.state(), one.state())
        streamed.fit([(x[:BATCH], y[:BATCH])], class_weight={1: 3, 2: 0.0}, epochs=1, learning_rate=0.01)
        assert_same(streamed.state(), by_steps(x[:BATCH], y[:BATCH], weight[:BATCH]))


@pytest.mark.parametrize(("weights", "said"), [({1: -1}, "below zero"), ({1: "a"}, "must be a number")])
def test_a_class_weight_is_a_number(weights: Any, said: str) -> None:
    with session() as s, pytest.raises(UsageError, match=said):
        s.fit(*data(4), class_weight=weights)


@pytest.mark.parametrize("stop", [False, KeyboardInterrupt])
def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(stop: Any, tmp_path: Path) -> None:
    """By its listener, or by Ctrl-C; in the same session, or in another from the saved state."""
    x, y = data(3 * BATCH + 2)

    def rate(step: int) -> float:
        return 0.01 / (1 + step)

    def after_two(event: Any) -> Any:
        if isinstance(event, Evaluated) and event.epoch == 1:
            if stop is KeyboardInterrupt:
                raise stop
            return stop
        return None

    with session() as whole:
        expected = whole.fit(x, y, epochs=5, seed=7, learning_rate=rate)
        state = whole.state()
    with session() as stopped:
        with contextlib.suppress(KeyboardInterrupt):
            assert len(stopped.fit(x, y, epochs=5, seed=7, learning_rate=rate, listener=after_two)["loss"]) == 2
        stopped.save(tmp_path / "half.state")
        stopped.fit(x, y, epochs=5, seed=7, learning_rate=rate, initial_epoch=2)
        assert_same(stopped.state(), state)
    events: list[Any] = []
    with session() as other:
        other.restore(tmp_path / "half.state")
        history = other.fit(x, y, epochs=5, seed=7, learning_rate=rate, initial_epoch=2, listener=events.append)
        assert_same(other.state(), state)
    assert history["loss"] == expected["loss"][2:]
    assert [e.epoch for e in events if isinstance(e, Evaluated)] == [2, 3, 4]
    assert [e.step for e in events if isinstance(e, Step)] == list(range(8, 20))
    assert events[-1] == Finished(3, stopped_early=False)


def test_ctrl_c_within_an_epoch_keeps_the_steps_that_were_done() -> None:
    x, y = data(3 * BATCH)

    def interrupt(event: Any) -> None:
        if isinstance(event, Step) and event.step == 1:
            raise KeyboardInterrupt

    with session() as s:
        with pytest.raises(KeyboardInterrupt):
            s.fit(list(pieces(BATCH, x, y)), epochs=1, learning_rate=0.01, listener=interrupt)
        s.fit(list(pieces(BATCH, x[2 * BATCH :], y[2 * BATCH :])), epochs=1, learning_rate=0.01)
        assert_same(s.state(), by_steps(x, y))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 3, "initial_epoch": 3}, "all of the 3 epochs are done"),
        ({"initial_epoch": -1}, "initial_epoch must be a whole number from 0 on"),
        ({"initial_epoch": 1, "learning_rate": lambda step: 0.1}, "a stream does not say which step"),
    ],
)
def test_where_a_training_cannot_begin(options: dict[str, Any], message: str) -> None:
    with session() as s, pytest.raises(UsageError, match=message):
        s.fit(list(pieces(BATCH, *data(BATCH))), **options)


@pytest.mark.parametrize("state", ["stateless", "split"])
def test_ctrl_c_while_a_step_is_taken_over_leaves_it_whole(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes behind the first tensor: all others of that step are taken over before it is raised."""
    x, y = data(BATCH)
    with TrainingSession(program("mlp", state=state).data) as whole:
        whole.train(x, y, learning_rate=0.1)
        expected = whole.state()
    with TrainingSession(program("mlp", state=state).data) as s:
        take_state, at_home, taken = Arguments._take_state, Arguments._at_home, []

        def taking(memory: Arguments, entry: Any) -> None:
            def interrupted(memory: Arguments, name: str) -> np.ndarray:
                taken.append(name)
                if len(taken) == 2:
                    raise KeyboardInterrupt
                return at_home(memory, name)

            monkeypatch.setattr(Arguments, "_at_home", interrupted)
            take_state(memory, entry)

        monkeypatch.setattr(Arguments, "_take_state", taking)
        with pytest.raises(KeyboardInterrupt):
            s.train(x, y, learning_rate=0.1)
        monkeypatch.undo()
        assert_same(s.state(), expected)
