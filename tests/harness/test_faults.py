"""Every way in which a phone fails: the right error, a sentence that helps, no false result, and --resume finishes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from converter.support.errors import UsageError
from scripts.harness.device import Job
from scripts.harness.devices.adb import Adb, AdbTransport
from scripts.harness.devices.phone import PACKAGE, Phone
from scripts.harness.faults import (
    Corrupted,
    Failed,
    Fallback,
    Fault,
    Gone,
    Killed,
    NotInstalled,
    NotReady,
    OutOfSpace,
    Overheated,
    Silent,
    Stalled,
    Unauthorized,
    WrongDevice,
    WrongNumbers,
)
from scripts.harness.log import Began
from scripts.harness.plan import Bench
from tests.harness.conftest import APP, BUILD, ROUNDS, STEPS, impatient, phone_of, run, write_plan
from tests.harness.fake import FakeDevice

Do = Callable[[FakeDevice], object]


def hot(fake: FakeDevice, *ramp: tuple[float, int]) -> None:
    fake.thermal_ramp, fake.ramp_start = list(ramp), time.time()


def trust(fake: FakeDevice, auth: str) -> None:
    """The phone begins to trust this computer, or no longer does."""
    fake.auth = auth
    fake.drop_connections()


def await_news(adb: Adb, fake: FakeDevice) -> None:
    """Until adb's server has seen that an untrusting phone hung up: it says "unauthorized" for a moment longer."""
    until = time.monotonic() + 100
    while (fake.serial, "unauthorized") in [(d.serial, d.state) for d in adb.devices()]:
        assert time.monotonic() < until
        time.sleep(0.01)


@dataclass(frozen=True)
class Case:
    """A fault.

    Attributes:
        first: done to the phone before the run.
        later: done to the phone after the first result.
        heal: makes it well again, as a user would.
        retries: of the faulty run.
        allowed: conditions.
        words: must stand in the message.
    """

    expected: type[Fault]
    first: Do = lambda fake: None
    later: Do = lambda fake: None
    heal: Do = lambda fake: None
    words: str = ""
    retries: int = 0
    allowed: tuple[str, ...] = ()


CASES = {
    "drop in mid-push": Case(Gone, lambda f: f.inject("push-drop", 100), words="cable"),
    "hang in mid-push": Case(Silent, lambda f: f.inject("push-hang", 100), words="no answer within"),
    "no space in mid-push": Case(OutOfSpace, lambda f: f.inject("push-full", 100), words="Free some storage"),
    "no space from the start": Case(
        OutOfSpace,
        lambda f: setattr(f, "capacity", f.used_bytes() + 1000),
        heal=lambda f: setattr(f, "capacity", 8 << 30),
        words="are free",
        allowed=("SPACE",),
    ),
    "flipped bit in every push": Case(
        Corrupted,
        lambda f: f.inject("push-corrupt", times=-1),
        heal=lambda f: f.inject("push-corrupt", None, times=0),
        words="arrived altered 3 times",
    ),
    "unauthorized": Case(
        Unauthorized,
        lambda f: trust(f, "never"),
        heal=lambda f: trust(f, "none"),
        words="tap Allow",
        retries=1,
    ),
    "shell hangs": Case(Silent, later=lambda f: f.inject("shell-hang", "am start"), words="no answer within"),
    "drop in mid-command": Case(Gone, later=lambda f: f.inject("shell-drop", "am start"), words="cable"),
    "drop in mid-pull": Case(Gone, later=lambda f: f.inject("pull-drop", 1), words="cable"),
    "killed for memory": Case(Killed, later=lambda f: f.inject("app-kill", 0.05), words="lowmemorykiller"),
    "crash": Case(Killed, later=lambda f: f.inject("app-crash", 0.05), words="OutOfMemoryError"),
    "stalls": Case(
        Stalled,
        lambda f: setattr(f, "app", f"{APP} stalls"),
        heal=lambda f: setattr(f, "app", APP),
        words="stall_seconds",
    ),
    "the app says no": Case(
        Failed, lambda f: setattr(f, "app", f"{APP} fails"), heal=lambda f: setattr(f, "app", APP), words="nowhere"
    ),
    "half a log": Case(
        Failed, lambda f: setattr(f, "app", f"{APP} writes-half"), heal=lambda f: setattr(f, "app", APP), words="lines"
    ),
    "fallback": Case(
        Fallback,
        lambda f: setattr(f, "app", f"{APP} falls-back"),
        heal=lambda f: setattr(f, "app", APP),
        words="delegate",
    ),
    "app removed in mid-run": Case(
        NotInstalled,
        later=lambda f: f.uninstall(PACKAGE),
        heal=lambda f: f.install(PACKAGE, BUILD),
        words="not installed any more",
    ),
    "app removed in mid-job": Case(
        NotInstalled,
        later=lambda f: f.inject("app-remove", 0.05),
        heal=lambda f: f.install(PACKAGE, BUILD),
        words="not installed any more",
    ),
    "trust withdrawn in mid-run": Case(
        Unauthorized, later=lambda f: trust(f, "never"), heal=lambda f: trust(f, "none"), words="tap Allow", retries=1
    ),
    "battery runs low in mid-run": Case(
        NotReady, later=lambda f: f.battery.update(level=3), heal=lambda f: f.battery.update(level=80), words="at 3 %"
    ),
    "app missing": Case(
        NotInstalled,
        lambda f: f.uninstall(PACKAGE),
        heal=lambda f: f.install(PACKAGE, BUILD),
        words="--apk",
    ),
    "hot from the start": Case(NotReady, lambda f: hot(f, (0, 2)), heal=lambda f: hot(f, (0, 0)), words="THERMAL"),
    "grows hot and stays so": Case(
        Overheated, later=lambda f: hot(f, (0, 3)), heal=lambda f: hot(f, (0, 0)), words="thermal status severe"
    ),
    "battery warms up": Case(
        Overheated,
        later=lambda f: f.battery.update(temperature=320),
        heal=lambda f: f.battery.update(temperature=281),
        words="3.9 more than at the start",
    ),
    "battery low": Case(
        NotReady, lambda f: f.battery.update(level=12), heal=lambda f: f.battery.update(level=80), words="BATTERY"
    ),
    "wrong ABI": Case(
        WrongDevice,
        lambda f: f.props.update({"ro.product.cpu.abilist": "riscv64"}),
        heal=lambda f: f.props.update({"ro.product.cpu.abilist": "arm64-v8a"}),
        words="riscv64",
    ),
    "old Android": Case(
        WrongDevice,
        lambda f: f.props.update({"ro.build.version.sdk": "24"}),
        heal=lambda f: f.props.update({"ro.build.version.sdk": "30"}),
        words="API 24",
    ),
    "offline": Case(Gone, later=lambda f: f.offline(1.0), heal=lambda f: time.sleep(1.2), words="cable"),
    "reboots and stays away": Case(
        Gone,
        first=lambda f: setattr(f, "reboot_seconds", 1.5),
        later=lambda f: f.reboot_soon(),
        heal=lambda f: time.sleep(2.5),
        words="cable",
    ),
}

#: Left to the slow run: each is found, and got over, as another one is.
LIKE_ANOTHER = {
    "drop in mid-command", "drop in mid-pull", "shell hangs", "no space from the start", "crash", "half a log",
    "stalls", "app removed in mid-run", "battery low", "battery warms up", "old Android", "fallback", "offline",
    "trust withdrawn in mid-run", "app removed in mid-job", "grows hot and stays so", "drop in mid-push",
    "unauthorized", "reboots and stays away",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LIKE_ANOTHER else name for name in CASES]
)
def test_a_fault_is_told_and_resume_finishes(
    name: str, adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path
) -> None:
    case, out = CASES[name], tmp_path / "out"
    case.first(fake)
    did: list[object] = []

    def say(text: str) -> None:
        if re.match(r"1/\d", text) and not did:
            did.append(case.later(fake))

    plan = impatient(bench) if case.expected is Stalled else bench
    error, file = run(phone_of(adb, fake), plan, out, retries=case.retries, allowed=case.allowed, say=say)
    assert type(error) is case.expected, error
    assert error.exit_code == 5
    assert case.words in str(error)
    assert error.advice in str(error)
    assert fake.serial in str(error)
    results = file.results if file else []
    assert len(results) == len(did)
    if file is not None:
        assert file.faults[-1].kind == error.kind

    case.heal(fake)
    await_news(adb, fake)
    error, file = run(phone_of(adb, fake), bench, out, resume=True, retries=3)
    assert error is None
    assert file is not None
    assert sorted(r.round for r in file.results) == list(range(ROUNDS))
    assert all(len(r.ms[0]) == STEPS for r in file.results)
    # What began and did not end well is no result.
    began = {r.id for r in file.records if isinstance(r, Began)}
    assert {r.id for r in file.results} <= began


PASSING = {
    "a flipped bit, once": lambda f: f.inject("push-corrupt"),
    "a drop in mid-push": lambda f: f.inject("push-drop", 100),
    "offline and back": lambda f: f.offline(0.7),
    "silent after connecting": lambda f: (f.inject("connect-silent"), f.drop_connections()),
    "reboots": lambda f: f.reboot_soon(),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_recovered_from(name: str, adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    did: list[object] = []

    def say(text: str) -> None:
        if re.match(r"1/\d", text) and not did:
            did.append(PASSING[name](fake))

    error, file = run(phone_of(adb, fake), bench, tmp_path / "out", retries=3, say=say)
    assert error is None, error
    assert file is not None
    assert [r.round for r in file.results] == list(range(ROUNDS))


def test_a_job_in_which_it_grew_hot_is_repeated(adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    """The status rises during the first timed job and falls after it: that job is discarded, another one counts."""

    class WarmingPhone(Phone):
        started = 0

        def start(self, job: Job) -> None:
            super().start(job)
            self.started += 1
            if self.started == 2:
                hot(fake, (0, 1))

    def say(text: str) -> None:
        if "once more" in text:
            hot(fake, (0, 0))

    error, file = run(WarmingPhone(AdbTransport(adb, fake.serial)), bench, tmp_path / "out", say=say)
    assert error is None, error
    assert file is not None
    assert [r.discarded for r in file.discarded] == ["the thermal status rose from none to light"]
    assert [(r.round, r.attempt) for r in file.results] == [(0, 1), (1, 0)]


def test_heat_that_only_the_app_saw_discards_a_job(adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    """The status rose and fell between two questions of the harness; the job's own log tells."""
    fake.app = f"{APP} grows-hot"
    error, file = run(phone_of(adb, fake), bench, tmp_path / "out")
    assert type(error) is Overheated
    assert file is not None
    assert not file.results
    assert {r.discarded for r in file.discarded} == {"the thermal status rose from none to severe"}


def test_a_variant_that_fails_is_left_out(adb: Adb, fake: FakeDevice, program: Path, tmp_path: Path) -> None:
    """The GPU falls back: what runs on the CPU is measured all the same, and --resume tries the GPU again."""
    fake.app = f"{APP} has-no-gpu"
    bench = write_plan(tmp_path, program, 'accelerators = ["gpu", "cpu"]')
    error, file = run(phone_of(adb, fake), bench, tmp_path / "out")
    assert type(error) is Fallback
    assert file is not None
    assert [r.variant.accelerator for r in file.results] == ["cpu"] * ROUNDS
    assert [f.variant.accelerator for f in file.faults if f.variant] == ["gpu"]
    fake.app = APP
    error, file = run(phone_of(adb, fake), bench, tmp_path / "out", resume=True)
    assert error is None, error
    assert file is not None
    assert sorted(r.variant.accelerator for r in file.results) == ["cpu"] * ROUNDS + ["gpu"] * ROUNDS


def test_a_gpu_that_takes_a_part_is_a_fallback(adb: Adb, fake: FakeDevice, program: Path, tmp_path: Path) -> None:
    fake.app = f"{APP} has-half-a-gpu"
    bench = write_plan(tmp_path, program, 'accelerators = ["gpu"]')
    error, file = run(phone_of(adb, fake), bench, tmp_path / "out")
    assert type(error) is Fallback
    assert "the GPU took 60 of 86 operators" in str(error)
    assert file is not None
    assert not file.results


def test_another_phone_does_not_go_on_with_a_file(adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    error, _ = run(phone_of(adb, fake), bench, tmp_path / "out")
    assert error is None
    fake.props["ro.build.fingerprint"] = "updated"
    more = replace(bench, plan=replace(bench.plan, rounds=ROUNDS + 1))
    error, file = run(phone_of(adb, fake), more, tmp_path / "out", resume=True)
    assert type(error) is UsageError
    assert "has changed since (fingerprint was" in str(error)
    assert file is not None
    assert len(file.runs) == 1


def test_what_came_up_later_and_was_allowed_is_told(adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    def say(text: str) -> None:
        if text.startswith("1/"):
            fake.battery.update(level=3)
            fake.app = f"{APP} grows-hot"

    error, file = run(phone_of(adb, fake), bench, tmp_path / "out", allowed=("BATTERY", "THERMAL"), say=say)
    assert error is None, error
    assert file is not None
    assert file.runs[0].allowed == ()
    assert [set(r.allowed) for r in file.results] == [set(), {"BATTERY", "THERMAL"}]
    assert file.allowed == ["BATTERY", "THERMAL"]


def test_conditions_can_be_allowed(adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    fake.battery.update(level=12)
    hot(fake, (0, 1))
    error, file = run(phone_of(adb, fake), bench, tmp_path / "out", allowed=("BATTERY", "THERMAL"))
    assert error is None
    assert file is not None
    assert set(file.runs[0].allowed) == {"BATTERY", "THERMAL"}


def test_wrong_numbers_are_never_timed(adb: Adb, fake: FakeDevice, bench: Bench, tmp_path: Path) -> None:
    fake.app = f"{APP} computes-otherwise"
    error, file = run(phone_of(adb, fake), bench, tmp_path / "out")
    assert type(error) is WrongNumbers
    assert error.exit_code == 4
    assert file is not None
    assert not file.results
    assert [c.ok for c in file.checks.values()] == [False]
