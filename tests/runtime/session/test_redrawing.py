"""`fit(..., redraw=True)`: epochs one by one, and a training that is continued, are the same to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter import Channels
from converter.runtime import Evaluated, TrainingSession
from converter.runtime.session.redrawing import drawn
from converter.support.errors import UsageError
from tests.training.schemes.by_hand import ADAM
from tests.training.schemes.test_channels import built_with, data

UPDATE = {"twice": 0, "left": Channels(0.5, redrawn=True), "heads": Channels(0.4, redrawn=True), "head": 1}
EPOCHS, SEED = 5, 3
GIVEN: dict[str, Any] = {"learning_rate": 0.02, "progress": False, "redraw": True}


@pytest.fixture(scope="module")
def program() -> bytes:
    return built_with("mixer", update=UPDATE, optimizer=ADAM).data


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.quick
def test_every_epoch_but_the_first_begins_with_other_channels(program: bytes) -> None:
    x, y = data("mixer", 1, 19)
    seen: list[dict[str, np.ndarray]] = []
    with TrainingSession(program) as session:
        first = session.channels()

        def listener(event: Any) -> None:
            if isinstance(event, Evaluated):
                seen.append(session.channels())

        session.fit(x, y, epochs=EPOCHS, seed=SEED, listener=listener, **GIVEN)
        whole = session.state()
        assert_same(seen[0], first)
        for epoch in range(1, EPOCHS):
            channels = drawn(session.manifest, SEED, epoch)
            assert_same(seen[epoch], {name.removesuffix("/channels"): v for name, v in channels.items()})
        assert len({str(channels) for channels in seen}) > 2
        session.reset()
        for epoch in range(EPOCHS):
            if epoch:
                session._redraw(None, SEED, epoch)
            session.fit(x, y, epochs=epoch + 1, initial_epoch=epoch, seed=SEED, **GIVEN | {"redraw": False})
        assert_same(session.state(), whole)


def test_a_training_that_was_stopped_goes_on_as_it_would_have(program: bytes, tmp_path: Path) -> None:
    x, y = data("mixer", 1, 19)
    with TrainingSession(program) as session:
        session.fit(x, y, epochs=EPOCHS, seed=SEED, **GIVEN)
        wanted = session.state()
        session.reset()
        for _ in range(EPOCHS):  # one by one, numbered through
            session.fit(x, y, epochs=1, **GIVEN)
        through = session.state()
        session.reset()
        session.fit(x, y, epochs=EPOCHS, seed=0, **GIVEN)
        assert_same(session.state(), through)
        session.reset()

        def stops(event: Any) -> bool:
            return not (isinstance(event, Evaluated) and event.epoch == 2)

        session.fit(x, y, epochs=EPOCHS, seed=SEED, listener=stops, **GIVEN)
        session.save(tmp_path / "half.state")
    with TrainingSession(program) as session:
        session.restore(tmp_path / "half.state")
        session.fit(x, y, epochs=EPOCHS, seed=SEED, initial_epoch=3, **GIVEN)
        assert_same(session.state(), wanted)


def test_epochs_of_a_stream_are_counted_as_those_of_arrays(program: bytes) -> None:
    x, y = data("mixer", 1, 16)
    with TrainingSession(program) as session:
        for epoch in range(3):
            session.fit([(x, y)], epochs=1, **GIVEN)
            if epoch:
                channels = drawn(session.manifest, 0, epoch)
                assert_same(session.channels(), {name.removesuffix("/channels"): v for name, v in channels.items()})


def test_a_redraw_again_before_the_next_step_changes_nothing(program: bytes) -> None:
    """So a training that ended between the two, and begins the epoch again, is the same."""
    x, y = data("mixer", 1, 19)
    with TrainingSession(program) as session:
        session.fit(x, y, epochs=2, seed=SEED, **GIVEN)
        session.redraw_channels(seed=8)
        once = session.state()
        session.redraw_channels(seed=8)
        assert_same(session.state(), once)


def test_programs_whose_channels_stay_are_refused(program: bytes) -> None:
    x, y = data("mixer", 1, 19)
    with TrainingSession(program) as session, pytest.raises(UsageError, match="redraw is True or False, not 'fisher'"):
        session.fit(x, y, **GIVEN | {"redraw": "fisher"})
    with (
        TrainingSession(built_with("mixer").data) as session,
        pytest.raises(UsageError, match=r"redrawing channels: no weight of .* takes up what is added"),
    ):
        session.fit(x, y, **GIVEN)
