"""An exported program on an emulated board: commands go in, results and ticks of the clock come out."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scripts.micro.boards import Board

_FRONT = struct.Struct("<IQI")
STATUSES = (
    "ok", "arena too small", "not begun", "rows", "target", "row", "not finite", "failed", "no state", "foreign",
    "storage",
)  # fmt: skip
#: Seconds that an emulator may take.
LIMIT = 600


@dataclass(frozen=True)
class Answer:
    """What came of a command: a status in words, ticks of the board's clock, bytes."""

    status: str
    ticks: int
    data: bytes = field(repr=False)

    def floats(self) -> np.ndarray:
        """Return the bytes as numbers."""
        return np.frombuffer(self.data, "<f4")


@dataclass
class Device:
    """A board with a program; files in `folder` are its storage.

    Attributes:
        elf: what `building.firmware` gave.
        board: which.
        folder: where the emulator runs.
        arena_used, session: bytes, as the board said when it began.
    """

    elf: Path
    board: Board
    folder: Path
    arena_used: int = 0
    session: int = 0

    def start(self, commands: Sequence[bytes]) -> subprocess.Popen:
        """Start the emulator on commands, and return its process."""
        (self.folder / "job").write_bytes(b"".join(commands))
        (self.folder / "done").unlink(missing_ok=True)
        return subprocess.Popen(
            ["qemu-system-arm", "-M", self.board.machine, "-kernel", str(self.elf.resolve()), "-nographic",
             "-semihosting-config", "enable=on,target=native", "-icount", "shift=0", "-monitor", "none",
             "-serial", "none"],
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, commands: Sequence[bytes]) -> list[Answer]:
        """Return what came of commands.

        Raises:
            RuntimeError: the board stopped before the last.
        """
        process = self.start(commands)
        said, _ = process.communicate(timeout=LIMIT)
        answers = self.answers()
        if process.returncode != 0 or len(answers) != len(commands):
            raise RuntimeError(f"exit {process.returncode} after {len(answers)} of {len(commands)} commands: {said}")
        return answers

    def answers(self) -> list[Answer]:
        """Return what came of the commands that were done; the first answer, of `begin`, is read apart.

        Raises:
            RuntimeError: the board did not begin.
        """
        found = self._read()
        if not found or found[0].status != STATUSES[0]:
            raise RuntimeError(f"begin: {found[0].status if found else 'nothing'}")
        self.arena_used, self.session = struct.unpack("<II", found[0].data)
        return found[1:]

    def began(self) -> bool:
        """Return whether the board has answered at all."""
        return bool(self._read())

    def _read(self) -> list[Answer]:
        """Return all answers that are whole."""
        path = self.folder / "done"
        data, at, found = path.read_bytes() if path.exists() else b"", 0, list[Answer]()
        while at + _FRONT.size <= len(data):
            status, ticks, nbytes = _FRONT.unpack_from(data, at)
            at += _FRONT.size
            if at + nbytes <= len(data):
                found.append(Answer(STATUSES[status], ticks, data[at : at + nbytes]))
            at += nbytes
        return found


def command(name: str, values: int, rows: Sequence[Sequence[np.ndarray]] = ()) -> bytes:
    """Return a command.

    Args:
        name: its letter: `t`rain, `a`dd, add of `k`nown features, `e`valuate, `i`nfer, `j`: infer of rows in int8,
            `s`ave, `l`oad, `r`eset, `d`ump the state, `b`egin in an arena of other bytes.
        values: how many a row of the program has.
        rows: of each the values, in the order of the program, all of the same sizes; fewer where some are not read.
    """
    sizes = [value.nbytes for value in rows[0]] if rows else []
    front = struct.pack(f"<{3 + values}I", ord(name), len(rows), sum(sizes), *sizes, *[0] * (values - len(sizes)))
    return front + b"".join(np.ascontiguousarray(value).tobytes() for row in rows for value in row)
