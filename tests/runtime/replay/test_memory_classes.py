"""A memory and classes that come and go: rows never train for another class than the one that they came under."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from converter.runtime import ReplayMemory, TrainingSession
from converter.support.errors import UsageError
from tests.manifest.programs import PROGRAMS
from tests.runtime.session.class_nets import INPUTS, LATER, OWN, built, rows_of_classes

NEW = np.ones((6, INPUTS), np.float32), np.full(6, OWN, np.int32)


@pytest.fixture
def session() -> TrainingSession:
    """Return a session with a class of the user's."""
    session = TrainingSession(built(signatures=("train", "evaluate", "infer", "features")).data)
    session.add_class("cat")
    return session


def test_rows_of_a_forgotten_class_do_not_train_for_the_one_that_has_its_label(
    session: TrainingSession, tmp_path: Path
) -> None:
    memory = ReplayMemory(tmp_path / "m", session.manifest, held_out=0)
    session.remember(memory, *NEW)
    session.remember(memory, *rows_of_classes(8))
    session.forget_class("cat")
    with pytest.raises(UsageError, match="label 4 came under another name, and the label is of no class now"):
        session.fit(*rows_of_classes(8), memory=memory, progress=False)
    session.add_class("dog")
    before = (tmp_path / "m").read_bytes()
    for again in (memory, ReplayMemory(tmp_path / "m", session.manifest)):
        for add in (session.fit, session.remember):
            arguments = {"x": NEW[0], "y": NEW[1], "memory": again}
            with pytest.raises(UsageError, match=r"the label is of 'dog' now. memory.forget\(4\) removes them"):
                add(**arguments)
    assert (tmp_path / "m").read_bytes() == before
    again.forget(OWN)
    history = session.fit(*NEW, epochs=2, learning_rate=0.01, memory=again, progress=False)
    assert len(history["loss"]) == 2
    assert again.counts()[OWN] == 6


@pytest.mark.parametrize("keeps", ["inputs", "features"])
def test_rows_of_a_class_that_was_renamed_stay_when_the_memory_is_told(
    keeps: str, session: TrainingSession, tmp_path: Path
) -> None:
    memory = ReplayMemory(tmp_path / "m", session.manifest, keeps=keeps, held_out=0.3)
    session.remember(memory, *NEW)
    session.rename_class("cat", "Katze")
    with pytest.raises(UsageError, match=r"memory.rename\(4, name\) keeps them"):
        session.remember(memory, *NEW)
    memory.rename(OWN, "Katze")
    again = ReplayMemory(tmp_path / "m", session.manifest)
    session.remember(again, *NEW)
    assert again.seen == 12
    session.rename_class("one", "first")
    session.remember(again, *NEW)  # no row is of that label


def test_a_label_that_there_is_not_is_refused_and_the_file_stays(session: TrainingSession, tmp_path: Path) -> None:
    memory = ReplayMemory(tmp_path / "m", session.manifest)
    session.remember(memory, *NEW)
    before = (tmp_path / "m").read_bytes()
    most = OWN + LATER - 1
    for label in (most + 1, -1, 0.0, True, "cat", None):
        for change in (lambda it=label: memory.forget(it), lambda it=label: memory.rename(it, "cat")):
            with pytest.raises(UsageError, match=rf"^label: a whole number from 0 to {most}, .*, not {label!r}\n"):
                change()
    assert (tmp_path / "m").read_bytes() == before
    memory.forget(np.int64(OWN))
    assert ReplayMemory(tmp_path / "m", session.manifest).counts() == {}


def test_half_a_character_in_a_name_is_refused_and_nothing_changes(session: TrainingSession, tmp_path: Path) -> None:
    memory = ReplayMemory(tmp_path / "m", session.manifest)
    session.remember(memory, *NEW)
    before, names = (tmp_path / "m").read_bytes(), session.classes()
    for name in ("\ud800", "a\udfff"):  # as json.loads makes of "\\ud800"
        for change in (
            lambda it=name: session.add_class(it),
            lambda it=name: session.rename_class("cat", it),
            lambda it=name: memory.rename(OWN, it),
        ):
            with pytest.raises(UsageError, match="no half characters"):
                change()
    assert ((tmp_path / "m").read_bytes(), session.classes()) == (before, names)


def test_rows_are_of_the_classes_of_the_only_target_where_it_has_a_name(tmp_path: Path) -> None:
    program = PROGRAMS["named-target"]()
    labels = [0, 1, 2, 1, 2, 2]
    with TrainingSession(program.data) as session:
        memory = ReplayMemory(tmp_path / "m", session.manifest, held_out=0)
        session.remember(memory, np.zeros((6, 6), np.float32), {"kind": np.array(labels, np.int32)})
        assert memory.counts() == {0: 1, 1: 2, 2: 3}


def test_rows_of_an_update_that_sorts_its_classes_anew_are_refused(tmp_path: Path) -> None:
    x, y = rows_of_classes(8)
    options = {"classes": None, "head": None, "signatures": ("train", "evaluate", "infer")}
    first, second = (TrainingSession(built(labels=list(labels), **options).data) for labels in ("abcd", "abdc"))
    with first, second:
        memory = ReplayMemory(tmp_path / "m", first.manifest, held_out=0)
        first.remember(memory, x, y)
        for add in (second.fit, second.remember):
            with pytest.raises(UsageError, match="label 2 came under another name, and the label is of 'd' now"):
                add(x=x, y=y, memory=ReplayMemory(tmp_path / "m", second.manifest))
        for label in (2, 3):
            memory.forget(label)
        second.remember(ReplayMemory(tmp_path / "m", second.manifest), x, y)


def test_where_no_names_are_kept_a_memory_asks_for_none(tmp_path: Path) -> None:
    x, y = rows_of_classes()
    with TrainingSession(built(classes=None, head=None, signatures=("train", "evaluate", "infer")).data) as plain:
        memory = ReplayMemory(tmp_path / "m", plain.manifest)
        plain.remember(memory, x, y)
        plain.fit(x, y, memory=memory, learning_rate=0.01, progress=False)
        assert memory.seen == 60
