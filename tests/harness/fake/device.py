"""A fake Android device: the real adb client and server talk to it over TCP on loopback."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from tests.harness.fake.services import find_service
from tests.harness.fake.wire import FEATURES, Connection


@dataclass
class Package:
    name: str
    path: str
    version_code: int = 1


@dataclass
class Process:
    pid: int
    package: str
    popen: subprocess.Popen | None = None
    finished: threading.Event = field(default_factory=threading.Event)
    exit_code: int | None = None


@dataclass
class LogLine:
    when: float
    pid: int
    level: str
    tag: str
    text: str


DEFAULT_PROPS = {
    "ro.product.name": "fake",
    "ro.product.model": "Fake_Phone",
    "ro.product.device": "fake",
    "ro.product.manufacturer": "Nobody",
    "ro.product.cpu.abi": "arm64-v8a",
    "ro.product.cpu.abilist": "arm64-v8a,armeabi-v7a,armeabi",
    "ro.build.version.sdk": "34",
    "ro.build.version.release": "14",
    "ro.build.type": "user",
    "ro.soc.model": "FAKE1",
    "ro.build.fingerprint": "nobody/fake/fake:14/FAKE.1/1:user/release-keys",
    "ro.serialno": "FAKE0001",
    "sys.boot_completed": "1",
}
WRITABLE = ("/data/local/tmp", "/sdcard", "/storage/emulated/0")


class FakeDevice:
    """State of one device. Everything public may be changed by a test while it runs.

    Faults (see inject): connect-silent, push-drop N, push-hang N, push-full N,
    push-corrupt, pull-drop N, shell-hang REGEX, shell-drop REGEX, install-fail TEXT,
    app-kill SECONDS, app-crash SECONDS, app-remove SECONDS. Also: auth = "never",
    offline(seconds), thermal_ramp, battery, props, capacity.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        port: int = 0,
        *,
        app: str = "",
        auth: str = "none",
        features: str = FEATURES,
        capacity: int = 8 << 30,
        reboot_seconds: float = 1.0,
        boot_seconds: float = 0.5,
    ) -> None:
        self.temporary = root is None
        self.root = Path(root or tempfile.mkdtemp(prefix="fakedevice-")).resolve()
        self.app, self.auth, self.features, self.capacity = app, auth, features, capacity
        self.reboot_seconds, self.boot_seconds = reboot_seconds, boot_seconds
        self.port = port
        self.props = dict(DEFAULT_PROPS)
        self.settings: dict[str, str] = {"global/airplane_mode_on": "0", "system/screen_brightness": "128"}
        self.battery = {"level": 87, "temperature": 281, "status": 3, "voltage": 4101, "plugged": 0}
        self.thermal_ramp: list[tuple[float, int]] = [(0.0, 0)]  # seconds since ramp_start -> status
        self.ramp_start = self.booted = time.time()
        self.packages: dict[str, Package] = {}
        self.processes: list[Process] = []
        self.logs: list[LogLine] = []
        self.logged = threading.Condition()
        self.services_seen: list[str] = []  # every service that the host asked for, in order
        self.accepted = 0  # TCP connections so far
        self.errors: list[str] = []  # exceptions inside the fake: tests should assert none
        self._faults: dict[str, list] = {}
        self._next_pid = 4000
        self._connections: list[Connection] = []
        self._listener: socket.socket | None = None
        self._stopped = threading.Event()
        self._make_files()

    # -- life

    @property
    def serial(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> FakeDevice:
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.unlisten()
        self.kill_all()
        if self.temporary:
            shutil.rmtree(self.root, ignore_errors=True)

    def listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen()
        self.port, self._listener = listener.getsockname()[1], listener

        def accept() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.accepted += 1
                connection = Connection(self, sock, find_service)
                self._connections.append(connection)
                threading.Thread(target=connection.run, name="adb-connection", daemon=True).start()

        threading.Thread(target=accept, name="adb-accept", daemon=True).start()

    def unlisten(self) -> None:
        if self._listener:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.drop_connections()

    def drop_connections(self) -> None:
        """Pulls the cable; the device goes on listening."""
        while self._connections:
            self._connections.pop().close()

    def offline(self, seconds: float) -> None:
        """Unreachable for a while (connections refused), then back. Returns at once."""
        self.unlisten()
        threading.Timer(seconds, self._come_back).start()

    def _come_back(self) -> None:
        if not self._stopped.is_set():
            self.listen()

    def reboot_soon(self) -> None:
        """Begins to reboot; returns at once."""
        threading.Thread(target=self.reboot, daemon=True).start()

    def reboot(self) -> None:
        time.sleep(0.05)  # let the OKAY out first
        self.unlisten()
        self.kill_all()
        self.props.pop("sys.boot_completed", None)
        with self.logged:
            self.logs.clear()
        if self._stopped.wait(self.reboot_seconds):
            return
        self.booted = self.ramp_start = time.time()
        self.listen()
        if not self._stopped.wait(self.boot_seconds):
            self.props["sys.boot_completed"] = "1"

    # -- faults

    def inject(self, fault: str, value: Any = True, times: int = 1) -> None:
        """Arms a fault for its next `times` occasions (-1: always)."""
        self._faults[fault] = [value, times]

    def peek(self, fault: str) -> Any:
        value, times = self._faults.get(fault, (None, 0))
        return value if times else None

    def take(self, fault: str) -> Any:
        value = self.peek(fault)
        if value is not None:
            self._faults[fault][1] -= 1
        return value

    # -- files: the folder `root` plays "/"

    def _make_files(self) -> None:
        for folder in (
            "data/local/tmp",
            "sdcard/Download",
            "sdcard/Android/data",
            "data/app",
            "sys/class/thermal",
            "proc",
            "system/bin",
        ):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.write(
            "/proc/meminfo", "MemTotal:       7812345 kB\nMemFree:         812345 kB\nMemAvailable:   3812345 kB\n"
        )
        self.write("/proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd05\n\nHardware\t: FAKE1\n")
        for cpu in range(4):
            base = f"/sys/devices/system/cpu/cpu{cpu}/cpufreq"
            for name, value in (
                ("scaling_cur_freq", 1400000),
                ("scaling_max_freq", 2200000),
                ("cpuinfo_max_freq", 2200000),
            ):
                self.write(f"{base}/{name}", f"{value}\n")
        self.write("/sys/class/thermal/thermal_zone0/type", "cpu-0-0\n")
        self.write("/sys/class/thermal/thermal_zone0/temp", "33000\n")

    def local(self, path: str) -> Path:
        """The local path of a device path; never outside root."""
        parts = [p for p in PurePosixPath("/" + path).parts[1:] if p != "."]
        while ".." in parts:
            at = parts.index("..")
            del parts[max(at - 1, 0) : at + 1]
        if parts[:3] == ["storage", "emulated", "0"]:
            parts[:3] = ["sdcard"]
        return self.root.joinpath(*parts)

    def remote(self, local: Path) -> str:
        return "/" + str(Path(local).relative_to(self.root))

    def write(self, path: str, text: str) -> None:
        target = self.local(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def open(self, path: str) -> BinaryIO:
        if path == "/sys/class/thermal/thermal_zone0/temp":
            self.write(path, f"{33000 + 8000 * self.thermal_status()}\n")
        return self.local(path).open("rb")

    def check_writable(self, path: str) -> None:
        clean = self.remote(self.local(path))
        if not any(clean == top or clean.startswith(top + "/") for top in WRITABLE):
            raise PermissionError(errno.EACCES, "Permission denied", str(self.local(path)))

    def used_bytes(self) -> int:
        return sum(f.stat().st_size for f in self.root.rglob("*") if f.is_file())

    def free_bytes(self) -> int:
        return max(self.capacity - self.used_bytes(), 0)

    # -- observable state

    def thermal_status(self) -> int:
        elapsed = time.time() - self.ramp_start
        return max((status for after, status in self.thermal_ramp if after <= elapsed), default=0)

    def log(self, level: str, tag: str, text: str, pid: int = 1000) -> None:
        with self.logged:
            self.logs.append(LogLine(time.time(), pid, level, tag, text))
            self.logged.notify_all()

    def log_service(self, service: str) -> None:
        self.services_seen.append(service)

    # -- processes: an activity or an instrumentation is a real local program

    def running(self, package: str) -> list[Process]:
        return [p for p in self.processes if p.package == package and not p.finished.is_set()]

    def install(self, name: str, apk: bytes, version_code: int = 1) -> None:
        """Puts an app on the phone."""
        file = self.local(f"/data/app/{name}/base.apk")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(apk)
        self.packages[name] = Package(name, self.remote(file), version_code)

    def uninstall(self, name: str) -> None:
        """Removes an app, what runs of it, and what it left."""
        path = self.packages.pop(name).path
        for process in self.running(name):
            self.kill(process)
        self.local(path).unlink()
        shutil.rmtree(self.local(f"/sdcard/Android/data/{name}"), ignore_errors=True)

    def start_app(self, package: str, extras: dict[str, str], tag: str) -> Process:
        """Runs self.app; its standard output becomes logcat lines with the given tag."""
        self._next_pid += 1
        process = Process(self._next_pid, package)
        self.processes.append(process)
        files = self.local(f"/sdcard/Android/data/{package}/files")
        files.mkdir(parents=True, exist_ok=True)
        self.log("I", "ActivityManager", f"Start proc {process.pid}:{package}/u0a123 for activity")
        if not self.app:
            return process
        words = {
            "job": str(self.local(extras["job"])) if "job" in extras else "",
            "files": str(files),
            "package": package,
            "root": str(self.root),
        }
        command = [word.format(**words) for word in shlex.split(self.app)]
        process.popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "FAKE_ROOT": str(self.root), "PYTHONUNBUFFERED": "1"},
        )
        readers = [
            threading.Thread(target=self._log_lines, args=(process, pipe, level, name), daemon=True)
            for pipe, level, name in ((process.popen.stdout, "I", tag), (process.popen.stderr, "W", "System.err"))
        ]
        for thread in [
            *readers,
            threading.Thread(target=self._reap, args=(process, process.popen, readers), daemon=True),
        ]:
            thread.start()
        for fault in ("app-kill", "app-crash", "app-remove"):
            delay = self.take(fault)
            if delay is not None:
                threading.Timer(float(delay), self._end_app, (process, fault)).start()
        return process

    def _log_lines(self, process: Process, pipe: IO[str], level: str, tag: str) -> None:
        with pipe:
            for line in pipe:
                self.log(level, tag, line.rstrip("\n"), process.pid)

    def _reap(self, process: Process, popen: subprocess.Popen, readers: list[threading.Thread]) -> None:
        process.exit_code = popen.wait()
        for thread in readers:
            thread.join()
        if process.exit_code:
            self.log("I", "ActivityManager", f"Process {process.package} (pid {process.pid}) has died: fg TOP")
        process.finished.set()

    def _end_app(self, process: Process, how: str) -> None:
        if process.finished.is_set():
            return
        if how == "app-remove":
            self.uninstall(process.package)
            return
        if how == "app-kill":
            self.log(
                "I",
                "lowmemorykiller",
                f"Kill '{process.package}' ({process.pid}), uid 10123, "
                "oom_score_adj 0 to free 1812345kB rss; reason: low watermark is breached",
                400,
            )
        else:
            self.log("E", "AndroidRuntime", "FATAL EXCEPTION: main", process.pid)
            self.log("E", "AndroidRuntime", f"Process: {process.package}, PID: {process.pid}", process.pid)
            self.log("E", "AndroidRuntime", "java.lang.OutOfMemoryError: Failed to allocate", process.pid)
        self.kill(process)

    def kill(self, process: Process) -> None:
        if process.popen is None:
            process.finished.set()
        elif process.popen.poll() is None:
            os.killpg(process.popen.pid, signal.SIGKILL)  # its own session: only what we started
            process.finished.wait(5)

    def kill_all(self) -> None:
        for process in self.processes:
            if not process.finished.is_set():
                self.kill(process)
