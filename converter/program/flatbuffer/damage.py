"""Damaged files: what reading one raises, and the sentence that a user is told instead."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from converter.support.errors import UsageError

#: What reading a damaged flatbuffer raises, and what its numbers make operators raise.
DAMAGED = (
    *(struct.error, IndexError, ValueError, KeyError, TypeError, AttributeError),
    *(ArithmeticError, RecursionError, MemoryError, AssertionError, StopIteration),
)


@contextmanager
def sound_tables() -> Iterator[None]:
    """Whatever is read within comes from tables of a program; its checksum says nothing of who wrote them.

    Raises:
        UsageError: they cannot be read.
    """
    try:
        yield
    except DAMAGED as error:
        raise UsageError("its tables are damaged: build or copy it again", page="program-files") from error
