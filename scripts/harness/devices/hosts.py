"""From what the user writes after --on to a device."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from functools import partial
from pathlib import Path

from converter.support.errors import UsageError, nearest
from scripts.harness.device import Device
from scripts.harness.devices import android_jvm
from scripts.harness.devices.adb import Adb, AdbTransport, adb_binary
from scripts.harness.devices.computer import Computer
from scripts.harness.devices.engines import GpuHost, HexagonHost, WebHost
from scripts.harness.devices.phone import Phone
from scripts.harness.devices.transport import LocalTransport, SshTransport

HOSTS = ("local", "local-android", "local-android:arm64", "gpu", "hexagon-emulated", "web", "ssh:")
ROOT = Path(__file__).resolve().parents[3]


def open_devices(names: list[str], adb: str | None, apk: Path | None) -> list[Device]:
    """Return the devices of these names; without any, the one phone that is connected.

    Args:
        names: serials of adb, `local`, `local-android[:arm64]`, `gpu`, `hexagon-emulated`, `web`,
            `ssh:HOST[:FOLDER]`.
        adb: path of an adb binary.
        apk: the app, installed on phones that have another build of it.

    Raises:
        UsageError: no phone or several, no adb, or a name twice.
    """
    if len(set(names)) < len(names):
        raise UsageError("--on: the same device twice")
    return [open_device(name, adb, apk) for name in names or [only_phone(Adb(adb_binary(adb)))]]


def open_device(name: str, adb: str | None = None, apk: Path | None = None) -> Device:
    """Return the device of this name; nothing is asked of it yet. Raises UsageError for a name that is a slip."""
    if name == "local":
        return local()
    if name == "local-android":
        # It tells at once when it has not been built.
        android_jvm.command()
        return Computer(LocalTransport(name), "local-android", folder_of(name), android_jvm.worker)
    if name == "local-android:arm64":
        android_jvm.command(counts="unused")
        worker = android_jvm.arm64_worker
        return Computer(LocalTransport(name), "local-android", folder_of(name), worker, emulates="Cortex-A76 (qemu)")
    if name == "gpu":
        return GpuHost(LocalTransport(name), "gpu", folder_of(name), partial(_worker, gpu="gpu"))
    if name == "hexagon-emulated":
        # There is no NPU but the emulated one.
        return HexagonHost(LocalTransport(name), "hexagon-emulated", folder_of(name), partial(_worker, npu="hexagon"))
    if name == "web":
        return WebHost(LocalTransport(name), "web", folder_of(name), partial(_worker, cpu="web:wasm", gpu="web"))
    if name.startswith("ssh:"):
        return ssh(name)
    if apk is not None and not apk.is_file():
        raise UsageError(f"--apk: there is no file {apk}: scripts/build_apk makes it")
    client = Adb(adb_binary(adb))
    if near := nearest(name, HOSTS):
        connected = [d.serial for d in client.devices()]
        if name not in connected:
            raise UsageError(f"--on {name}: no such device; connected are: {', '.join(connected) or 'none'}.{near}")
    return Phone(AdbTransport(client, name), apk)


def only_phone(adb: Adb) -> str:
    """Return the serial of the one phone. Raises UsageError when there is none or a choice."""
    listed = adb.devices()
    if len(listed) == 1:
        return listed[0].serial
    if not listed:
        raise UsageError("no phone is connected: plug one in and allow USB debugging, or give --on local")
    raise UsageError(f"several phones are connected: choose with --on {' or --on '.join(d.serial for d in listed)}")


def local() -> Computer:
    """Return this machine and its own runtime."""
    return Computer(LocalTransport("local"), "local", folder_of("local"), _worker)


def _worker(job: str, results: str, **offers: str) -> str:
    """Return the script that runs a job in the host runtime of this checkout; `offers` as there."""
    has = [f"{accelerator}={engine}" for accelerator, engine in offers.items()]
    python = shlex.join([sys.executable, "-m", "scripts.harness.worker", job, results, *has])
    return f"cd {shlex.quote(str(ROOT))} && exec {python}"


def folder_of(name: str) -> str:
    """Return where a host on this machine keeps its files: each user's own."""
    return str(Path(tempfile.gettempdir(), f"pocketune-{os.getuid()}-{name}"))


def ssh(name: str) -> Computer:
    """Return a machine behind ssh with a checkout of Pocketune where `scripts/setup` has run. Raises UsageError."""
    match = re.fullmatch(r"ssh:([\w.@-]+)(?::([\w./~-]+))?", name)
    if match is None or match[1].startswith("-"):
        raise UsageError(f"--on {name}: expected ssh:HOST or ssh:USER@HOST:FOLDER_OF_POCKETUNE")
    host, checkout = match[1], match[2] or "pocketune"

    def worker(job: str, results: str) -> str:
        return f"cd {checkout} && exec .venv/bin/python -m scripts.harness.worker {job} {results}"

    return Computer(SshTransport(name, host), "ssh", "/tmp/pocketune-harness", worker, checkout=checkout)  # noqa: S108
