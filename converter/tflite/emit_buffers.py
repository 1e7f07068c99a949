"""The data of a file: one 16-byte aligned buffer for each different content."""

from __future__ import annotations

import hashlib

import flatbuffers
import numpy as np

from converter.tflite import schema


class Buffers:
    """Collects data, then writes it. Buffer 0 is the empty one that all run-time tensors share."""

    def __init__(self) -> None:
        self._data: list[memoryview] = [memoryview(b"")]
        self._indices: dict[bytes, int] = {}
        self._places: dict[tuple[int, int], int] = {}  # address and bytes of what is kept: a weight is added often
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
        """Writes all; returns the offsets of the Buffer tables by index."""
        vectors = [schema.aligned_bytes(builder, view) for view in self._data[1:]]
        return [schema.table(builder, "Buffer"), *(schema.table(builder, "Buffer", Data=v) for v in vectors)]
