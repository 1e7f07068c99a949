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
        self.nbytes = 0

    def add(self, data: bytes | np.ndarray) -> int:
        """Index of the buffer that holds this content."""
        if isinstance(data, np.ndarray):
            little_endian = data.astype(data.dtype.newbyteorder("<"), copy=False)
            view = np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8).data
        else:
            view = memoryview(data)
        digest = hashlib.sha256(view).digest()
        if digest not in self._indices:
            self._indices[digest] = len(self._data)
            self._data.append(view)
            self.nbytes += len(view) + 2 * schema.ALIGNMENT
        return self._indices[digest]

    def write(self, builder: flatbuffers.Builder) -> list[int]:
        """Writes all; returns the offsets of the Buffer tables by index."""
        vectors = [schema.aligned_bytes(builder, view) for view in self._data[1:]]
        return [schema.table(builder, "Buffer"), *(schema.table(builder, "Buffer", Data=v) for v in vectors)]
