"""Buffers of a file that is assembled at export: for each the part that it is, a hole where others hold the bytes."""

from __future__ import annotations

import flatbuffers
import numpy as np

from converter.ir import stored_bytes
from converter.program.assembly import AssembledPart
from converter.program.flatbuffer import schema
from converter.program.flatbuffer.buffers import Buffers


class PartBuffers(Buffers):
    """Buffers of a plain model, which record the part that fills each of them instead of its data."""

    def __init__(self, program: Buffers) -> None:
        super().__init__()
        self._program = program
        self._parts: list[AssembledPart] = []
        self._numbers: dict[int, int] = {}  # by the number in the program
        self._holes: dict[int, tuple[np.ndarray, AssembledPart]] = {}  # by the identity of the array, which is kept

    def expect(self, hole: np.ndarray, part: AssembledPart) -> None:
        """What the array stands for that `add` will be given: a buffer of its own, never shared with an equal one."""
        self._holes[id(hole)] = hole, part

    def add(self, data: bytes | np.ndarray) -> int:
        if (hole := self._holes.get(id(data))) is not None:
            return self._append(hole[1])
        number = self._program.add(data)
        if number not in self._numbers:
            nbytes = stored_bytes(data.size, data.dtype) if isinstance(data, np.ndarray) else len(data)
            self._numbers[number] = self._append(AssembledPart("buffer", nbytes, number=number))
        return self._numbers[number]

    def add_half(self, array: np.ndarray) -> int:
        """Return the index of the buffer that holds float16 numbers, which the program may hold as float32."""
        if self._program.find(array) is not None:
            return self.add(array)
        number = self._program.find(array.astype("<f4"))
        if number is None or not array.size:
            return self.add(array.view(np.uint8))
        if -number not in self._numbers:
            self._numbers[-number] = self._append(AssembledPart("half", array.nbytes, number=number))
        return self._numbers[-number]

    def _append(self, part: AssembledPart) -> int:
        self._parts.append(part)
        self.nbytes += part.nbytes + 2 * schema.ALIGNMENT
        return len(self._parts)

    def write(self, builder: flatbuffers.Builder) -> list[int]:
        self._rooms = [schema.aligned_space(builder, part.nbytes) for part in self._parts]
        return [schema.table(builder, "Buffer"), *(schema.table(builder, "Buffer", Data=v) for v in self._rooms)]

    def cut(self, file: memoryview) -> tuple[list[AssembledPart], bytes]:
        """Return the file in parts, and the bytes of those that are no buffer."""
        parts, own, end = list[AssembledPart](), list[memoryview](), 0
        # A vector begins with its length; its place counts from the end of the file.
        places = [(len(file) - vector + 4, part) for vector, part in zip(self._rooms, self._parts, strict=True)]
        for start, part in sorted(places, key=lambda place: place[0]):
            own.append(file[end:start])
            parts += [AssembledPart("own", start - end), part]
            end = start + part.nbytes
        own.append(file[end:])
        return [*parts, AssembledPart("own", len(file) - end)], b"".join(own)
