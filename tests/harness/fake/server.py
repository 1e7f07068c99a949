"""A private adb server on a free loopback port, as a child process that we own."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path


class AdbServer:
    """Runs while it is entered; `environment` makes adb clients find it. Its keys are its own."""

    def __init__(self, adb: str) -> None:
        self.adb, self.home = adb, tempfile.TemporaryDirectory(prefix="adb-home-")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.environment = {
            "ANDROID_ADB_SERVER_PORT": str(self.port),
            # Looks for no phones: neither in the network, nor on USB, nor as emulators.
            "ADB_MDNS": "0",
            "ADB_USB": "0",
            "ADB_LOCAL_TRANSPORT_MAX_PORT": "0",
        }

    def __enter__(self) -> AdbServer:
        log = Path(self.home.name, "server.log")
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [self.adb, "-P", str(self.port), "nodaemon", "server"],
                env={**os.environ, **self.environment, "HOME": self.home.name},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        for _ in range(2000):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.05)
        raise TimeoutError(log.read_text())

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.home.cleanup()

    def connect(self, serial: str) -> str:
        """What `adb connect` says; it exits with 0 whatever happened."""
        done = subprocess.run(
            [self.adb, "connect", serial],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        return done.stdout.strip()
