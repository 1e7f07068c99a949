"""`state`: what is in a saved state, and whether a program takes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import converter
from converter.runtime import State, StateSpec, TrainingSession
from converter.runtime.state.state_file import DamagedState, pack, unpack
from tests.cli.conftest import FACTORIES, Run
from tests.cli.factories import good
from tests.runtime.state.test_recorded import FOLDER, PROGRAMS, own
from tests.runtime.state.test_state_file import packed_in_version_1

GOOD = f"{FACTORIES}:good"


@pytest.fixture
def saved(run: Run, tmp_path: Path) -> dict[str, np.ndarray]:
    """A program, `good.tflite`, and a state of it, `mine.state`; the tensors of that."""
    assert run("build", GOOD, "--update", "head", "--optimizer", "adam", "--batch", "4", "--no-check").code == 0
    with TrainingSession(tmp_path / "good.tflite") as session:
        session.save(tmp_path / "mine.state")
        return session.state()


def test_it_says_what_is_in_a_state(run: Run, saved: dict[str, np.ndarray]) -> None:
    shown = run("state", "mine.state")
    assert shown.code == 0
    for word in ("generation 1", "optimizer adam", "layers/2/w", "optimizer/0/mu/layers/2/w", "slot", "layers/0/w"):
        assert word in shown.out
    found = json.loads(run("state", "mine.state", "--json").out)
    assert {tensor["name"] for tensor in found["tensors"]} == set(saved)
    frozen = {weight["name"] for weight in found["identity"]["frozen"]}
    assert frozen == {f"layers/{i}/{part}" for i in (0, 1) for part in "wb"}


@pytest.mark.usefixtures("saved")
def test_it_says_whether_it_goes_on_in_another_program(run: Run) -> None:
    for flags in (("--target", "gpu"), ("--batch", "2")):
        run("build", GOOD, "--update", "head", "--optimizer", "adam", *flags, "--out", "other.tflite", "--no-check")
        shown = run("state", "mine.state", "--against", "other.tflite")
        assert shown.code == 0
        assert shown.out.endswith("it goes on in other.tflite\n")
    run("build", GOOD, "--update", "last-2", "--optimizer", "adam", "--out", "other.tflite", "--no-check")
    refused = run("state", "mine.state", "--against", "other.tflite")
    assert (refused.code, refused.out) == (2, "")
    assert "layers/1/w is frozen there and trains here" in refused.err
    assert "it gives 7 of the program's 13 tensors" in refused.err


def test_it_says_of_which_classes_a_state_is(run: Run, tmp_path: Path) -> None:
    for name, labels in (("mine", ["cup", "jug", "key"]), ("sorted", ["jug", "cup", "key"])):
        built = converter.build(good(), labels=labels, update="head", check=False)
        built.write(tmp_path / f"{name}.tflite")
    with TrainingSession(tmp_path / "mine.tflite") as session:
        session.save(tmp_path / "mine.state")
    shown = run("state", "mine.state", "--against", "mine.tflite")
    assert (shown.code, "classes of output 0: cup, jug, key" in shown.out) == (0, True)
    assert json.loads(run("state", "mine.state", "--json").out)["labels"] == [["cup", "jug", "key"]]
    refused = run("state", "mine.state", "--against", "sorted.tflite")
    assert (refused.code, refused.out) == (2, "")
    assert "class 0 of output is 'cup' there, 'jug' here" in refused.err


def test_of_an_old_state_it_says_what_cannot_be_told(run: Run, saved: dict[str, np.ndarray], tmp_path: Path) -> None:
    (tmp_path / "old.state").write_bytes(packed_in_version_1("cd" * 32, 3, saved))
    shown = run("state", "old.state", "--against", "good.tflite")
    assert shown.code == 0
    for word in ("format 1, generation 3", "not said", "goes on in good.tflite, as far as can be told"):
        assert word in shown.out
    found = json.loads(run("state", "old.state", "--against", "good.tflite", "--json").out)
    assert (found["identity"], found["against"]["proven"]) == (None, False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_of_recorded_states_it_says_what_a_session_does(name: str, run: Run, tmp_path: Path) -> None:
    program = own(name, tmp_path)
    shown = run("state", str(FOLDER / f"{name}.state"), "--against", str(program))
    assert (shown.code, shown.out.splitlines()[-1]) == (0, f"it goes on in {program}")


def test_it_refuses_what_a_session_refuses(run: Run, tmp_path: Path) -> None:
    """A state of the program's own hash, of which a tensor is missing."""
    program, state = own("b12069f6", tmp_path), unpack((FOLDER / "b12069f6.state").read_bytes())
    lost, *others = state.spec.tensors
    kept = {name: array for name, array in state.tensors.items() if name != lost.tensor}
    (tmp_path / "cut.state").write_bytes(pack(State(StateSpec(state.spec.program, tuple(others)), 1, kept)))
    with TrainingSession(program) as session, pytest.raises(DamagedState, match="not those of this program"):
        session.restore(tmp_path / "cut.state")
    shown = run("state", "cut.state", "--against", str(program))
    assert (shown.code, shown.out) == (2, "")
    assert f"cut.state does not go on in {program}: its tensors are not those of this program" in shown.err


def test_what_is_no_state(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    assert "no state file" in run("state", "a.txt").err
    assert "there is no such state file" in run("state", "nowhere").err
