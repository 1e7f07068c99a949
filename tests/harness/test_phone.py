"""The way to a healthy phone, by the real adb: jobs, files, several phones, and the commands."""

from __future__ import annotations

import json
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from converter.support.errors import UsageError
from scripts.harness import cli
from scripts.harness.bench import Options, check_program, held, run_all
from scripts.harness.device import Device
from scripts.harness.devices.adb import Adb, AdbTransport
from scripts.harness.devices.hosts import local, only_phone, open_devices
from scripts.harness.devices.phone import FOLDER, PACKAGE, RESULTS, Phone
from scripts.harness.devices.transport import put
from scripts.harness.faults import Failed, OutOfSpace, WrongDevice
from scripts.harness.log import read_results
from scripts.harness.plan import Bench, Plan
from tests.harness.conftest import APP, ROUNDS, STEPS, MakeFake, phone_of, run, write_plan
from tests.harness.fake import FakeDevice


@pytest.mark.quick
def test_bench(adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    error, file = run(phone_of(adb, fake), bench, tmp_path)
    assert error is None, error
    assert file is not None
    facts, started = file.runs[0].facts, file.runs[0].conditions
    assert (facts.kind, facts.name, facts.model, facts.sdk) == ("adb", fake.serial, "Fake_Phone", 34)
    assert facts.abis[0] == "arm64-v8a"
    assert (started.battery_percent, started.celsius, started.thermal) == (87, 28.1, 0)
    assert started.mhz == (1400,) * 4
    assert started.power_saver is False
    assert started.screen_on is True
    assert started.is_charging is False
    assert started.free_bytes is not None
    (check,) = file.checks.values()
    assert check.ok
    assert check.losses == pytest.approx(check.host_losses, rel=1e-5)
    assert [(r.round, len(r.ms), len(r.ms[0])) for r in file.results] == [(i, 1, STEPS) for i in range(ROUNDS)]
    assert {r.runs for r in file.results} == {"cpu"}
    # Nothing of the jobs is left there; the program is, for the next run.
    assert not [p for p in fake.local(RESULTS).iterdir() if p.is_file()]
    assert not list(fake.local(FOLDER).glob("*/tiny-*.json"))
    assert len(list(fake.local(FOLDER).glob("*/tiny.tflite"))) == 1


def test_rounds_are_added_to_a_run_and_nothing_else(adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    run(phone_of(adb, fake), bench, tmp_path / "out")
    more = replace(bench, plan=replace(bench.plan, rounds=ROUNDS + 1))
    error, file = run(phone_of(adb, fake), more, tmp_path / "out", resume=True)
    assert error is None, error
    assert file is not None
    assert [r.round for r in file.results] == list(range(ROUNDS + 1))
    other = replace(bench, plan=replace(bench.plan, learning_rate=0.5))
    with pytest.raises(UsageError, match="changed since"):
        run(phone_of(adb, fake), other, tmp_path / "out", resume=True)


@pytest.mark.quick
def test_phone_and_this_machine_agree(adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    _, there = run(phone_of(adb, fake), bench, tmp_path / "there")
    error, here = run(local(), bench, tmp_path / "here", allowed=("BUSY", "SPACE", "MEMORY"))
    assert error is None, error
    assert there is not None
    assert here is not None
    assert here.results[0].losses[0] == pytest.approx(there.results[0].losses[0], rel=1e-5)
    assert (here.runs[0].plan_hash, here.runs[0].facts.kind) == (there.runs[0].plan_hash, "local")


def test_three_phones_of_which_one_dies(adb: Adb, make_fake: MakeFake, bench: Bench, tmp_path: Path) -> None:
    fakes = [make_fake() for _ in range(3)]
    devices: list[Device] = [phone_of(adb, fake) for fake in fakes]
    fakes[1].inject("shell-drop", "am start", times=-1)
    ended = run_all(devices, bench, Options(tmp_path, "test", retries=2), print)
    assert [len(ended[fake.serial]) for fake in fakes] == [0, 1, 0]
    files = {f.runs[0].facts.name: f for f in map(read_results, tmp_path.glob("*.jsonl"))}
    assert [len(files[fake.serial].results) for fake in fakes] == [ROUNDS, 0, ROUNDS]


def test_a_file_is_sent_once(adb: Adb, fake: FakeDevice, tmp_path: Path) -> None:
    transport, file = AdbTransport(adb, fake.serial), tmp_path / "weights 1.bin"
    file.write_bytes(np.random.default_rng(0).bytes(300_000))
    path = put(transport, file, FOLDER)
    assert fake.local(path).read_bytes() == file.read_bytes()
    fake.services_seen.clear()
    assert put(transport, file, FOLDER) == path
    assert not [s for s in fake.services_seen if s.startswith("sync")]
    # The name proves nothing: other bytes under it are replaced.
    fake.local(path).write_bytes(b"other")
    put(transport, file, FOLDER)
    assert fake.local(path).read_bytes() == file.read_bytes()


def test_a_job_tells_its_error(adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    fake.app = f"{APP} fails"
    error, _ = run(phone_of(adb, fake), bench, tmp_path)
    assert type(error) is Failed
    assert "/nowhere.tflite" in str(error)


def make_apk(path: Path, package: str = PACKAGE, abis: tuple[str, ...] = ("arm64-v8a",)) -> Path:
    """An APK with a binary manifest of one element: package, minSdkVersion 26."""
    strings = ["manifest", "package", package, "minSdkVersion"]
    pool = b"".join(bytes([len(s), len(s)]) + s.encode() + b"\0" for s in strings)
    offsets = np.cumsum([0, *(len(s) + 3 for s in strings)])[:-1]
    start = 28 + 4 * len(strings)
    header = struct.pack("<HHI5I", 1, 28, start + len(pool), len(strings), 0, 0x100, start, 0)
    table = header + struct.pack(f"<{len(strings)}I", *offsets) + pool
    none = 0xFFFFFFFF
    attributes = struct.pack("<3IHBBI", none, 1, 2, 8, 0, 3, 2) + struct.pack("<3IHBBI", none, 3, none, 8, 0, 16, 26)
    element = struct.pack("<HHI4I6H", 0x102, 16, 36 + 40, 1, none, none, 0, 20, 20, 2, 0, 0, 0) + attributes
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "AndroidManifest.xml", struct.pack("<HHI", 3, 8, 8 + len(table) + len(element)) + table + element
        )
        for abi in abis:
            archive.writestr(f"lib/{abi}/libx.so", b"x")
    return path


def test_the_app_is_installed_when_another_build_is_there(adb: Adb, fake: FakeDevice, tmp_path: Path) -> None:
    fake.packages.clear()
    apk = make_apk(tmp_path / "app.apk")
    phone = Phone(AdbTransport(adb, fake.serial), apk)
    phone.prepare()
    assert fake.local(fake.packages[PACKAGE].path).read_bytes() == apk.read_bytes()
    fake.services_seen.clear()
    phone.prepare()
    assert not [s for s in fake.services_seen if "install" in s]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("INSTALL_FAILED_NO_MATCHING_ABIS: Failed to extract native libraries, res=-113", WrongDevice),
        ("INSTALL_FAILED_INSUFFICIENT_STORAGE", OutOfSpace),
        ("INSTALL_FAILED_UPDATE_INCOMPATIBLE: signatures do not match", Failed),
    ],
)
def test_an_app_that_is_refused(
    adb: Adb, fake: FakeDevice, tmp_path: Path, reason: str, expected: type[Exception]
) -> None:
    fake.inject("install-fail", reason)
    with pytest.raises(expected, match=reason.partition(":")[0]):
        Phone(AdbTransport(adb, fake.serial), make_apk(tmp_path / "app.apk")).prepare()


def test_an_app_for_another_processor(adb: Adb, fake: FakeDevice, tmp_path: Path) -> None:
    apk = make_apk(tmp_path / "app.apk", abis=("x86",))
    with pytest.raises(WrongDevice, match="NO_MATCHING_ABIS"):
        Phone(AdbTransport(adb, fake.serial), apk).prepare()


def test_check_of_one_program(adb: Adb, fake: FakeDevice, program: Path) -> None:
    plan = Plan(programs=(str(program),), check_steps=6, steps=6)
    found = check_program(phone_of(adb, fake), program, plan, (), print)
    assert found.ok
    assert len(found.losses) == 6
    assert found.update_error < 1e-5


def test_the_only_phone_is_taken(adb: Adb, make_fake: MakeFake) -> None:
    with pytest.raises(UsageError, match="no phone is connected"):
        only_phone(adb)
    first = make_fake()
    assert only_phone(adb) == first.serial
    second = make_fake()
    with pytest.raises(UsageError, match=f"--on {second.serial}|--on {first.serial}"):
        only_phone(adb)


def test_the_same_device_twice(adb: Adb) -> None:
    with pytest.raises(UsageError, match="twice"):
        open_devices(["local", "local"], None, None)


def test_commands(adb: Adb, fake: FakeDevice, program: Path, tmp_path: Path) -> None:
    """list, check, bench, report and clean as a user types them, with the patience of a user's adb."""
    runner, on = CliRunner(), ["--on", fake.serial, "--adb", adb.binary]
    listed = runner.invoke(cli.app, ["list", "--adb", adb.binary], catch_exceptions=False)
    assert fake.serial in listed.output
    assert "Fake_Phone" in listed.output
    assert "local" in listed.output

    checked = runner.invoke(cli.app, ["check", str(program), *on, "--steps", "3"], catch_exceptions=False)
    assert checked.exit_code == 0
    assert "computes what the host does" in checked.output

    write_plan(tmp_path, program)
    out = tmp_path / "out"
    command = ["bench", str(tmp_path / "tiny-plan.toml"), *on, "--out", str(out)]
    fake.battery.update(level=3)
    refused = runner.invoke(cli.app, command, catch_exceptions=False)
    assert refused.exit_code == 5
    assert "BATTERY" in refused.output
    (fault,) = read_results(next(out.glob("*.jsonl"))).faults
    assert fault.kind == "not-ready"
    done = runner.invoke(cli.app, [*command, "--allow", "BATTERY"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "tiny batch 8 cpu 1 thread" in done.output
    (path,) = out.glob("*.jsonl")
    assert all(json.loads(line)["type"] for line in path.read_text().splitlines())
    with pytest.raises(UsageError, match="--resume"):
        runner.invoke(cli.app, command, catch_exceptions=False)

    reported = runner.invoke(cli.app, ["report", str(path)], catch_exceptions=False)
    assert reported.exit_code == 0
    assert path.with_suffix(".html").read_text().count("<svg") == 3
    with held(phone_of(adb, fake)), pytest.raises(UsageError, match="another scripts/device is at work"):
        runner.invoke(cli.app, ["clean", *on], catch_exceptions=False)
    assert runner.invoke(cli.app, ["clean", *on], catch_exceptions=False).exit_code == 0
    assert not fake.local(FOLDER).exists()
