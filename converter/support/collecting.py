"""Garbage collection during a build, memory returned to the system, and temporary files for large arrays."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from converter.support.errors import UsageError
from converter.support.words import size

_on_disk: WeakSet[mmap.mmap] = WeakSet()


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside, Python does not look for garbage in circles.

    Graphs are many small objects that live long and form no circles: to go through all of them again and again takes a
    fifth of the time of a build, and finds nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def give_back() -> None:
    """Gives freed memory back to the system, which glibc does on its own only where nothing lies after it.

    So it does with pages of `room_on_disk`, until they are read again.
    """
    let_go()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def no_room(nbytes: int, error: OSError) -> UsageError:
    """Return the error of a disk that is full while a program is built."""
    return UsageError(
        f"no room for {size(nbytes)} where temporary files are, {tempfile.gettempdir()}: {error.strerror or error}. "
        "Set TMPDIR to a folder with more",
        page="file-size",
    )


def room_on_disk(nbytes: int) -> mmap.mmap:
    """Return so many bytes to be filled, in a temporary file that ends with them.

    Raises:
        UsageError: there is no room where temporary files are.
    """
    try:
        with tempfile.TemporaryFile() as file:
            # Of a file that is only said to be so long, pages would be missing when they are written.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, nbytes)
            else:
                file.truncate(nbytes)
            room = mmap.mmap(file.fileno(), nbytes)
    except OSError as error:
        raise no_room(nbytes, error) from error
    _on_disk.add(room)
    return room


def let_go() -> None:
    """Let go of the pages of `room_on_disk`: the system writes what is there, and reads it again where it is needed."""
    for room in list(_on_disk):
        room.madvise(mmap.MADV_DONTNEED)
