"""Flatbuffer data buffers: one, 16-byte aligned, for each different content."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping

import flatbuffers
import numpy as np

from converter.ir import INT4, stored_bytes
from converter.program.flatbuffer import schema
from converter.support.collecting import give_back

#: How much of an array is put in order at once.
_PIECE = 1 << 22
#: After so many bytes that are in the file, the memory of what they were made of is given back.
_GIVEN_BACK = 1 << 24
#: Bytes at each end that are looked at to tell contents apart.
_GLANCE = 1 << 10
_NOTHING = np.zeros(0, np.uint8)
#: Changes a finished file in place; it is told where the buffer begins that it is for.
Finish = Callable[[memoryview, int], None]


class Buffers:
    """Collects data, then writes it. Buffer 0 is the empty one that all run-time tensors share.

    Arrays stay where they are, also those that are views of others, until they are written into the file.

    Attributes:
        nbytes: how much they take in a file, at most.
        starts: where each begins in the file that was made.
    """

    def __init__(self) -> None:
        self._data: list[np.ndarray] = [_NOTHING]
        self._alike: dict[bytes, list[int]] = {}  # by what is seen at a glance
        self._digests: dict[int, bytes] = {}
        self._places: dict[tuple, int] = {}  # where what is kept lies, and how: a weight is added often
        self._vectors: list[int] = []
        self.nbytes = 0
        self.starts: list[int] = []

    def add(self, data: bytes | np.ndarray) -> int:
        """Return the index of the buffer that holds this content."""
        array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        place = _place(array)
        if place in self._places:
            return self._places[place]
        alike = self._alike.setdefault(_glance(array), [])
        digest = _digest(array) if alike else b""
        for number in alike:
            if self._digest(number) == digest:
                return number
        alike.append(len(self._data))
        self._places[place] = len(self._data)
        self._data.append(array)
        self.nbytes += _nbytes(array) + 2 * schema.ALIGNMENT
        return self._places[place]

    def find(self, array: np.ndarray) -> int | None:
        """Return the index of the buffer that holds this content; None where none does."""
        alike = self._alike.get(_glance(array), [])
        digest = _digest(array) if alike else b""
        return next((number for number in alike if self._digest(number) == digest), None)

    def _digest(self, number: int) -> bytes:
        if number not in self._digests:
            self._digests[number] = _digest(self._data[number])
        return self._digests[number]

    def write(self, builder: flatbuffers.Builder) -> list[int]:
        """Writes tables of all, and room for their data; returns the offsets of the Buffer tables by index."""
        self._vectors = [schema.aligned_space(builder, _nbytes(array)) for array in self._data[1:]]
        return [schema.table(builder, "Buffer"), *(schema.table(builder, "Buffer", Data=v) for v in self._vectors)]

    def number(self, array: np.ndarray) -> int | None:
        """Return the index of the buffer that holds this array or what lies in the same place.

        None for one that was not added.
        """
        return self._places.get(_place(array))

    def file(self, builder: flatbuffers.Builder, finish: Mapping[int, Finish] | None = None) -> bytes:
        """Return what was built, with the data in its room. Each array is let go of when it is in the file.

        `finish` writes what depends on the whole file, by the index of the buffer.
        """
        built, end = memoryview(builder.Bytes)[builder.Head() :], 0
        # A vector begins with its length; its place counts from the end of the file.
        self.starts = [0, *(len(built) - vector + 4 for vector in self._vectors)]
        file = io.BytesIO()  # it grows where it lies, and gives what it holds without copying it
        given_back = 0
        for number in sorted(range(1, len(self._data)), key=self.starts.__getitem__):
            file.write(built[end : self.starts[number]])
            for piece in _pieces(self._data[number]):
                file.write(piece)
            end = file.tell()
            self._data[number] = _NOTHING
            if end - given_back > _GIVEN_BACK:
                give_back()
                given_back = end
        file.write(built[end:])
        for number, write in (finish or {}).items():
            with file.getbuffer() as whole:
                write(whole, self.starts[number])
        return file.getvalue()


def _nbytes(array: np.ndarray) -> int:
    return stored_bytes(array.size, array.dtype)


def _place(array: np.ndarray) -> tuple:
    """Return what two arrays have in common only if they are the same bytes in the same order."""
    start = array.__array_interface__["data"][0]
    if array.flags.c_contiguous:
        return start, array.nbytes
    return start, array.nbytes, array.shape, array.strides


def _glance(array: np.ndarray) -> bytes:
    """Return what equal contents share, and different ones hardly ever: their size, and some bytes of each."""
    elements = _GLANCE // array.itemsize
    parts = (array.flat[:elements], array.flat[-elements:]) if array.size > 2 * elements else (array,)
    return b"".join([array.nbytes.to_bytes(8, "little"), *(piece for part in parts for piece in _pieces(part))])


def _digest(array: np.ndarray) -> bytes:
    digest = hashlib.sha256()
    for piece in _pieces(array):
        digest.update(piece)
    return digest.digest()


def _pieces(array: np.ndarray) -> Iterator[memoryview]:
    """Yield the bytes of an array in the order of its indices, as files have them.

    A view is copied a piece at a time.
    """
    if array.dtype == INT4:
        flat = array.reshape(-1).view(np.uint8)
        for i in range(0, flat.size, _PIECE):
            yield schema.in_pairs(flat[i : i + _PIECE]).data
        return
    stored = array.dtype.newbyteorder("<")
    if array.flags.c_contiguous and array.dtype == stored:
        yield array.reshape(-1).view(np.uint8).data
        return
    rows = max(1, _PIECE * len(array) // array.nbytes) if array.nbytes else 1
    for i in range(0, len(array), rows):
        yield np.ascontiguousarray(array[i : i + rows], stored).reshape(-1).view(np.uint8).data
