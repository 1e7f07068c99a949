"""Assembly of an inference model from a program file and a state, piece of bytes by piece.

The metadata entry `pocketune.inference` is zlib-compressed: a line of JSON, the parts of the model's file in order,
then the bytes of its own, which are the tables of the flatbuffer. All else is in the program already, as a buffer, or
in the state, or computed from them: a phone exports the model of the user without a writer of flatbuffers, and no
weight is stored twice.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Literal

import numpy as np

from converter.program.file import ProgramFile
from converter.program.flatbuffer.metadata import read_buffers
from converter.program.manifest import INFERENCE
from converter.support.errors import UsageError
from converter.support.records import decode

#: Bytes of the largest entry that is read: the tables of a model of a hundred thousand operators are smaller.
_MOST = 1 << 28

#: All that is known, and the file, are each at most so many times as large as the program and the state.
TIMES = 4

#: Axes of a tensor that is known.
MOST_AXES = 8


@dataclass(frozen=True)
class AssembledPart:
    """A piece of the model's file.

    Attributes:
        source: where its bytes come from: `own`, the next ones of the entry; `buffer`, a buffer of the program;
            `half`, the numbers of one as float16, which holds them exactly; `state`, a tensor of the state (of one in
            int8 the numbers that it stands for); `merged`, a weight into which its adapter was merged, as the program
            stores it; `weight`, one that trained, as the model has it; `known`, a tensor that is computed.
        nbytes: how many.
        number: of the buffer, or the place among those that are known.
        name: of the tensor or weight.
    """

    source: Literal["own", "buffer", "half", "state", "merged", "weight", "known"]
    nbytes: int
    number: int = 0
    name: str = ""


#: Where a tensor that is known at export comes from; see `Known`.
Source = Literal["buffer", "state", "merged", "add", "multiply", "reshape"]


@dataclass(frozen=True)
class Known:
    """A float32 tensor that is known at export: one that is stored, or one that is computed from earlier ones.

    Attributes:
        source: as of a part; or `add`, `multiply`, of a first tensor of as many elements and a second one whose axes,
            counted from the last, are as long as its or 1; or `reshape`.
        shape: its axes; the elements are in row-major order.
        number, name: as of a part.
        operands: the places of the earlier ones.
    """

    source: Source
    shape: tuple[int, ...]
    number: int = 0
    name: str = ""
    operands: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Contents:
    parts: tuple[AssembledPart, ...]
    known: tuple[Known, ...] = ()


def pack(parts: Sequence[AssembledPart], known: Sequence[Known], own: bytes) -> bytes:
    """Return the entry."""
    text = json.dumps(asdict(_Contents(tuple(parts), tuple(known))), separators=(",", ":")).encode()
    return zlib.compress(text + b"\n" + own, 9)


def assemble(
    program: ProgramFile,
    state: Mapping[str, np.ndarray],
    merged: Mapping[str, np.ndarray],
    weights: Callable[[], Mapping[str, np.ndarray]],
) -> bytes:
    """Return the plain model of a program.

    Args:
        program: what was trained.
        state: its tensors by name, checked; those in int8 as the numbers that they stand for.
        merged: weights with their adapters by name, as the program stores them.
        weights: gives what trained, with adapters merged, as the model has it.

    Raises:
        UsageError: the program has no such entry, or one that makes no sense.
    """
    contents, own = _unpack(program)
    buffers = read_buffers(program.data)
    most = TIMES * (len(program.data) + sum(array.nbytes for array in state.values()))
    trained = weights() if any(part.source == "weight" for part in contents.parts) else {}

    def stored(part: AssembledPart | Known) -> memoryview | bytes:
        if part.source in ("buffer", "half"):
            data = buffers[part.number] if 0 <= part.number < len(buffers) else b""
            return data if part.source == "buffer" else _half(data)
        return _bytes({"state": state, "merged": merged, "weight": trained}[part.source].get(part.name))

    known = _computed(contents.known, stored, most)
    read = {place for record in contents.known for place in record.operands}
    read.update(part.number for part in contents.parts if part.source == "known")
    if unread := set(range(len(known))) - read:
        raise _damaged(f"nobody reads what is known at {min(unread)}")
    pieces, nbytes = list[memoryview | bytes](), 0
    for part in contents.parts:
        nbytes = _within(most, nbytes + part.nbytes)
        if part.source == "own":
            piece: memoryview | bytes = own[: part.nbytes]
            own = own[part.nbytes :]
        elif part.source == "known":
            piece = _bytes(known[part.number]) if 0 <= part.number < len(known) else b""
        else:
            piece = stored(part)
        if len(piece) != part.nbytes:
            raise _damaged(f"it names {part.nbytes} bytes ({part.source} {part.name or part.number}), not {len(piece)}")
        pieces.append(piece)
    if len(own):
        raise _damaged(f"{len(own)} bytes are left over")
    return b"".join(pieces)


_ARITHMETIC = {"add": np.add, "multiply": np.multiply}
#: Of each of them; the others are read.
_OPERANDS = {"add": 2, "multiply": 2, "reshape": 1}


def _computed(known: Sequence[Known], stored: Callable[[Known], memoryview | bytes], most: int) -> list[np.ndarray]:
    """Return the tensors that are known, float32, in at most so many bytes."""
    made, nbytes = list[np.ndarray](), 0
    for record in known:
        if len(record.shape) > MOST_AXES:
            raise _damaged(f"{record.source} of {len(record.shape)} axes")
        operands = [made[place] for place in record.operands if 0 <= place < len(made)]
        if len(operands) != len(record.operands) or len(operands) != _OPERANDS.get(record.source, 0):
            raise _damaged(f"{record.source} of {record.operands}")
        try:
            array = operands[0] if operands else np.frombuffer(stored(record), "<f4")
            if array.size != prod(record.shape) or min(record.shape, default=0) < 0:
                raise _damaged(f"{record.source} has {array.size} elements, not {list(record.shape)}")
            nbytes = _within(most, nbytes + array.nbytes)
            array = array.reshape(record.shape)
            if record.source in _ARITHMETIC:
                array = _ARITHMETIC[record.source](array, np.broadcast_to(operands[1], record.shape))
        except ValueError as error:
            raise _damaged(str(error)) from None
        made.append(array)
    return made


def _within(most: int, nbytes: int) -> int:
    """Return the bytes of what is made, if they are no more."""
    if nbytes > most:
        raise _damaged(f"it makes {nbytes} bytes or more, of at most {most}")
    return nbytes


def _unpack(program: ProgramFile) -> tuple[_Contents, memoryview]:
    packed = program.metadata.get(INFERENCE)
    if packed is None:
        raise UsageError(
            "this program has no signature 'infer' to export: build it with signatures=('train', 'infer')",
            page="program-files",
        )
    inflating = zlib.decompressobj()
    try:
        data = inflating.decompress(packed, _MOST)
        if not inflating.eof:
            raise _damaged("it is cut short or too large")
        text, _, _ = data.partition(b"\n")
        contents = decode(_Contents, json.loads(text), INFERENCE)
    except (zlib.error, ValueError, RecursionError) as error:
        raise _damaged(str(error)) from None
    return contents, memoryview(data)[len(text) + 1 :]


def is_of_file(program: ProgramFile) -> bool:
    """Return whether the plain model of a program is the author's file, with what trained in it."""
    return any(part.source == "weight" for part in _unpack(program)[0].parts)


def _half(data: memoryview | bytes) -> bytes:
    """Return float32 numbers as float16."""
    if len(data) % 4:
        raise _damaged(f"{len(data)} bytes are no float32 numbers")
    with np.errstate(over="ignore"):
        return np.frombuffer(data, "<f4").astype("<f2").tobytes()


def _bytes(array: np.ndarray | None) -> bytes:
    """Little-endian; nothing of a tensor that is missing."""
    if array is None:
        return b""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _damaged(problem: str) -> UsageError:
    return UsageError(f"its metadata entry {INFERENCE!r} is damaged ({problem}): build it again", page="program-files")
