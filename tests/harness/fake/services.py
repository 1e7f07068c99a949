"""What a stream is opened for: a shell, files, a reboot."""

from __future__ import annotations

import re
import struct
import threading
from typing import TYPE_CHECKING

from tests.harness.fake.shell import run_script
from tests.harness.fake.sync import serve_sync
from tests.harness.fake.wire import Closed, Service, Stream

if TYPE_CHECKING:
    from tests.harness.fake.device import FakeDevice

STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)


class ShellIO:
    """Standard streams of a command: raw bytes (v1, exec:) or framed packets (shell v2)."""

    def __init__(self, stream: Stream, framed: bool):
        self.stream, self.framed = stream, framed
        self.closed = stream.closed
        self._stdin, self._stdin_open = b"", True

    def _send(self, kind: int, data: bytes) -> None:
        if self.framed:
            for start in range(0, len(data) or 1, 65536):
                part = data[start : start + 65536]
                self.stream.write(struct.pack("<BI", kind, len(part)) + part)
        else:
            self.stream.write(data)

    def out(self, text: str | bytes) -> None:
        if text:
            self._send(STDOUT, text.encode() if isinstance(text, str) else text)

    def err(self, text: str | bytes) -> None:
        if text:
            self._send(STDERR, text.encode() if isinstance(text, str) else text)

    def exit(self, code: int) -> None:
        if self.framed:
            self._send(EXIT, bytes([code & 0xFF]))

    def read(self, size: int = -1) -> bytes:
        """Up to size bytes of standard input, or all of it; shorter only at its end."""
        while self._stdin_open and (size < 0 or len(self._stdin) < size):
            if not self.framed:
                data = self.stream.read_some()
                self._stdin_open = bool(data)
                self._stdin += data
                continue
            try:
                kind, length = struct.unpack("<BI", self.stream.read(5))
                data = self.stream.read(length)
            except Closed:
                kind, data = CLOSE_STDIN, b""
            if kind == STDIN:
                self._stdin += data
            elif kind == CLOSE_STDIN:
                self._stdin_open = False
        size = len(self._stdin) if size < 0 else size
        data, self._stdin = self._stdin[:size], self._stdin[size:]
        return data


def serve_shell(device: FakeDevice, stream: Stream, service: str) -> None:
    head, _, script = service.partition(":")  # "shell,v2,raw:ls", "exec:cmd package ..."
    io = ShellIO(stream, framed="v2" in head.split(","))
    pattern = device.peek("shell-hang")
    if pattern and re.search(pattern, script):
        device.take("shell-hang")
        stream.closed.wait()
        return
    pattern = device.peek("shell-drop")
    if pattern and re.search(pattern, script):
        device.take("shell-drop")
        device.drop_connections()
        return
    if not script:  # plain `adb shell`: no prompt, no terminal
        script = io.read().decode()
    io.exit(run_script(device, script, io))


def serve_reboot(device: FakeDevice, stream: Stream, service: str) -> None:
    threading.Thread(target=device.reboot, daemon=True).start()
    stream.closed.wait(5)


def serve_root(device: FakeDevice, stream: Stream, service: str) -> None:
    stream.write(b"adbd cannot run as root in production builds\n")


SERVICES = {"shell": serve_shell, "exec": serve_shell, "sync": serve_sync, "reboot": serve_reboot, "root": serve_root}


def find_service(service: str) -> Service | None:
    return SERVICES.get(re.split("[:,]", service)[0])
