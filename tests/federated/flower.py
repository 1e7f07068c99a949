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


@dataclass(frozen=True)
class Link:
    """A SuperLink that runs, and the folder that Flower keeps its files in."""

    address: str
    folder: Path

    def run(self, *command: str | Path, at: Path, seconds: float = 120) -> str:
        """Run a command of Flower's environment; return what it said. It must end with 0."""
        done = subprocess.run(
            [BIN / command[0], *command[1:]], cwd=at, env=settings(self.folder), capture_output=True, text=True,
            check=False, timeout=seconds,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout + done.stderr

    def client(self, program: Path, rows: Path, *options: str) -> subprocess.Popen[str]:
        """Start a client, which waits for rounds until it is ended."""
        command = [BIN / "python", "-m", "pocketune", "federated", "client", program, "--data", rows]
        command += ["--superlink", self.address, "--poll", "0.3", *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=settings(self.folder), **pipes)


def settings(folder: Path) -> dict[str, str]:
    """Return the variables of such a process: Flower's files in a folder, nothing told to its makers."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")}
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return kept | {"FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path, "PYTHONPATH": str(ROOT)}


@contextmanager
def superlink(folder: Path) -> Iterator[Link]:
    """Run an unmodified `flower-superlink` on a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    link = Link(f"127.0.0.1:{port}", folder)
    folder.mkdir()
    (folder / "config.toml").write_text(f'[superlink.here]\naddress = "{link.address}"\ninsecure = true\n')
    command = [BIN / "flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--port", str(port)]
    with (folder / "superlink.log").open("w") as log:
        process = subprocess.Popen(command, env=settings(folder), stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(port, process)
            yield link
        finally:
            process.terminate()
            process.wait(30)


def ended(clients: Sequence[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """Interrupt clients, as a person does; return what they said on both streams. Each must end with 0."""
    for client in clients:
        client.send_signal(signal.SIGINT)
    said = [client.communicate(timeout=90) for client in clients]
    assert [client.returncode for client in clients] == [0] * len(clients), said
    return said


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert process.poll() is None, "the SuperLink ended"
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("no SuperLink after a minute")
