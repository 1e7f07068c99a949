"""Trainings that are recorded for the trainers in Kotlin and TypeScript: the host does them again to the byte."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tree import ROOT


@pytest.fixture(scope="module")
def modules() -> Any:
    """What android_app/ has beside its Kotlin: what is recorded, and the programs that it is recorded with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "android_app"))
        yield importlib.import_module("recorded_traces"), importlib.import_module("test_programs")


@pytest.fixture(scope="module")
def folder(modules: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    _, programs = modules
    folder = tmp_path_factory.mktemp("traces")
    programs.write(folder, "mlp", 0)
    programs.write_camera(folder)
    programs.write_lengths(folder)
    return folder


@pytest.mark.parametrize("name", ["variables", "stateless", "its-own-rate", "several-lengths", "stopped-early"])
def test_a_training_is_done_again_to_the_byte(name: str, modules: Any, folder: Path) -> None:
    recorded, _ = modules
    training, state = recorded.TRAININGS[name], folder / f"trace-{name}.state"
    events, first = recorded.recorded(folder, name, training), state.read_bytes()
    assert recorded.recorded(folder, name, training) == events
    assert state.read_bytes() == first
    steps = [event for event in events if event["kind"] == "step"]
    assert len(steps) == (events[0]["steps"] if name != "stopped-early" else 10)
    if name != "several-lengths":  # whose texts are random
        assert steps[-1]["loss"] < steps[0]["loss"]
    assert events[-1] == {"kind": "finished", "stoppedEarly": name == "stopped-early"}


def test_both_exports_tell_the_same(modules: Any, folder: Path) -> None:
    recorded, _ = modules
    one, other = (recorded.recorded(folder, name, recorded.TRAININGS[name]) for name in ("variables", "stateless"))
    assert [event.get("loss") for event in one] == pytest.approx([event.get("loss") for event in other], abs=1e-6)


def test_pictures_of_integers_teach_what_the_same_with_a_sign_do(modules: Any, folder: Path) -> None:
    recorded, _ = modules
    names = "pictures-of-integers", "of-integers-with-a-sign"
    one, other = (recorded.recorded(folder, name, recorded.TRAININGS[name]) for name in names)
    assert one == other
    losses = [event["loss"] for event in one if "loss" in event]
    assert np.mean(losses[-6:]) < np.mean(losses[:6])


def test_there_is_a_dozen(modules: Any) -> None:
    recorded, _ = modules
    assert len(recorded.TRAININGS) >= 12
