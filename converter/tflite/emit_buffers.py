"""The data of a file: one 16-byte aligned buffer for each different content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import flatbuffers
import numpy as np

from converter.tflite import schema


class Buffers:
    """Collects data, then writes it. Buffer 0 is the empty one that all run-time tensors share."""

    def __init__(self) -> None:
        self._data: list[memoryview] = [memoryview(b"")]
        self._indices: dict[bytes, int] = {}
        self._places: dict[tuple[int, int], int] = {}  # address and bytes of what is kept: a weight is added often
        self._vectors: list[int] = []
        self.nbytes = 0

    def add(self, data: bytes | np.ndarray) -> int:
        """Index of the buffer that holds this content."""
        if isinstance(data, np.ndarray):
            little_endian = data.astype(data.dtype.newbyteorder("<"), copy=False)
            content = np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8)
        else:
            content = np.frombuffer(data, np.uint8)
        place = content.__array_interface__["data"][0], content.size
        if place in self._places:
            return self._places[place]
        digest = hashlib.sha256(content.data).digest()
        if digest not in self._indices:
            self._indices[digest] = self._places[place] = len(self._data)
            self._data.append(content.data)
            self.nbytes += content.size + 2 * schema.ALIGNMENT
        return self._indices[digest]

    def write(self, builder: flatbuffers.Builder) -> list[int]:
        """Writes tables of all, and room for their data; returns the offsets of the Buffer tables by index."""
        self._vectors = [schema.aligned_space(builder, len(view)) for view in self._data[1:]]
        return [schema.table(builder, "Buffer"), *(schema.table(builder, "Buffer", Data=v) for v in self._vectors)]

    def file(self, builder: flatbuffers.Builder, join: Callable[[Sequence[memoryview]], bytes] = b"".join) -> bytes:
        """What was built, with the data in its room: `join` makes it of the pieces, of which each buffer is one."""
        built, end = memoryview(builder.Bytes)[builder.Head() :], 0
        # A vector begins with its length; its place counts from the end of the file.
        starts = (len(built) - vector + 4 for vector in self._vectors)
        pieces: list[memoryview] = []
        for start, data in sorted(zip(starts, self._data[1:], strict=True), key=lambda place: place[0]):
            pieces += [built[end:start], data]
            end = start + len(data)
        return join([*pieces, built[end:]])
