"""A run measures one thing: whatever changes under it is told, and never mixed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from converter.support.errors import NumericError, UsageError
from scripts.harness.devices.adb import Adb
from scripts.harness.devices.hosts import local
from scripts.harness.devices.phone import PACKAGE
from scripts.harness.faults import Changed, Failed
from scripts.harness.outcome import Outcome
from scripts.harness.plan import Bench
from scripts.harness.reference import Agreement, agreement, reference
from tests.harness.conftest import ROUNDS, build_program, phone_of, run, write_plan
from tests.harness.fake import FakeDevice
from tests.harness.test_computer import ALLOWED


def once(do: Callable[[], object]) -> Callable[[str], None]:
    """Does it after the first timed job."""
    did: list[object] = []

    def say(text: str) -> None:
        if re.match(r"1/\d", text) and not did:
            did.append(do())

    return say


@pytest.fixture
def app(fake: FakeDevice) -> Path:
    """The installed app's file on the phone."""
    return fake.local(fake.packages[PACKAGE].path)


@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.parametrize("what", ["phone", "app"])
def test_another_phone_or_app_in_mid_run_ends_it(
    what: str, breaks: bool, adb: Adb, fake: FakeDevice, app: Path, bench: Bench, tmp_path: Path
) -> None:
    def change() -> None:
        if what == "phone":
            fake.props["ro.build.fingerprint"] = "another/phone"
        else:
            app.write_bytes(b"another build")
        if breaks:
            fake.inject("shell-drop", "am start")

    error, file = run(phone_of(adb, fake), bench, tmp_path / "out", retries=3, say=once(change))
    assert type(error) is Changed
    assert error.exit_code == 5
    assert "fingerprint was" in str(error) if what == "phone" else "app was" in str(error)
    assert file is not None
    assert len(file.results) == 1
    assert file.faults[-1].kind == "changed"
    assert file.runs[0].facts.app is not None


def test_after_a_fault_it_has_to_be_as_cool_as_at_first(
    adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path
) -> None:
    def warm() -> None:
        fake.battery.update(temperature=360)
        fake.inject("shell-drop", "dumpsys battery")

    error, file = run(phone_of(adb, fake), bench, tmp_path / "out", retries=3, say=once(warm))
    assert "more than at the start" in str(error)
    assert file is not None
    assert len(file.results) == 1


def test_a_runtime_that_was_updated_does_not_go_on_with_a_file(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = local()
    error, file = run(device, bench, tmp_path / "out", allowed=ALLOWED)
    assert error is None
    assert file is not None
    renamed = file.path.read_text().replace(file.results[0].runtime, "LiteRT 0.0")
    file.path.write_text(renamed)
    more = replace(bench, plan=replace(bench.plan, rounds=ROUNDS + 1))
    error, file = run(device, more, tmp_path / "out", allowed=ALLOWED, resume=True)
    assert type(error) is Changed
    assert "the runtime was LiteRT 0.0 and is" in str(error)
    assert file is not None
    assert len(file.results) == ROUNDS


def spoil_program(folder: Path) -> None:
    build_program(folder / "mine.tflite", width=24)


def remove_program(folder: Path) -> None:
    (folder / "mine.tflite").unlink()


def spoil_data(folder: Path) -> None:
    np.savez(folder / "data.npz", x=np.ones((64, 12), "float32"), y=np.zeros(64, "int32"))


@pytest.mark.parametrize("spoil", [spoil_program, remove_program, spoil_data])
def test_files_that_change_in_mid_run_end_it(spoil: Callable[[Path], None], program: Path, tmp_path: Path) -> None:
    shutil.copy(program, tmp_path / "mine.tflite")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((64, 12), "float32"), y=rng.integers(0, 3, 64))
    bench = write_plan(tmp_path, tmp_path / "mine.tflite", 'data = "data.npz"')
    error, file = run(local(), bench, tmp_path / "out", allowed=ALLOWED, say=once(lambda: spoil(tmp_path)))
    assert type(error) is UsageError
    assert "has changed since the run began" in str(error)
    assert file is not None
    assert len(file.results) == 1


def test_a_full_disk_here_is_no_mistake_of_ours(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scripts.harness.runner.tempfile.TemporaryDirectory", full)
    said: list[str] = []
    error, _ = run(local(), bench, tmp_path / "out", allowed=ALLOWED, say=said.append)
    assert type(error) is UsageError
    assert "on this computer" in str(error)
    assert "No space left" in str(error)
    assert not any("Traceback" in text for text in said)


def test_a_training_that_diverges_on_the_host_is_the_plans(program: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=1e36 * rng.standard_normal((64, 12), "float32"), y=rng.integers(0, 3, 64))
    bench = write_plan(tmp_path, program, 'data = "data.npz"')
    error, file = run(local(), bench, tmp_path / "out", allowed=ALLOWED)
    assert isinstance(error, NumericError)
    assert error.exit_code == 4
    assert file is not None
    assert file.faults[-1].kind == "diverged"


@pytest.mark.parametrize("wrong", ["lacks one", "another shape"])
def test_a_state_of_other_tensors_is_no_result(
    wrong: str, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scripts.harness import outcome

    real = outcome.load_state

    def lying(path: Path) -> object:
        state = real(path)
        name = next(iter(state.tensors))
        found = {**state.tensors, name: np.zeros(3, "float32")}
        if wrong == "lacks one":
            del found[name]
        return replace(state, tensors=found)

    monkeypatch.setattr(outcome, "load_state", lying)
    error, _ = run(local(), bench, tmp_path / "out", allowed=ALLOWED)
    assert type(error) is Failed
    assert "tensors of the state" in str(error)


def test_nan_in_any_tensor_is_no_agreement(bench: Bench, tmp_path: Path) -> None:
    subject, plan = bench.subjects[0], bench.plan
    host = reference(subject.file, subject.batches(plan, bench.folder), 2, 0.01)

    def found(state: dict[str, np.ndarray]) -> Agreement:
        return agreement(cast(Outcome, SimpleNamespace(losses=(host.losses,), state=state)), host, plan.tolerance)

    for name, trained in host.trained.items():
        bad = found({**host.trained, name: np.full_like(trained, np.nan)})
        assert not bad.ok
        assert bad.worst == name
    assert found(host.trained).ok
