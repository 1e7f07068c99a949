"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from converter.errors import UsageError


def write_atomically(path: str | os.PathLike, data: bytes, previous: Path | None = None) -> None:
    """Writes a file so that a crash at any point leaves the old one or the new one, never a part.

    A temporary file beside it (`<path>.partial`) is written, flushed to the disk and renamed; then the directory is
    flushed, so that the rename itself outlives a power failure.

    Args:
        path: where to.
        data: all of the file.
        previous: where the file that is now at `path` goes first; None replaces it.

    Raises:
        UsageError: the directory is missing, the disk is full, or permission is denied.
    """
    path = Path(path)
    partial = path.with_name(f"{path.name}.partial")
    try:
        try:
            _write(partial, data)
            if previous is not None:
                os.replace(path, previous)
            os.replace(partial, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise
        _flush_directory(path.parent)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _write(path: Path, data: bytes) -> None:
    """A new file with these bytes on the disk."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
