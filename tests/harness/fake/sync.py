"""Files in and out: the sync service, with the faults that real transfers have."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from typing import TYPE_CHECKING

from tests.harness.fake.wire import Closed, Stream

if TYPE_CHECKING:
    from tests.harness.fake.device import FakeDevice

STAT1 = struct.Struct("<4s3I")
STAT2 = struct.Struct("<4sI2Q4IQ3q")
DENT1 = struct.Struct("<4s4I")
DENT2 = struct.Struct("<4sI2Q4IQ3qI")
CHUNK = 64 * 1024


class SyncService:
    def __init__(self, device: FakeDevice, stream: Stream):
        self.device, self.stream = device, stream

    def run(self) -> None:
        while True:
            request, length = struct.unpack("<4sI", self.stream.read(8))
            if request == b"QUIT":
                return
            path = self.stream.read(length).decode()
            if request in (b"STAT", b"STA2", b"LST2"):
                self.stat(request, path)
            elif request in (b"LIST", b"LIS2"):
                self.list(request, path)
            elif request == b"SEND":
                path, _, mode = path.rpartition(",")
                self.receive_file(path, int(mode))
            elif request == b"SND2":
                _, mode, flags = struct.unpack("<4sII", self.stream.read(12))
                self.receive_file(path, mode) if not flags & 0xF else self.fail("compression not offered")
            elif request == b"RECV":
                self.send_file(path)
            elif request == b"RCV2":
                self.stream.read(8)
                self.send_file(path)
            else:
                self.fail(f"unknown command {request!r}")
                return

    def fail(self, message: str) -> None:
        self.stream.write(struct.pack("<4sI", b"FAIL", len(message.encode())) + message.encode())

    def _stat2(self, path: str, follow: bool) -> tuple:
        """errno, dev, ino, mode, nlink, uid, gid, size, atime, mtime, ctime"""
        try:
            s = self.device.local(path).stat(follow_symlinks=follow)
        except OSError as error:
            return (error.errno,) + (0,) * 10
        return (
            0,
            s.st_dev,
            s.st_ino,
            s.st_mode,
            s.st_nlink,
            s.st_uid,
            s.st_gid,
            s.st_size,
            int(s.st_atime),
            int(s.st_mtime),
            int(s.st_ctime),
        )

    def stat(self, request: bytes, path: str) -> None:
        info = self._stat2(path, follow=request == b"STA2")
        if request == b"STAT":
            self.stream.write(STAT1.pack(b"STAT", info[3], info[7] & 0xFFFFFFFF, info[9]))
        else:
            self.stream.write(STAT2.pack(request, *info))

    def list(self, request: bytes, path: str) -> None:
        with contextlib.suppress(OSError):
            for name in [".", "..", *sorted(p.name for p in self.device.local(path).iterdir())]:
                info, raw = self._stat2(f"{path}/{name}", follow=False), name.encode()
                if request == b"LIST":
                    entry = DENT1.pack(b"DENT", info[3], info[7] & 0xFFFFFFFF, info[9], len(raw))
                else:
                    entry = DENT2.pack(b"DNT2", *info, len(raw))
                self.stream.write(entry + raw)
        done = DENT1 if request == b"LIST" else DENT2
        self.stream.write(b"DONE" + bytes(done.size - 4))

    def receive_file(self, path: str, mode: int) -> None:
        """After a failure the rest is read and thrown away, as adbd does, so that FAIL gets through."""
        device, error, file, received = self.device, None, None, 0
        # Taken here, not when the limit is crossed: a push still being drained must not eat the next one's.
        drop, hang, full, corrupt = map(device.take, ("push-drop", "push-hang", "push-full", "push-corrupt"))
        target = device.local(path)
        try:
            device.check_writable(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            file = target.open("wb")
        except OSError as e:
            error = f"couldn't create file: {e.strerror}"
            self.fail(error)
        room = device.free_bytes()
        try:
            while True:
                request, length = struct.unpack("<4sI", self.stream.read(8))
                if request == b"DONE":
                    break
                if request != b"DATA" or length > CHUNK:
                    raise Closed(f"bad sync data message {request!r} {length}")
                data = self.stream.read(length)
                received += length
                if drop is not None and received >= drop:
                    device.drop_connections()
                    raise Closed
                if hang is not None and received >= hang:
                    self.stream.closed.wait()
                    raise Closed
                if file and not error and (received > room or (full is not None and received >= full)):
                    error = "write failed: No space left on device"
                    file.close()
                    target.unlink()
                    self.fail(error)
                if file and not error:
                    file.write(data)
        finally:
            if file:
                file.close()
        if not error:
            if corrupt is not None and received:
                with target.open("r+b") as f:
                    f.seek(received // 2)
                    byte = f.read(1)[0]
                    f.seek(received // 2)
                    f.write(bytes([byte ^ 1]))
            target.chmod(stat.S_IMODE(mode) | 0o600)
            os.utime(target, (length, length))  # DONE carries the time of modification
            self.stream.write(struct.pack("<4sI", b"OKAY", 0))

    def send_file(self, path: str) -> None:
        sent, drop = 0, self.device.take("pull-drop")
        try:
            file = self.device.open(path)
        except OSError as e:
            self.fail(f"open failed: {e.strerror}")
            return
        with file:
            while data := file.read(CHUNK):
                self.stream.write(struct.pack("<4sI", b"DATA", len(data)) + data)
                sent += len(data)
                if drop is not None and sent >= drop:
                    self.device.drop_connections()
                    raise Closed
        self.stream.write(struct.pack("<4sI", b"DONE", 0))


def serve_sync(device: FakeDevice, stream: Stream, service: str) -> None:
    SyncService(device, stream).run()
