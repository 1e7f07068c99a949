"""Flatbuffer data buffers: one, 16-byte aligned, for each different content.

A flatbuffer ends at 2 GiB. Buffers that it has no room for lie after it, and the schema's `offset` and `size` say
where; so do those that are a part of another, as the pieces of a matrix that is read whole elsewhere. Of metadata the
runtime sees what the flatbuffer holds alone.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

import flatbuffers
import numpy as np

from converter.ir import INT4, stored_bytes
from converter.program.flatbuffer import schema
from converter.support.collecting import give_back
from converter.support.files import Mapped

#: How much of an array is put in order at once.
_PIECE = 1 << 22
#: After so many bytes that are in the file, the memory of what they were made of is given back.
_GIVEN_BACK = 1 << 24
#: Bytes at each end that are looked at to tell contents apart.
_GLANCE = 1 << 10
_NOTHING = np.zeros(0, np.uint8)
#: Bytes of the smallest array that may lie behind the flatbuffer, and how these lie there.
_LEAST_OUTSIDE, _ALIGNMENT_OUTSIDE = 1 << 16, 64
#: A place that is known when the flatbuffer is written; fields of 0 would be left out.
_TO_COME = 2
#: Changes a finished file in place; it is told where the buffer begins that it is for.
Finish = Callable[[memoryview, int], None]


class Buffers:
    """Collects data, then writes it. Buffer 0 is the empty one that all run-time tensors share.

    Arrays stay where they are, also those that are views of others, until they are written into the file.

    Attributes:
        nbytes: how much they take in a file, at most.
        starts: where each begins in the file that was made.
    """

    def __init__(self, shares: bool = False) -> None:
        """`shares`: whether one may be a part of another, which old runtimes do not know."""
        self._shares = shares
        self._data: list[np.ndarray] = [_NOTHING]
        self._alike: dict[bytes, list[int]] = {}  # by what is seen at a glance
        self._digests: dict[int, bytes] = {}
        self._places: dict[tuple, int] = {}  # where what is kept lies, and how: a weight is added often
        self._vectors: dict[int, int] = {}
        self._inside: set[int] = set()  # what may not lie behind the flatbuffer
        self._outside: dict[int, tuple[int, int]] = {}  # in which other one a buffer lies, and where
        self.nbytes = 0
        self.starts: list[int] = []

    def add_entry(self, data: bytes | np.ndarray) -> int:
        """Return the index of the buffer that holds this content as metadata, in the flatbuffer itself."""
        number = self.add(data)
        self._inside.add(number)
        return number

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
        self._outside = self._chosen_outside()
        self._vectors = {
            number: schema.aligned_space(builder, _nbytes(array))
            for number, array in enumerate(self._data)
            if number and number not in self._outside
        }
        return [self._table(builder, number) for number in range(len(self._data))]

    def _table(self, builder: flatbuffers.Builder, number: int) -> int:
        if number in self._vectors:
            return schema.table(builder, "Buffer", Data=self._vectors[number])
        if number in self._outside:
            return schema.table(builder, "Buffer", Offset=_TO_COME, Size=_nbytes(self._data[number]))
        return schema.table(builder, "Buffer")

    def _chosen_outside(self) -> dict[int, tuple[int, int]]:
        """Return the buffers after the flatbuffer: in which of them each lies, itself or another, and where."""
        parts = parts_of(self._data) if self._shares else {}
        outside = {number: (number, 0) for number, _ in parts.values()}
        if self.nbytes > schema.LARGEST_FLATBUFFER:
            outside |= {n: (n, 0) for n, array in enumerate(self._data) if _nbytes(array) >= _LEAST_OUTSIDE}
        return {number: place for number, place in (outside | parts).items() if number not in self._inside}

    def number(self, array: np.ndarray) -> int | None:
        """Return the index of the buffer that holds this array or what lies in the same place.

        None for one that was not added.
        """
        return self._places.get(_place(array))

    def file(self, builder: flatbuffers.Builder, finish: Mapping[int, Finish] | None = None) -> bytes:
        """Return what was built, with the data in its room. Each array is let go of when it is in the file.

        `finish` writes what depends on the whole file, by the index of the buffer.
        """
        file = io.BytesIO()  # it grows where it lies, and gives what it holds without copying it
        self._write(builder, file)
        for number, write in (finish or {}).items():
            with file.getbuffer() as whole:
                write(whole, self.starts[number])
        return file.getvalue()

    def file_on_disk(self, builder: flatbuffers.Builder, finish: Mapping[int, Finish]) -> Mapped:
        """Return the same as a file without a name, mapped; it ends with what is returned.

        Raises:
            OSError: there is no room for it where temporary files are.
        """
        with tempfile.TemporaryFile() as file:
            self._write(builder, file)
            file.flush()
            for number, write in finish.items():
                with mmap.mmap(file.fileno(), 0) as mapped, memoryview(mapped) as whole:
                    write(whole, self.starts[number])
            return Mapped.of(file.fileno())

    def _write(self, builder: flatbuffers.Builder, file: BinaryIO) -> None:
        built = memoryview(builder.Bytes)[builder.Head() :]
        self._place(built)
        end = given_back = 0
        for number in sorted((*self._vectors, *self._hosts()), key=self.starts.__getitem__):
            file.write(built[end : self.starts[number]])
            file.write(bytes(max(0, self.starts[number] - max(end, len(built)))))
            for piece in _pieces(self._data[number]):
                file.write(piece)
            end = self.starts[number] + _nbytes(self._data[number])
            self._data[number] = _NOTHING
            if end - given_back > _GIVEN_BACK:
                give_back()
                given_back = end
        file.write(built[end:])

    def _hosts(self) -> list[int]:
        return [number for number, (host, _) in self._outside.items() if number == host]

    def _place(self, built: memoryview) -> None:
        """Find where all begin, and write into the tables where those after the flatbuffer do."""
        # A vector begins with its length; its place counts from the end of the flatbuffer.
        starts = {number: len(built) - vector + 4 for number, vector in self._vectors.items()}
        end = len(built)
        for number in self._hosts():
            starts[number] = end + -end % _ALIGNMENT_OUTSIDE
            end = starts[number] + _nbytes(self._data[number])
        starts |= {number: starts[host] + place for number, (host, place) in self._outside.items()}
        schema.set_offsets(built, {number: starts[number] for number in self._outside})
        self.starts = [starts.get(number, 0) for number in range(len(self._data))]


def parts_of(data: Sequence[np.ndarray]) -> dict[int, tuple[int, int]]:
    """Return which arrays are a part of another in memory: that one's number, and where they begin in its bytes."""
    found: dict[int, tuple[int, int]] = {}
    host, begin, end = 0, 0, 0
    large = [n for n, array in enumerate(data) if array.flags.c_contiguous and _nbytes(array) >= _LEAST_OUTSIDE]
    for number in sorted(large, key=lambda n: (_address(data[n]), -data[n].nbytes)):
        start, array = _address(data[number]), data[number]
        if start + array.nbytes > end:
            host, begin, end = number, start, start + array.nbytes
        elif array.dtype == data[host].dtype:
            elements, odd = divmod(start - begin, array.itemsize)
            place = stored_bytes(elements, array.dtype)
            if not (odd or place % schema.ALIGNMENT or stored_bytes(2, array.dtype) * elements != 2 * place):
                found[number] = host, place
    return found


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _nbytes(array: np.ndarray) -> int:
    return stored_bytes(array.size, array.dtype)


def _place(array: np.ndarray) -> tuple:
    """Return what two arrays have in common only if they are the same bytes in the same order."""
    start = _address(array)
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
