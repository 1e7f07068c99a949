"""States that older versions saved go on in their own programs, and in those of today (recorded/make.py)."""

from __future__ import annotations

import functools
import gzip
import warnings
from pathlib import Path

import numpy as np
import pytest

import converter
from converter.driver.program import Program
from converter.runtime import StateWarning, TrainingSession
from converter.runtime.state.state_file import unpack
from tests.runtime.recorded.make import OPTIONS, ROWS, UPDATE, model

FOLDER = Path(__file__).parents[1] / "recorded"
STATES = sorted(path.stem for path in FOLDER.glob("*.state"))
#: Of these today's runtime opens the program too: earlier ones say no learning rate and are to be built again.
PROGRAMS = sorted(path.name.removesuffix(".tflite.gz") for path in FOLDER.glob("*.tflite.gz"))
#: What states of these versions do not say: whose they are, and how their tensors lie.
SILENT = {"6b2a3404", "876a89bf", "b12069f6"}


@functools.cache
def today(target: str = "litert-2") -> Program:
    return converter.build(model(), update=UPDATE, batch=ROWS, target=target, **OPTIONS)


def own(name: str, folder: Path) -> Path:
    """The program that a version built."""
    path = folder / "own.tflite"
    path.write_bytes(gzip.decompress((FOLDER / f"{name}.tflite.gz").read_bytes()))
    return path


def expected(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return dict(arrays)


def test_every_format_is_recorded() -> None:
    assert {unpack((FOLDER / f"{name}.state").read_bytes()).version for name in STATES} == {1, 2}
    assert len(STATES) >= 6
    assert SILENT & set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_state_goes_on_in_its_own_program(name: str, tmp_path: Path) -> None:
    """Also where neither says how a square matrix lies: it lies as it lay."""
    said = expected(name)
    with TrainingSession(own(name, tmp_path)) as session, warnings.catch_warnings():
        warnings.simplefilter("error", StateWarning)
        restored = session.restore(FOLDER / f"{name}.state")
        assert (restored.left, restored.differences) == ((), ())
        stored = {key.removeprefix("stored:"): array for key, array in said.items() if key.startswith("stored:")}
        assert session.state().keys() == stored.keys()
        for key, array in session.state().items():
            np.testing.assert_array_equal(array, stored[key])
        np.testing.assert_allclose(session.infer(said["x"]), said["infer"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("target", ["litert-2", "gpu"])
@pytest.mark.parametrize("name", STATES)
def test_a_state_goes_on_in_a_program_of_today(name: str, target: str) -> None:
    said = expected(name)
    with TrainingSession(today(target).data) as session, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        restored = session.restore(FOLDER / f"{name}.state")
        assert (restored.left, restored.differences) == ((), ())
        assert [issubclass(w.category, StateWarning) for w in heard] == [True] * (name in SILENT)
        for key, array in session.parameters().items():
            np.testing.assert_array_equal(array, said[key])
        np.testing.assert_allclose(session.infer(said["x"]), said["infer"], rtol=1e-5, atol=1e-5)
