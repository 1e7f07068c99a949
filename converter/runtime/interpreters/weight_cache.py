"""Cache of packed weights, files in a folder: whole, of this program, runtime and processor, or not there."""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from converter.program.file import ProgramFile
from converter.support.errors import UsageError

SUFFIX = ".packed"


class WeightCache:
    """Files `<key>-<digest>.packed`: XNNPACK believes what it finds in a file, so both halves of the name are checked.

    The key is of the program, the version of LiteRT and the processor, whose kernels decide the layout; the digest is
    of the file itself. Whatever else lies in the folder is left alone.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        """Takes a folder, which is made if it is not there. Raises UsageError when it cannot be used."""
        self._folder = Path(folder).absolute()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from None

    @contextmanager
    def file(self, program: ProgramFile) -> Iterator[Path]:
        """The path to give to LiteRT: a good file, or of one that it makes, which is kept unless an exception comes.

        Two processes may make the same file at once; each has its own until it is whole.

        Raises:
            UsageError: the folder cannot be written.
        """
        key = _key(program.digest)
        try:
            if found := self._find(key):
                yield found
                return
            with tempfile.TemporaryDirectory(dir=self._folder, prefix=".") as scratch:
                made = Path(scratch) / key
                yield made
                if made.exists():
                    made.replace(self._folder / f"{key}-{_digest(made)}{SUFFIX}")
        except OSError as error:
            raise self._unusable(error) from None

    def _find(self, key: str) -> Path | None:
        """Return the file of this key that is as it was written; one that is not is removed."""
        for path in self._folder.glob(f"{key}-*{SUFFIX}"):
            if path.name == f"{key}-{_digest(path)}{SUFFIX}":
                return path
            path.unlink()
        return None

    def _unusable(self, error: OSError) -> UsageError:
        return UsageError(
            f"weight_cache: cannot use the folder {self._folder}: {error.strerror or error}", page="sessions"
        )


def _key(program: str) -> str:
    """Return what packed weights depend on, hashed."""
    # Here, as it is a megabyte of Python's memory that sessions without a cache do without.
    from importlib.metadata import version

    return hashlib.sha256(" ".join((program, version("ai-edge-litert"), _processor())).encode()).hexdigest()[:32]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _processor() -> str:
    """Return the processor's architecture and, where Linux tells, what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    able = sorted({line for line in lines if line.startswith(("flags", "Features", "CPU part", "model name"))})
    return " ".join((platform.machine(), *able))
