"""Atomic file writes, and reads of regular files alone."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from converter.support.errors import UsageError

_LFS = b"version https://git-lfs.github.com/spec/"


def beside(path: str | os.PathLike, suffix: str) -> Path:
    """`<path>.<suffix>`. Raises UsageError when the path names no file."""
    path = Path(path)
    if not path.name:
        raise UsageError(f"{os.fspath(path)!r} names no file", page="program-files")
    return path.with_name(f"{path.name}.{suffix}")


def check_regular(path: str | os.PathLike) -> None:
    """Refuses what would block or never end when it is read. What is missing or forbidden is left to who opens it.

    Raises:
        UsageError: a directory, a FIFO, a device or a socket.
    """
    with contextlib.suppress(OSError, ValueError):
        _refuse_irregular(path, Path(path).stat().st_mode)


def open_regular(path: str | os.PathLike) -> int:
    """Return a descriptor of a file that is open for reading.

    Raises:
        UsageError: it is no regular file.
        OSError: it cannot be opened.
    """
    # Not to wait for the other end of a FIFO, which is refused only after it was opened.
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    try:
        _refuse_irregular(path, os.fstat(descriptor).st_mode)
    except UsageError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_irregular(path: str | os.PathLike, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFDIR: "directory", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
    kind = kinds.get(stat.S_IFMT(mode), "device")
    raise UsageError(f"{os.fspath(path)} is a {kind}, and a file is expected", page="program-files")


class Mapped(mmap.mmap):
    """A file that is mapped, to be read, and stays open.

    Attributes:
        descriptor: of the open file, for as long as this object lives.
    """

    descriptor: int

    @staticmethod
    def of(descriptor: int) -> Mapped:
        """Return the mapping of an open file, which the caller may close."""
        own = os.dup(descriptor)
        try:
            mapped = Mapped(own, 0, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(own)
            raise
        mapped.descriptor = own
        weakref.finalize(mapped, os.close, own)
        return mapped


def check_place(path: str | os.PathLike) -> None:
    """Look at where a file is to go, before the work that makes it.

    Raises:
        UsageError: a directory is there, the directory is missing, or not writable.
    """
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a directory", page="command-line")
    if not path.parent.is_dir():
        raise UsageError(
            f"cannot write {path}: there is no directory {path.parent}. Make it: mkdir -p {path.parent}",
            page="command-line",
        )
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"cannot write {path}: the directory {path.parent} is not writable", page="command-line")


def write_atomically(path: str | os.PathLike, data: bytes | mmap.mmap, previous: Path | None = None) -> None:
    """Writes a file so that a crash at any point leaves the old one or the new one, never a part.

    A temporary file beside it (`<path>.partial`) is written, flushed to the disk and renamed; then the directory is
    flushed, so that the rename itself outlives a power failure. What a crash leaves of it, the next call removes; so
    only one process at a time may write to a path.

    Args:
        path: where to.
        data: all of the file.
        previous: where the file that is now at `path` goes first; None replaces it.

    Raises:
        UsageError: the directory is missing, the disk is full, or permission is denied.
    """
    path, partial = Path(path), beside(path, "partial")
    with _writing(path, [partial]):
        _write(partial, data)
        if previous is not None:
            path.replace(previous)
        partial.replace(path)


def write_together(folder: str | os.PathLike, files: Mapping[str, bytes]) -> None:
    """Write files that belong together into a folder, which is made: all of them, or where one has no room none.

    Raises:
        UsageError: as `write_atomically`, or the folder cannot be made.
    """
    folder = Path(folder)
    partials = {name: beside(folder / name, "partial") for name in files}
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with _writing(folder, partials.values()):
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in files.items():
                _write(partials[name], data)
            for name, partial in partials.items():
                partial.replace(folder / name)
    except UsageError:
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()
        raise


@contextlib.contextmanager
def _writing(path: Path, partials: Iterable[Path]) -> Iterator[None]:
    """Flush the directory of what was written inside; where that fails remove what there is of it, and say so."""
    try:
        try:
            yield
        except OSError:
            for partial in partials:
                with contextlib.suppress(OSError):
                    partial.unlink()
            raise
        _flush_directory(path if path.is_dir() else path.parent)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}", page="program-files") from error


def _write(path: Path, data: bytes | mmap.mmap) -> None:
    """A new file with these bytes on the disk."""
    path.unlink(missing_ok=True)
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
    except OSError as error:
        # Some file systems (FAT on a card, network drives) do not know how to flush a directory.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def check_fetched(path: Path) -> None:
    """Refuse what Git LFS leaves in a clone in the place of a file. What cannot be read is left to who opens it.

    Raises:
        UsageError: it is such a pointer.
    """
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            raise UsageError(
                f"{path} is a pointer of Git LFS and not the file itself: run `git lfs pull` in its folder",
                page="models",
            )
