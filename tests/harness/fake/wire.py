"""The ADB protocol on the device's side: messages over TCP, and the streams in them."""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.harness.fake.device import FakeDevice

CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = (
    int.from_bytes(name, "little") for name in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE")
)
AUTH_TOKEN, AUTH_SIGNATURE, AUTH_RSAPUBLICKEY = 1, 2, 3
VERSION = 0x01000001  # from this version on nobody checks the checksum
MAX_PAYLOAD = 1024 * 1024
HEADER = struct.Struct("<6I")  # command, arg0, arg1, length, checksum, command ^ 0xffffffff
FEATURES = "shell_v2,cmd,stat_v2,ls_v2,fixed_push_mkdir,sendrecv_v2"


#: Serves a stream that was opened for a service, the last argument.
Service = Callable[["FakeDevice", "Stream", str], None]


class Closed(Exception):
    """The stream or the whole connection has gone away."""


class Connection:
    """One TCP connection from an adb server: handshake, then many streams."""

    def __init__(self, device: FakeDevice, sock: socket.socket, find: Callable[[str], Service | None]) -> None:
        self.device, self.sock, self.find = device, sock, find
        self.streams: dict[int, Stream] = {}
        self.peer_version, self.max_payload = 0x01000000, 4096
        self.next_id = 1
        self.send_lock = threading.Lock()

    def send(self, command: int, arg0: int, arg1: int, data: bytes = b"") -> None:
        checksum = sum(data) & 0xFFFFFFFF if self.peer_version < VERSION else 0
        header = HEADER.pack(command, arg0, arg1, len(data), checksum, command ^ 0xFFFFFFFF)
        try:
            with self.send_lock:
                self.sock.sendall(header + data)
        except OSError as error:
            raise Closed from error

    def receive(self) -> tuple[int, int, int, bytes]:
        command, arg0, arg1, length, _, magic = HEADER.unpack(self._read(HEADER.size))
        if magic != command ^ 0xFFFFFFFF or length > MAX_PAYLOAD:
            raise Closed(f"not an ADB message: {command:#x}")
        return command, arg0, arg1, self._read(length)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self.sock.recv(size - len(data))
            except OSError as error:
                raise Closed from error
            if not chunk:
                raise Closed
            data += chunk
        return bytes(data)

    def run(self) -> None:
        try:
            while True:
                self._dispatch(*self.receive())
        except Closed:
            pass
        finally:
            self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # wakes a thread blocked in recv
        self.sock.close()
        for stream in list(self.streams.values()):
            stream.mark_closed()

    def _dispatch(self, command: int, arg0: int, arg1: int, data: bytes) -> None:
        if command == CNXN:
            self.peer_version, self.max_payload = arg0, min(arg1, MAX_PAYLOAD)
            if self.device.take("connect-silent") is not None:
                return  # the host shows "offline"
            if self.device.auth == "none":
                self._send_banner()
            else:
                self.send(AUTH, AUTH_TOKEN, 0, secrets.token_bytes(20))
        elif command == AUTH and arg0 == AUTH_SIGNATURE:
            self.send(AUTH, AUTH_TOKEN, 0, secrets.token_bytes(20))  # key unknown: try the next
        elif command == AUTH and arg0 == AUTH_RSAPUBLICKEY:
            if self.device.auth == "accept":  # the user taps "Allow"; "never" stays silent
                self._send_banner()
        elif command == OPEN:
            self._open(arg0, data.rstrip(b"\0").decode())
        elif stream := self.streams.get(arg1):  # OKAY, WRTE, CLSE go to an open stream
            if command == OKAY:
                stream.ready.release()
            elif command == WRTE:
                stream.incoming.put(data)
            elif command == CLSE:
                stream.mark_closed()
        elif command == WRTE:
            self.send(CLSE, 0, arg0)  # nobody there (any more)

    def _send_banner(self) -> None:
        props = self.device.props
        names = ("ro.product.name", "ro.product.model", "ro.product.device")
        banner = "".join(f"{name}={props[name]};" for name in names)
        self.send(CNXN, VERSION, MAX_PAYLOAD, f"device::{banner}features={self.device.features}".encode())

    def _open(self, peer_id: int, service: str) -> None:
        self.device.log_service(service)
        handler = self.find(service)
        if handler is None:
            self.send(CLSE, 0, peer_id)  # the host says "error: closed"
            return
        stream = Stream(self, self.next_id, peer_id)
        self.next_id += 1
        self.streams[stream.local_id] = stream
        self.send(OKAY, stream.local_id, peer_id)

        def serve() -> None:
            try:
                handler(self.device, stream, service)
            except Closed:
                pass
            except Exception as error:  # a bug in the fake must be seen in the test
                self.device.errors.append(f"{service}: {error!r}")
                self.device.log("E", "fakedevice", repr(error))
            finally:
                stream.finish()

        threading.Thread(target=serve, name=service[:40], daemon=True).start()


class Stream:
    """One multiplexed stream. Each WRTE waits for the peer's OKAY to the one before."""

    def __init__(self, connection: Connection, local_id: int, peer_id: int) -> None:
        self.connection, self.local_id, self.peer_id = connection, local_id, peer_id
        self.incoming: queue.Queue[bytes | None] = queue.Queue()
        self.ready = threading.Semaphore(1)
        self.closed = threading.Event()
        self.buffer = b""

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), self.connection.max_payload):
            self.ready.acquire()
            if self.closed.is_set():
                raise Closed
            self.connection.send(WRTE, self.local_id, self.peer_id, data[start : start + self.connection.max_payload])

    def read_some(self) -> bytes:
        """The next bytes, b"" once the peer has closed. The OKAY is sent on taking: backpressure."""
        if self.buffer:
            data, self.buffer = self.buffer, b""
            return data
        arrived = self.incoming.get()
        if arrived is None:
            self.incoming.put(None)
            return b""
        with contextlib.suppress(Closed):
            self.connection.send(OKAY, self.local_id, self.peer_id)
        return arrived

    def read(self, size: int) -> bytes:
        parts, missing = [], size
        while missing:
            data = self.read_some()
            if not data:
                raise Closed
            parts.append(data[:missing])
            self.buffer = data[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    def mark_closed(self) -> None:
        self.closed.set()
        self.incoming.put(None)
        self.ready.release()

    def finish(self) -> None:
        """Close after the last WRTE was taken; a CLSE that overtakes it can lose data."""
        if not self.closed.is_set():
            self.ready.acquire(timeout=10)
        self.connection.streams.pop(self.local_id, None)
        with contextlib.suppress(Closed):
            self.connection.send(CLSE, self.local_id, self.peer_id)
