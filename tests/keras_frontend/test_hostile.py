"""Hostile `.keras` files: nothing of them is executed, little memory and time is spent, each is refused in words."""

import json
import subprocess
import sys
from typing import Any

import keras
import pytest

from converter.frontends.keras.archive import ACTIVATIONS
from tests.keras_frontend.hostile import LAYERS, WEIGHTS, write_all

#: In a process that has Keras and a small model loaded; seconds of its own, whatever else the machine does.
MOST_MIB, MOST_SECONDS = 256, 20
NAMES = [*LAYERS, *WEIGHTS]
#: What the tests say more of.
NAMED = ("dense of -1", "input", "another shape")


def _cases() -> list[Any]:
    """All files; the quick run opens every eighth."""
    return [pytest.param(name, marks=[pytest.mark.slow] if number % 8 else []) for number, name in enumerate(NAMES)]


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of the files that this run looks at."""
    folder = tmp_path_factory.mktemp("hostile")
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="dense")]).save(folder / "good.keras")
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    written = write_all(folder / "good.keras", folder)
    paths = {"good": folder / "good.keras", **{name: written[name] for name in NAMES if name in {*asked, *NAMED}}}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.keras_frontend.hostile"],
        input=json.dumps({name: str(path) for name, path in paths.items()}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


@pytest.mark.parametrize("name", _cases())
def test_a_hostile_file_is_refused_at_little_cost(name: str, opened: dict[str, dict[str, Any]]) -> None:
    found = opened[name]
    assert found["did"] == []
    assert found["ended"].startswith(("UsageError: ", "UnsupportedError: ")), found["ended"]
    assert len(found["ended"].partition(": ")[2]) > 20
    assert found["mib"] < MOST_MIB
    assert found["seconds"] < MOST_SECONDS


def test_what_is_wrong_is_said(opened: dict[str, dict[str, Any]]) -> None:
    assert "units" in opened["dense of -1"]["ended"]
    assert "[1000000000000] for one example" in opened["input"]["ended"]


def test_weights_of_another_shape_are_named(opened: dict[str, dict[str, Any]]) -> None:
    assert "(3, 4)" in opened["another shape"]["ended"]


def test_every_activation_of_keras_is_let_through() -> None:
    makers = {"get", "serialize", "deserialize"}
    theirs = {name for name in dir(keras.activations) if callable(getattr(keras.activations, name))} - makers
    assert theirs == ACTIVATIONS
