"""Flower's own programs, as `scripts/flower/install` installs them, in processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tree import ROOT

BIN = ROOT / ".venv-flower/bin"
needs_flower = pytest.mark.skipif(not (BIN / "flwr").exists(), reason="there is no Flower: scripts/flower/install")


@dataclass
class Link:
    """A SuperLink that runs, and the folder that Flower keeps its files in.

    Attributes:
        address: HOST:PORT.
        folder: of Flower's files.
        process: that runs.
        shown: its certificate, with the key beside it, and the authority's; empty: no TLS.
    """

    address: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    shown: tuple[Path, ...] = ()

    def start(self) -> None:
        """Start an unmodified `flower-superlink` at the address."""
        port = self.address.rpartition(":")[2]
        command: list[str | Path] = [BIN / "flower-superlink", "--disable-runtime-dependency-installation"]
        command += ["--port", port, *self._tls()]
        with (self.folder / "superlink.log").open("a") as log:
            self.process = subprocess.Popen(command, env=settings(self.folder), stdout=log, stderr=subprocess.STDOUT)
        _wait(int(port), self.process)

    def _tls(self) -> list[str | Path]:
        if not self.shown:
            return ["--insecure"]
        certificate, authority = self.shown
        key = certificate.with_suffix(".key")
        return ["--ssl-certfile", certificate, "--ssl-keyfile", key, "--ssl-ca-certfile", authority]

    def kill(self) -> None:
        """SIGKILL of the SuperLink, which keeps nothing on disk."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def run(self, *command: str | Path, at: Path, seconds: float = 120) -> str:
        """Run a command of Flower's environment; return what it said. It must end with 0."""
        done = subprocess.run(
            [BIN / command[0], *command[1:]], cwd=at, env=settings(self.folder), capture_output=True, text=True,
            check=False, timeout=seconds,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout + done.stderr

    def client(self, program: Path, rows: Path, *options: str, log: Path | None = None) -> subprocess.Popen[str]:
        """Start a client, which waits for rounds until it is ended; `log` takes what it says."""
        command = [BIN / "python", "-m", "pocketune", "federated", "client", program, "--data", rows]
        command += ["--superlink", self.address, "--poll", "0.3", *options]
        if log is None:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            return subprocess.Popen(command, env=settings(self.folder), **pipes)
        with log.open("w") as said:
            return subprocess.Popen(command, env=settings(self.folder), stdout=said, stderr=said, text=True)


def settings(folder: Path) -> dict[str, str]:
    """Return the variables of such a process: Flower's files in a folder, nothing told to its makers."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")}
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return kept | {"FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path, "PYTHONPATH": str(ROOT)}


@contextmanager
def superlink(folder: Path, *shown: Path) -> Iterator[Link]:
    """Run an unmodified `flower-superlink` on a free port of this machine; `shown` as `Link` has it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    link = Link(f"127.0.0.1:{port}", folder, shown=shown)
    folder.mkdir()
    trust = f'root-certificates = "{shown[1]}"' if shown else "insecure = true"
    (folder / "config.toml").write_text(f'[superlink.here]\naddress = "{link.address}"\n{trust}\n')
    try:
        link.start()
        yield link
    finally:
        if link.process is not None:
            link.process.terminate()
            link.process.wait(30)


def all_went(module: str, folder: Path) -> None:
    """Run a module of cases in Flower's environment on the files of a folder; each case has to go as it should."""
    command = [BIN / "python", "-m", module, folder]
    done = subprocess.run(command, cwd=ROOT, env=settings(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    assert done.stdout.endswith("all went as it should\n")


def ended(clients: Sequence[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """Interrupt clients, as a person does; return what they said on both streams. Each must end with 0."""
    for client in clients:
        client.send_signal(signal.SIGINT)
    said = [client.communicate(timeout=90) for client in clients]
    assert [client.returncode for client in clients] == [0] * len(clients), said
    return said


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(900):
        assert process.poll() is None, "the SuperLink ended"
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("no SuperLink after three minutes")
