"""Metadata reader: what travels in a `.tflite` besides the graphs; needs no LiteRT."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence

import flatbuffers
from flatbuffers import number_types

from converter.program.flatbuffer.damage import DAMAGED
from converter.support.errors import UsageError

# Places of fields in the schema's tables (Model, Buffer, Metadata); fixed for all time by the format.
_MODEL_SUBGRAPHS, _MODEL_BUFFERS, _MODEL_METADATA, _MODEL_SIGNATURES = 2, 4, 6, 7
_BUFFER_DATA, _BUFFER_OFFSET, _BUFFER_SIZE = 0, 1, 2
_METADATA_NAME, _METADATA_BUFFER = 0, 1

#: What stands before a vector, and between a field and what it points to.
_LENGTH = struct.Struct("<I")
#: Where the data of a buffer begins, and where a file ends at last: offsets are signed 32-bit numbers.
_ALIGNMENT, _LARGEST = 16, 2**31 - 1

#: The account of a build (`converter.driver.build_report`), a large entry.
ACCOUNT = "pocketune.account"
#: An entry that stands for a buffer: its number.
REFERENCE = struct.Struct("<I")


def read_metadata(data: bytes | mmap.mmap, references: Sequence[str] = ()) -> dict[str, memoryview]:
    """Return the metadata entries of a TFLite file by name, views of its bytes.

    Args:
        data: the file.
        references: entries whose names begin so hold the number of the buffer that is meant, as `emit` writes them.

    Raises:
        UsageError: it is no TFLite model, or it is cut short.
    """
    if data[4:8] != b"TFL3":
        raise UsageError("the model is not a TFLite model", page="program-files")
    try:
        return _entries(data, tuple(references))
    except DAMAGED:
        raise UsageError("the model is damaged or cut short: build or copy it again", page="program-files") from None


def read_buffers(data: bytes | mmap.mmap) -> list[memoryview]:
    """Return the buffers of a TFLite file whose metadata was read, by number."""
    return [_contents(buffer) for buffer in _tables(_root(data), _MODEL_BUFFERS)]


def runs_bodies(data: bytes | mmap.mmap) -> bool:
    """Return whether a TFLite file whose metadata was read has graphs without a signature, as steps of loops are."""
    subgraphs, signatures = (sum(1 for _ in _tables(_root(data), v)) for v in (_MODEL_SUBGRAPHS, _MODEL_SIGNATURES))
    return subgraphs > signatures


def with_entry(data: bytes, name: str, content: bytes) -> bytes:
    """Return the file with other content of a metadata entry that it has.

    It is appended, and the buffer's offset points there; what it held stays where it was, unless it was appended too.

    Raises:
        UsageError: there is no such entry, or the file would be larger than a flatbuffer can be.
    """
    buffers = list(_tables(_root(data), _MODEL_BUFFERS))
    entries = _tables(_root(data), _MODEL_METADATA)
    found = [_uint32(e, _METADATA_BUFFER) for e in entries if bytes(_bytes(e, _METADATA_NAME)).decode() == name]
    if not found:
        raise UsageError(f"the model has no metadata entry {name!r}: build it again", page="program-files")
    buffer = buffers[found[0]]
    place = buffer.Pos + _field(buffer, _BUFFER_DATA)
    start = buffer.Vector(_field(buffer, _BUFFER_DATA))
    end = start + buffer.VectorLen(_field(buffer, _BUFFER_DATA))
    kept = data[: start - _LENGTH.size] if end == len(data) else data
    padding = bytes(-(len(kept) + _LENGTH.size) % _ALIGNMENT)
    vector = len(kept) + len(padding)
    changed = bytearray(b"".join((kept, padding, _LENGTH.pack(len(content)), content)))
    if len(changed) > _LARGEST:
        raise UsageError("the model would be larger than 2 GiB, where a .tflite ends", page="program-files")
    _LENGTH.pack_into(changed, place, vector - place)
    return bytes(changed)


def _root(data: bytes | mmap.mmap) -> flatbuffers.table.Table:
    return flatbuffers.table.Table(data, flatbuffers.encode.Get(flatbuffers.packer.uoffset, data, 0))


def _entries(data: bytes | mmap.mmap, references: tuple[str, ...]) -> dict[str, memoryview]:
    buffers = read_buffers(data)
    entries = {
        bytes(_bytes(entry, _METADATA_NAME)).decode(): buffers[_uint32(entry, _METADATA_BUFFER)]
        for entry in _tables(_root(data), _MODEL_METADATA)
    }
    for name in entries:
        if name.startswith(references):
            entries[name] = buffers[REFERENCE.unpack(entries[name])[0]]
    return entries


def _field(table: flatbuffers.table.Table, place: int) -> int:
    return table.Offset(4 + 2 * place)


def _tables(table: flatbuffers.table.Table, place: int) -> Iterator[flatbuffers.table.Table]:
    """Yield the tables of a vector field; none when it is absent."""
    if field := _field(table, place):
        start = table.Vector(field)
        for i in range(table.VectorLen(field)):
            yield flatbuffers.table.Table(table.Bytes, table.Indirect(start + 4 * i))


def _contents(buffer: flatbuffers.table.Table) -> memoryview:
    """Return the bytes of a buffer, in the flatbuffer or after it. Raises IndexError when they are not in the file."""
    places = [_field(buffer, place) for place in (_BUFFER_OFFSET, _BUFFER_SIZE)]
    if not all(places):
        return _bytes(buffer, _BUFFER_DATA)
    start, length = (buffer.Get(number_types.Uint64Flags, buffer.Pos + place) for place in places)
    if start + length > len(buffer.Bytes):
        raise IndexError
    return memoryview(buffer.Bytes)[start : start + length]


def _bytes(table: flatbuffers.table.Table, place: int) -> memoryview:
    """Return a vector of bytes or a string. Raises IndexError when it does not lie inside the file."""
    field = _field(table, place)
    if not field:
        return memoryview(b"")
    start, length = table.Vector(field), table.VectorLen(field)
    if start + length > len(table.Bytes):
        raise IndexError("vector leaves the file")
    return memoryview(table.Bytes)[start : start + length]


def _uint32(table: flatbuffers.table.Table, place: int) -> int:
    field = _field(table, place)
    return table.Get(number_types.Uint32Flags, field + table.Pos) if field else 0
