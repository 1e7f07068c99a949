"""Machines without adb: this one, and one behind ssh."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from converter.runtime.engines.gpu import Gpu
from converter.runtime.engines.hexagon import Hexagon
from converter.runtime.engines.web import Web
from converter.support.errors import UsageError
from scripts.harness.bench import Options, held, run_all
from scripts.harness.device import Job
from scripts.harness.devices import hosts
from scripts.harness.devices.adb import Adb, adb_binary
from scripts.harness.devices.computer import Computer
from scripts.harness.devices.hosts import ROOT, local, open_device, ssh
from scripts.harness.devices.transport import LocalTransport, SshTransport, fetch_whole, put
from scripts.harness.devices.transport import run as run_program
from scripts.harness.faults import Crashed, Fault, Gone, Killed, NoCheckout, NoLogin, Silent
from scripts.harness.log import read_results
from scripts.harness.plan import Bench
from tests.harness.conftest import ROUNDS, build_program, impatient, run, write_plan

ALLOWED = ("BUSY", "SPACE", "MEMORY")


def sleeping(tmp_path: Path, script: str) -> Computer:
    """A host whose worker is a shell script."""
    return Computer(LocalTransport("local"), "local", str(tmp_path / "host"), lambda job, results: script)


def test_facts_and_conditions_of_this_machine(tmp_path: Path) -> None:
    computer = sleeping(tmp_path, "true")
    facts, now = computer.facts(), computer.conditions()
    assert facts.cores == os.cpu_count()
    assert facts.abis == (os.uname().machine,)
    assert facts.memory_bytes is not None
    assert "kernel" in str(facts.fingerprint)
    assert now.load is not None
    assert now.free_bytes is not None
    assert now.available_bytes is not None
    assert now.available_bytes < facts.memory_bytes


def test_a_worker_that_dies_is_killed_and_not_done(bench: Bench, tmp_path: Path) -> None:
    error, _ = run(sleeping(tmp_path, "echo out of luck; kill -9 $$"), bench, tmp_path / "out", allowed=ALLOWED)
    assert type(error) is Killed
    assert "out of luck" in str(error)


@pytest.mark.parametrize(
    "script",
    [
        "echo '# A fatal error has been detected:'; echo '#  SIGSEGV (0xb) at pc=0x7f'; seq 500; kill -9 $$",
        f"exec {sys.executable} -c 'import faulthandler, os; faulthandler.enable(); os.kill(os.getpid(), 11)'",
    ],
)
def test_a_library_that_crashes_is_not_short_of_memory(script: str, bench: Bench, tmp_path: Path) -> None:
    error, _ = run(sleeping(tmp_path, script), bench, tmp_path / "out", allowed=ALLOWED)
    assert type(error) is Crashed
    assert "the library crashed (S" in str(error)
    assert "other apps" not in str(error)


def test_a_worker_that_hangs_is_ended_with_all_it_started(bench: Bench, tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/pid; sleep 60"
    error, _ = run(sleeping(tmp_path, script), impatient(bench), tmp_path / "out", allowed=ALLOWED)
    assert type(error).__name__ == "Stalled"
    pid = int((tmp_path / "pid").read_text())
    for _ in range(1000):
        status = Path(f"/proc/{pid}/status")
        if not status.exists() or re.search(r"State:\s+[ZX]", status.read_text()):
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} lives on")


def test_a_worker_that_outlived_its_harness_is_ended(tmp_path: Path, program: Path) -> None:
    job = Job("j", "p", "b", 1, 0.1)
    killed = sleeping(tmp_path, "sleep 60")
    killed.prepare()
    killed.start(job)
    assert killed.poll(job).state == "running"
    another = sleeping(tmp_path, "sleep 60")
    another.start(job)
    for _ in range(1000):
        if killed.poll(job).state == "gone":
            break
        time.sleep(0.05)
    else:
        pytest.fail("two workers run side by side")
    assert another.poll(job).state == "running"
    another.stop()


@pytest.mark.parametrize("content", ["0 0", "-1 5", "x y", "1", "", "1 1"])
def test_a_corrupt_note_of_a_worker_harms_nobody(tmp_path: Path, content: str) -> None:
    computer = sleeping(tmp_path, "true")
    computer.prepare()
    (tmp_path / "host/worker").write_text(content)
    computer.stop()
    assert computer.transport.shell("echo alive").out.strip() == "alive"
    assert not (tmp_path / "host/worker").exists()


def test_a_finished_run_asks_nothing_of_the_device(bench: Bench, tmp_path: Path) -> None:
    error, file = run(hosts.local(), bench, tmp_path / "out", allowed=ALLOWED)
    assert error is None, error

    class Away(Computer):
        def prepare(self) -> None:
            raise Gone(self.name, "nobody is there")

    away = Away(LocalTransport("local"), "local", str(tmp_path / "host"), lambda job, results: "true")
    error, again = run(away, bench, tmp_path / "out", resume=True)
    assert error is None, error
    assert again == file


def test_split_programs_are_measured_like_any(tmp_path: Path) -> None:
    bench = write_plan(tmp_path, build_program(tmp_path / "split.tflite", micro_batch=4, state="split"))
    error, file = run(hosts.local(), bench, tmp_path / "out", allowed=ALLOWED)
    assert error is None, error
    assert file is not None
    assert [check.ok for check in file.checks.values()] == [True]
    assert [(r.runs, r.detail, r.variant.micro_batch) for r in file.results] == [("cpu", "XNNPACK", 4)] * ROUNDS


@pytest.mark.parametrize(
    ("host", "accelerator"),
    [
        pytest.param(name, accelerator, marks=pytest.mark.skipif(bool(engine.missing()), reason=str(engine.missing())))
        for name, accelerator, engine in (
            ("gpu", "gpu", Gpu()),
            ("hexagon-emulated", "npu", Hexagon()),
            ("web", "cpu", Web()),
            ("web", "gpu", Web()),
        )
    ],
)
def test_accelerators_of_this_machine_are_hosts_of_their_own(host: str, accelerator: str, tmp_path: Path) -> None:
    split = build_program(tmp_path / "split.tflite", state="split")
    bench = write_plan(tmp_path, split, f'accelerators = ["{accelerator}"]\ntolerance = {{loss = 0.01, update = 0.1}}')
    error, file = run(open_device(host), bench, tmp_path / "out", allowed=(*ALLOWED, "EMULATOR"))
    assert error is None, error
    assert file is not None
    facts, (check,) = file.runs[0].facts, file.checks.values()
    assert facts.kind == host
    assert check.ok
    assert [r.runs for r in file.results] == [accelerator] * ROUNDS
    assert facts.is_emulator == ("EMULATOR" in file.allowed)


def test_a_machine_without_a_gpu_is_told(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "missing", lambda self: "there is no Vulkan driver")
    error, _ = run(open_device("gpu"), bench, tmp_path / "out")
    assert str(error) == "--on gpu: there is no Vulkan driver"


def test_results_that_cannot_be_written_are_told(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*local\.jsonl: File exists"):
        run_all([hosts.local()], bench, Options(tmp_path / "file", "s"), print)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/local.jsonl").symlink_to("/dev/full")
    (problem,) = run_all([hosts.local()], bench, Options(tmp_path / "out", "s", allowed=ALLOWED), print)["local"]
    assert "No space left" in str(problem)
    assert problem.exit_code == 2


def test_a_device_is_used_by_one_run(bench: Bench, tmp_path: Path) -> None:
    device = sleeping(tmp_path, "true")
    with held(device), pytest.raises(UsageError, match="local: another scripts/device is at work there"):
        run(device, bench, tmp_path / "out")


def test_a_mistake_of_ours_on_one_device_does_not_end_the_others(bench: Bench, tmp_path: Path) -> None:
    class Broken(Computer):
        def prepare(self) -> None:
            raise ZeroDivisionError("planted")

    broken = Broken(LocalTransport("broken"), "local", str(tmp_path / "broken"), lambda job, results: "true")
    ended = run_all([broken, hosts.local()], bench, Options(tmp_path / "out", "s", allowed=ALLOWED), print)
    (problem,) = ended["broken"]
    assert "ZeroDivisionError" in str(problem)
    assert ended["local"] == []
    assert len(read_results(tmp_path / "out" / "local.jsonl").results) == ROUNDS


def test_slips_in_names_are_told(adb: Adb) -> None:
    with pytest.raises(UsageError, match=r"--on local-andriod: no such device; connected are: .* Did you mean"):
        open_device("local-andriod")
    with pytest.raises(UsageError, match=r"there is no file .*nope\.apk"):
        open_device("SERIAL", apk=Path("nope.apk"))


@pytest.mark.slow  # waits for a signal
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job_and_keeps_what_was_measured(program: Path, tmp_path: Path, number: int) -> None:
    write_plan(tmp_path, program)
    plan = tmp_path / "tiny-plan.toml"
    plan.write_text(re.sub(r"^(steps|rounds) = .*$", r"\1 = 1000", plan.read_text(), flags=re.MULTILINE))
    allowed = [word for name in ALLOWED for word in ("--allow", name)]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "scripts.harness",
            "bench",
            str(plan),
            "--on",
            "local",
            "--out",
            str(tmp_path),
            *allowed,
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # A parent in the background ignores the signal, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "1/1000" in line:
                process.send_signal(number)
                break
        _, said = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 5
    assert "stopped by a signal" in said
    file = read_results(tmp_path / "local.jsonl")
    assert file.results
    assert file.faults[-1].kind == "interrupted"


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `ssh` that runs the script in a shell here; its first line may be replaced by a fault."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "ssh"
    path.write_text('#!/bin/sh\n:\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec sh -c "$1"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(SshTransport, "OPTIONS", ("-o", "BatchMode=yes"))
    return path


def broken(ssh: Path, fault: str) -> None:
    ssh.write_text(ssh.read_text().replace("\n:\n", f"\n{fault}\n", 1))


def test_a_plan_behind_ssh(fake_ssh: Path, bench: Bench, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / ".venv/bin").mkdir(parents=True)
    for name in ("scripts", "converter"):
        (checkout / name).symlink_to(ROOT / name)
    (checkout / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (checkout / ".venv/bin/python").chmod(0o755)
    device = ssh(f"ssh:pi@board:{checkout}")
    device.folder = str(tmp_path / "there")
    error, file = run(device, bench, tmp_path / "out", allowed=ALLOWED)
    assert error is None, error
    assert file is not None
    assert file.runs[0].facts.kind == "ssh"
    assert len(file.results) == ROUNDS
    device.clean()
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("fault", "expected", "words"),
    [
        ("echo 'ssh: Could not resolve hostname board' >&2; exit 255", Gone, "resolve hostname"),
        ("exit 0", Gone, "no word"),
        ("sleep 9", Silent, "no answer within"),
        ("echo 'pi@board: Permission denied (publickey).' >&2; exit 255", NoLogin, "ssh HOST true"),
    ],
)
def test_what_ssh_says_is_understood(fake_ssh: Path, fault: str, expected: type[Fault], words: str) -> None:
    broken(fake_ssh, fault)
    with pytest.raises(expected, match=words):
        SshTransport("ssh:board", "board").shell("echo hello", seconds=0.5)


def test_a_machine_without_a_checkout_is_told(fake_ssh: Path, bench: Bench, tmp_path: Path) -> None:
    device = ssh(f"ssh:board:{tmp_path}/nothing")
    device.folder = str(tmp_path / "there")
    error, _ = run(device, bench, tmp_path / "out", allowed=ALLOWED)
    assert type(error) is NoCheckout
    assert "scripts/setup" in str(error)


@pytest.mark.parametrize("greeting", ["", "echo Welcome to the board; echo", "printf 'no end of line'; echo"])
def test_files_go_there_and_back(greeting: str, fake_ssh: Path, tmp_path: Path) -> None:
    if greeting:
        broken(fake_ssh, greeting)
    transport = SshTransport("ssh:board", "board")
    source = tmp_path / "it's a file.bin"
    source.write_bytes(bytes(range(256)) * 100)
    there = put(transport, source, str(tmp_path / "there"))
    back = fetch_whole(transport, there, tmp_path / "back")
    assert back.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("name", ["ssh:", "ssh:-oProxyCommand=x", "ssh:a b", "ssh:host:$(reboot)"])
def test_names_that_are_no_hosts(name: str) -> None:
    with pytest.raises(UsageError, match="expected ssh:HOST"):
        open_device(name)


def test_a_program_that_is_missing_is_told() -> None:
    with pytest.raises(Fault, match="cannot run no-such-adb"):
        Adb("no-such-adb").devices()
    with pytest.raises(Silent, match="no answer within 0 s"):
        run_program(["sleep", "5"], "x", 0.1)


def test_the_persons_own_adb_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("POCKETUNE_ADB", raising=False)
    assert "adbutils" in adb_binary()
    (tmp_path / "adb").write_text("#!/bin/sh\n")
    (tmp_path / "adb").chmod(0o755)
    assert adb_binary() == str(tmp_path / "adb")
    assert adb_binary("/opt/adb") == "/opt/adb"


def test_a_folder_with_a_space_is_one_folder(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "diary").touch()
    (tmp_path / "a b; touch c").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a b; touch c"))
    device = local()
    error, file = run(device, bench, tmp_path / "out", allowed=ALLOWED)
    assert error is None, error
    assert file is not None
    assert len(file.results) == ROUNDS
    device.clean()
    assert not Path(device.folder).exists()
    assert (tmp_path / "a" / "diary").exists()


def test_every_host_has_its_own_folder() -> None:
    assert hosts.folder_of("local") != hosts.folder_of("local-android")
