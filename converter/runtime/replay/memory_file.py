"""Replay memory's file format, the same in all languages: packing and unpacking (docs/replay-memory.md)."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Literal

import numpy as np

from converter.program.checksum import MEMORY
from converter.runtime.replay.class_tags import SIZE as TAG
from converter.runtime.replay.class_tags import UNKNOWN
from converter.runtime.replay.contents import MILLION, Contents, Keeps, Owner, Part, RowTensor, layout, row_bytes
from converter.runtime.replay.reservoir import MOST_SEEN, Reservoir
from converter.support.errors import UsageError
from converter.support.records import decode
from converter.support.strict_json import parse_json

VERSION = 2
FORMAT: Literal["pocketune-memory/2"] = "pocketune-memory/2"
#: No file is larger.
MOST_BYTES = (1 << 31) - 1
_ALIGNMENT = 64
_MAX_HEADER = 1 << 20
_FIXED = struct.Struct("<8sII")
_BODY = _FIXED.size + 32
#: What the numbers of a header may add to it as they grow.
_GROWS = 256
#: A class of a part: how many rows came, and whether it was full.
_CLASS = np.dtype([("seen", "<u4"), ("full", "<u4")])
#: Bytes of a class in all: of both parts, and its tag.
_OF_CLASS = 2 * _CLASS.itemsize + TAG


class DamagedMemory(UsageError):
    """The file is cut short, altered, or not a memory at all."""

    page = "replay-memories"


@dataclass(frozen=True)
class _Entry:
    """A part in the header."""

    row: tuple[RowTensor, ...]
    capacity: int
    rows: int


@dataclass(frozen=True)
class _Header:
    """The JSON header, its fields in order."""

    format: Literal["pocketune-memory/2"]
    program: Owner
    keeps: Keeps
    limit: int
    held_out: int
    seed: int
    random: int
    seen: int
    classes: int
    replay: _Entry
    heldout: _Entry
    sha256: str


def capacities(begun: Contents) -> tuple[int, int]:
    """Return how many rows to replay and how many held out the limit has room for.

    Args:
        begun: contents without rows and room, of the state 0 of the generator.

    Raises:
        UsageError: for none.
    """
    start = _aligned(_BODY + len(_text(begun, bytes(32))) + _GROWS)
    room = begun.limit - start - begun.classes * _OF_CLASS
    sizes = row_bytes(begun.replay.tensors), row_bytes(begun.heldout.tensors)
    aside = max(room, 0) * begun.held_out // MILLION // sizes[1]
    rows = (room - aside * sizes[1]) // sizes[0]
    if rows < 1 or (begun.held_out and not aside):
        least = start + begun.classes * _OF_CLASS + sizes[0]
        if begun.held_out:
            least = max(least + sizes[1], begun.limit - room + -(-sizes[1] * MILLION // begun.held_out))
        raise UsageError(
            f"limit: {begun.limit} bytes have no room for rows of {sizes[0]} bytes and held-out ones of {sizes[1]} "
            f"bytes: at least {least}",
            page="replay-memories",
        )
    return rows, aside


def pack(contents: Contents) -> bytes:
    """Return the bytes of the file: at most as many as its limit."""
    data = b"".join([*(_table(part) for part in (contents.replay, contents.heldout)), *contents.tags])
    data += contents.replay.rows.tobytes() + contents.heldout.rows.tobytes()
    text = _text(contents, hashlib.sha256(data).digest())
    fixed = _FIXED.pack(MEMORY, VERSION, len(text))
    padding = bytes(_aligned(_BODY + len(text)) - _BODY - len(text))
    return b"".join([fixed, hashlib.sha256(fixed + text).digest(), text, padding, data])


def unpack(data: bytes, check: Callable[[Contents], None] | None = None) -> Contents:
    """Return the contents of a file.

    Args:
        data: all of it.
        check: is told of the contents without rows before these are looked at, and may refuse them.

    Raises:
        DamagedMemory: any byte is missing, added or altered.
        UsageError: the format is of another version.
    """
    header, start = _header(data)
    replay, heldout = (Part.empty(it.row, it.capacity, header.classes) for it in (header.replay, header.heldout))
    numbers = header.limit, header.held_out, header.seed, header.random, header.seen
    contents = Contents(header.program, header.keeps, *numbers, replay, heldout, (UNKNOWN,) * header.classes)
    if check is not None:
        check(contents)
    sizes = [entry.rows * row_bytes(entry.row) for entry in (header.replay, header.heldout)]
    at = start + header.classes * _OF_CLASS
    if len(data) != at + sum(sizes):
        raise DamagedMemory("it is cut short, or bytes follow its last row")
    if hashlib.sha256(memoryview(data)[start:]).hexdigest() != header.sha256:
        raise DamagedMemory("its rows are altered")
    tables = np.frombuffer(data, _CLASS, 2 * header.classes, start).reshape(2, -1)
    tags = np.frombuffer(data, f"V{TAG}", header.classes, at - header.classes * TAG)
    filled = []
    for entry, classes, size in zip((header.replay, header.heldout), tables, sizes, strict=True):
        rows = np.frombuffer(data, layout(entry.row), entry.rows, at)
        at += size
        filled.append(_part(entry, classes, rows, header.seen))
    both = np.concatenate([part.rows["number"] for part in filled])
    if len(np.unique(both)) != len(both):
        raise DamagedMemory("a row is there twice")
    return replace(contents, replay=filled[0], heldout=filled[1], tags=tuple(tag.tobytes() for tag in tags))


def _part(entry: _Entry, classes: np.ndarray, rows: np.ndarray, seen: int) -> Part:
    """Return a checked part."""
    labels = rows["label"].astype(np.int64)
    if (labels >= len(classes)).any() or (rows["number"] >= seen).any() or (classes["full"] > 1).any():
        raise DamagedMemory("a row has a bad number or label, or a class a bad mark")
    counted = classes["seen"].astype(np.int64)
    if (np.bincount(labels, minlength=len(classes)) > counted).any() or (counted > MOST_SEEN).any():
        raise DamagedMemory("more rows of a class are there than came")
    for i, tensor in enumerate(entry.row):
        array = rows[str(i)]
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DamagedMemory(f"{tensor.name} holds NaN or infinity")
    return Part(entry.row, Reservoir(entry.capacity, labels, counted, classes["full"] == 1), rows)


def _table(part: Part) -> bytes:
    """Return what is known of each class."""
    table = np.zeros(len(part.reservoir.seen), _CLASS)
    table["seen"], table["full"] = part.reservoir.seen, part.reservoir.full
    return table.tobytes()


def _text(contents: Contents, digest: bytes) -> bytes:
    """Return the header."""
    c = contents
    replay, heldout = (_Entry(p.tensors, p.reservoir.capacity, len(p.rows)) for p in (c.replay, c.heldout))
    numbers = c.limit, c.held_out, c.seed, c.random, c.seen, c.classes
    header = _Header(FORMAT, c.owner, c.keeps, *numbers, replay, heldout, digest.hex())
    return json.dumps(asdict(header), ensure_ascii=False, separators=(",", ":")).encode()


def _header(data: bytes) -> tuple[_Header, int]:
    """Return the checked header and where the data starts."""
    if len(data) < _BODY or not data.startswith(MEMORY):
        raise DamagedMemory("it is no replay memory, or cut short")
    _, version, length = _FIXED.unpack_from(data)
    text = data[_BODY : _BODY + min(length, _MAX_HEADER)]
    if len(text) != length or hashlib.sha256(data[: _FIXED.size] + text).digest() != data[_FIXED.size : _BODY]:
        raise DamagedMemory("its header is cut short or altered")
    if version != VERSION:
        raise UsageError(
            f"it is of format version {version}, and {VERSION} is known here: update Pocketune, or begin another file",
            page="replay-memories",
        )
    try:
        header: _Header = decode(_Header, parse_json(text), "header")
    except (ValueError, RecursionError, UsageError) as error:
        raise DamagedMemory(f"its header is not as agreed ({error})") from None
    start = _aligned(_BODY + length)
    if any(data[_BODY + length : start]) or _are_bad(header):
        raise DamagedMemory("its header is not as agreed (a number out of range)")
    return header, start


def _are_bad(h: _Header) -> bool:
    """Return whether a number of a header is out of range."""
    entries = h.replay, h.heldout
    bounds = (
        (h.limit, MOST_BYTES),
        (h.held_out, MILLION // 2),
        (h.seed, 1 << 53),
        (h.random, (1 << 48) - 1),
        (h.seen, (1 << 53) - 1),
        (h.classes - 1, MOST_BYTES),
        *((entry.rows, entry.capacity) for entry in entries),
        *((entry.capacity, MOST_BYTES) for entry in entries),
    )
    shapes = [tensor.shape for entry in entries for tensor in entry.row]
    too_large = any(min(shape, default=1) < 1 or prod(shape) > MOST_BYTES for shape in shapes)
    return too_large or any(not 0 <= number <= most for number, most in bounds)


def _aligned(offset: int) -> int:
    return offset + -offset % _ALIGNMENT
