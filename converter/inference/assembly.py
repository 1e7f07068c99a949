"""How a program file and a state make a plain inference model: pieces of bytes, one behind the other.

The metadata entry `pocketune.inference` is zlib-compressed: a line of JSON, the parts of the model's file in order,
then the bytes of its own, which are the tables of the flatbuffer. All else is in the program already, as a buffer, or
in the state: a phone exports the model of the person without a writer of flatbuffers, and no weight is stored twice.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from converter.errors import UsageError
from converter.program.file import ProgramFile
from converter.program.manifest import INFERENCE
from converter.program.records import decode
from converter.tflite.metadata import read_buffers

#: Bytes of the largest entry that is read: the tables of a model of a hundred thousand operators are smaller.
_MOST = 1 << 28


@dataclass(frozen=True)
class Part:
    """A piece of the model's file.

    Attributes:
        source: where its bytes come from: `own`, the next ones of the entry; `buffer`, a buffer of the program;
            `state`, a tensor of the state; `merged`, a weight into which its adapter was merged.
        nbytes: how many.
        number: of the buffer.
        name: of the tensor or weight.
    """

    source: Literal["own", "buffer", "state", "merged"]
    nbytes: int
    number: int = 0
    name: str = ""


@dataclass(frozen=True)
class _Contents:
    parts: tuple[Part, ...]


def pack(parts: Sequence[Part], own: bytes) -> bytes:
    """The entry."""
    text = json.dumps(asdict(_Contents(tuple(parts))), separators=(",", ":")).encode()
    return zlib.compress(text + b"\n" + own, 9)


def assemble(program: ProgramFile, state: Mapping[str, np.ndarray], merged: Mapping[str, np.ndarray]) -> bytes:
    """The plain model of a program.

    Args:
        program: what was trained.
        state: its tensors by name, checked.
        merged: weights with their adapters by name, as the program stores them.

    Raises:
        UsageError: the program has no such entry, or one that makes no sense.
    """
    parts, own = _unpack(program)
    buffers = read_buffers(program.data)
    pieces = list[memoryview | bytes]()
    for part in parts:
        if part.source == "own":
            piece: memoryview | bytes = own[: part.nbytes]
            own = own[part.nbytes :]
        elif part.source == "buffer":
            piece = buffers[part.number] if 0 <= part.number < len(buffers) else b""
        else:
            piece = _bytes((state if part.source == "state" else merged).get(part.name))
        if len(piece) != part.nbytes:
            raise _damaged(f"it names {part.nbytes} bytes ({part.source} {part.name or part.number}), not {len(piece)}")
        pieces.append(piece)
    if len(own):
        raise _damaged(f"{len(own)} bytes are left over")
    return b"".join(pieces)


def _unpack(program: ProgramFile) -> tuple[tuple[Part, ...], memoryview]:
    packed = program.metadata.get(INFERENCE)
    if packed is None:
        raise UsageError("this program has no signature 'infer' to export: build it with signatures=('train', 'infer')")
    inflating = zlib.decompressobj()
    try:
        data = inflating.decompress(packed, _MOST)
        if not inflating.eof:
            raise _damaged("it is cut short or too large")
        text, _, _ = data.partition(b"\n")
        contents = decode(_Contents, json.loads(text), INFERENCE)
    except (zlib.error, ValueError, RecursionError) as error:
        raise _damaged(str(error)) from None
    return contents.parts, memoryview(data)[len(text) + 1 :]


def _bytes(array: np.ndarray | None) -> bytes:
    """Little-endian; nothing of a tensor that is missing."""
    if array is None:
        return b""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _damaged(problem: str) -> UsageError:
    return UsageError(f"its metadata entry {INFERENCE!r} is damaged ({problem}): build it again")
