"""The app's own job runner and the official Android library: behind the fake phone, and as a host of this machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

import converter
from converter.support.errors import UsageError
from examples import EXAMPLES
from scripts.harness.devices import android_jvm
from scripts.harness.devices.adb import Adb
from scripts.harness.devices.hosts import open_device
from scripts.harness.plan import Bench
from tests.harness.conftest import ROUNDS, phone_of, run, write_plan
from tests.harness.fake import FakeDevice

APK = android_jvm.ANDROID / "app/target/pocketune-debug.apk"


def app_command() -> list[str]:
    try:
        return android_jvm.command()
    except UsageError as error:
        pytest.skip(str(error))


def digits(folder: Path) -> Path:
    """The program that the app carries."""
    path = android_jvm.ANDROID / "app/target/assets/digits.tflite"
    if not path.exists():
        pytest.skip(f"{path} is missing: run scripts/build_app_assets")
    return path


def mobilenetv2(folder: Path) -> Path:
    example = EXAMPLES["mobilenetv2"]
    program = converter.build(
        example.build(),
        loss=example.loss,
        optimizer="sgd",
        update=example.sparse,
        batch=4,
        target="tflite-2.16",
        check=False,
    )
    program.write(folder / "mobilenetv2.tflite")
    return folder / "mobilenetv2.tflite"


@pytest.mark.quick
@pytest.mark.parametrize("make", [digits, pytest.param(mobilenetv2, marks=pytest.mark.slow)])
def test_a_phone_with_the_real_app(make: Callable[[Path], Path], adb: Adb, fake: FakeDevice, tmp_path: Path) -> None:
    """Numbers by the app's code; and the phone, the JVM alone and this machine's runtime agree in every loss."""
    fake.app = f"{shlex.join(app_command())} {{job}} {{files}}/harness {{root}}"
    bench = write_plan(tmp_path, make(tmp_path))
    error, there = run(phone_of(adb, fake), bench, tmp_path / "there")
    assert error is None, error
    assert there is not None
    assert there.results[0].runtime.startswith("TensorFlow Lite 2.16")
    allowed = ("BUSY", "SPACE", "MEMORY")
    for host in ("local-android", "local"):
        error, here = run(open_device(host), bench, tmp_path / host, allowed=allowed)
        assert error is None, error
        assert here is not None
        assert here.results[0].losses[0] == pytest.approx(there.results[0].losses[0], rel=1e-4)
        assert len(here.results) == len(there.results)


@pytest.mark.slow
def test_the_library_of_phones_under_emulation(bench: Bench, tmp_path: Path) -> None:
    try:
        android_jvm.command(counts="unused")
    except UsageError as missing:
        pytest.skip(str(missing))
    allowed = ("BUSY", "SPACE", "MEMORY")
    error, _ = run(open_device("local-android:arm64"), bench, tmp_path / "refused", allowed=allowed)
    assert "EMULATOR" in str(error)
    error, file = run(open_device("local-android:arm64"), bench, tmp_path / "out", allowed=(*allowed, "EMULATOR"))
    assert error is None, error
    assert file is not None
    (check,) = file.checks.values()
    assert check.ok
    assert check.losses == pytest.approx(check.host_losses, rel=1e-5)
    counts = [n for result in file.results for n in result.instructions]
    assert len(counts) == ROUNDS
    # An instruction does eight floating-point operations at most; and the same ones run each time.
    costs = bench.subjects[0].manifest.costs
    assert min(counts) > sum(costs[name] for name in ("flops_forward", "flops_backward", "flops_update")) / 8
    assert max(counts) < 1.002 * min(counts)


def test_the_app_tells_what_it_does_not_run(adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    """A GPU that is not there: the app falls back, and the harness does not take that for a number."""
    fake.app = f"{shlex.join(app_command())} {{job}} {{files}}/harness {{root}}"
    plan = tmp_path / "tiny-plan.toml"
    plan.write_text(re.sub(r"^rounds", 'accelerators = ["gpu"]\nrounds', plan.read_text(), flags=re.MULTILINE))
    from scripts.harness.faults import Fallback
    from scripts.harness.plan import read_plan

    error, _ = run(phone_of(adb, fake), read_plan(plan), tmp_path / "out")
    assert type(error) is Fallback
    assert "gpu was asked for and cpu ran" in str(error)


def test_the_real_apk_is_installed(adb: Adb, fake: FakeDevice) -> None:
    if not APK.exists():
        pytest.skip(f"{APK} is missing: run scripts/build_apk")
    from scripts.harness.devices.adb import AdbTransport
    from scripts.harness.devices.phone import PACKAGE, Phone

    fake.packages.clear()
    Phone(AdbTransport(adb, fake.serial), APK).prepare()
    assert fake.local(fake.packages[PACKAGE].path).read_bytes() == APK.read_bytes()


def test_an_app_that_was_not_built_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pom.xml").write_text((android_jvm.ANDROID / "pom.xml").read_text())
    monkeypatch.setattr(android_jvm, "ANDROID", tmp_path)
    with pytest.raises(UsageError, match="scripts/build_apk"):
        android_jvm.command()
