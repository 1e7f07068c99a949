"""GGUF files as llama.cpp has them: their header, read and checked, with the place of each tensor; and a writer.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Nothing here knows what the blocks of a
quantised tensor mean.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from converter.support.errors import UsageError
from converter.support.files import check_regular

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ADVICE = "Copy or download it again, and compare its size and checksum with the original's"
#: Scalars of the metadata by their number; 8 is a text and 9 an array.
_SCALARS = dict(enumerate(("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?")))
_SCALARS |= {10: "<u8", 11: "<i8", 12: "<f8"}
_TEXT, _ARRAY, _FLOAT32, _UINT32 = 8, 9, 6, 4
_MOST_AXES = 4
#: What tensors are aligned to where the metadata does not say it.
_ALIGNMENT = 32


class Block(NamedTuple):
    """How a kind of tensor is stored.

    Attributes:
        kind: its name, as `Q8_0`.
        numbers: of a block.
        size: of it, in bytes.
    """

    kind: str
    numbers: int
    size: int


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file.

    Attributes:
        name: of it.
        shape: rows first.
        number: of its kind.
        block: what that is.
        data: its bytes, uint8, mapped.
    """

    name: str
    shape: tuple[int, ...]
    number: int
    block: Block
    data: np.ndarray


def open_container(path: Path) -> Container:
    """Return a file with its header read and checked; of its tensors nothing is read yet.

    Args:
        path: of the file.

    Raises:
        UsageError: it is no GGUF file, or it is damaged: what, and what to do.
    """
    check_regular(path)
    try:
        data = np.memmap(path, np.uint8, mode="r")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", page="language-models") from error
    except ValueError as error:
        raise UsageError(f"{path} is empty. {_ADVICE}", page="language-models") from error
    if data[:4].tobytes() != _MAGIC:
        raise UsageError(f"{path} is no GGUF file: it does not begin with GGUF", page="language-models")
    reader = _Reader(path, data)
    reader.place = 4
    version = reader.number("<u4", "the version")
    if version not in _VERSIONS:
        what = "a file of a machine with the other byte order" if version % 65536 == 0 else f"version {version}"
        raise UsageError(
            f"{path} is {what}; versions 2 and 3 of GGUF are read, little endian: convert it with llama.cpp's "
            "convert_hf_to_gguf.py",
            page="language-models",
        )
    count, entries = reader.number("<u8", "the number of tensors"), reader.number("<u8", "the number of entries")
    reader.check_count(count, 24, "tensors")
    reader.check_count(entries, 13, "entries of metadata")
    metadata: dict[str, Any] = {}
    for index in range(entries):
        key = reader.text(f"the key of entry {index} of the metadata")
        metadata[key] = reader.value(reader.number("<u4", f"the type of {key}"), key)
    headers = [reader.header(index) for index in range(count)]
    return Container(metadata, reader, headers)


def container_bytes(metadata: Mapping[str, str | float | int], tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return a file.

    Args:
        metadata: by key; whole numbers go in as uint32, others as float32.
        tensors: float32, by name.
    """
    header = [_MAGIC, struct.pack("<IQQ", _VERSIONS[-1], len(tensors), len(metadata))]
    for key, value in metadata.items():
        header.append(_text(key))
        if isinstance(value, str):
            header.append(struct.pack("<I", _TEXT) + _text(value))
        else:
            kind, form = (_UINT32, "<II") if isinstance(value, int) else (_FLOAT32, "<If")
            header.append(struct.pack(form, kind, value))
    offset, numbers = 0, list[bytes]()
    for name, array in tensors.items():
        axes = array.shape[::-1]
        header.append(_text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, 0, offset))
        numbers.append(_padded(np.ascontiguousarray(array, "<f4").tobytes()))
        offset += len(numbers[-1])
    return b"".join([_padded(b"".join(header)), *numbers])


def halves_first(rows: int, width: int) -> np.ndarray:
    """Return where in a file that has the two numbers of a pair beside each other each row lies, int64 [rows].

    llama.cpp's convert_hf_to_gguf.py moves the rows of q and k so; `transformers` has the first ones of all pairs
    first.

    Args:
        rows: of all heads.
        width: of a head.
    """
    return np.arange(rows).reshape(-1, width // 2, 2).swapaxes(1, 2).reshape(rows)


def _text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


@dataclass(frozen=True)
class _Header:
    """A tensor as the file describes it: rows first, the offset after the header's end."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class _Reader:
    """The bytes of a file and a place in them."""

    def __init__(self, path: Path, data: np.ndarray) -> None:
        self.path, self.data, self.place = path, data, 0

    def fail(self, what: str) -> UsageError:
        """Return the error of a damaged file."""
        return UsageError(f"{self.path} is damaged: {what}. {_ADVICE}", page="language-models")

    def take(self, size: int, what: str) -> bytes:
        """Return the next bytes."""
        end = self.place + size
        if end > self.data.size:
            raise self.fail(f"it ends in {what}, after {self.data.size:,} bytes")
        taken = self.data[self.place : end].tobytes()
        self.place = end
        return taken

    def number(self, dtype: str, what: str) -> Any:
        """Return the next number as Python's own."""
        return np.frombuffer(self.take(np.dtype(dtype).itemsize, what), dtype)[0].item()

    def text(self, what: str, errors: str = "strict") -> str:
        """Return the next text."""
        raw = self.take(self.number("<u8", what), what)
        try:
            return raw.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is no text in UTF-8") from error

    def check_count(self, count: int, least: int, what: str) -> None:
        """Raise where a count of things of some least size is more than the rest of the file holds."""
        if count * least > self.data.size - self.place:
            raise self.fail(f"it says that it has {count:,} {what}, which are more than its {self.data.size:,} bytes")

    def value(self, kind: int, key: str) -> Any:
        """Return a value of the metadata."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], key)
        if kind == _TEXT:
            return self.text(key, "surrogateescape")
        if kind != _ARRAY:
            raise self.fail(f"{key} is of type {kind}, which there is not")
        inner, count = self.number("<u4", key), self.number("<u8", key)
        if inner in _SCALARS:
            dtype = np.dtype(_SCALARS[inner])
            self.check_count(count, dtype.itemsize, f"numbers in {key}")
            return np.frombuffer(self.take(count * dtype.itemsize, key), dtype)
        if inner != _TEXT:
            raise self.fail(f"{key} is an array of type {inner}, which is not read")
        self.check_count(count, 8, f"texts in {key}")
        return self._texts(count, key)

    def _texts(self, count: int, key: str) -> list[str]:
        """Return the next texts: a vocabulary has a hundred thousand and more."""
        data, place, texts = self.data.data, self.place, []
        try:
            for _ in range(count):
                (size,) = struct.unpack_from("<Q", data, place)
                place += 8 + size
                if place > self.data.size:
                    raise self.fail(f"it ends in {key}, after {self.data.size:,} bytes")
                texts.append(bytes(data[place - size : place]).decode("utf-8", "surrogateescape"))
        except struct.error as error:
            raise self.fail(f"it ends in {key}, after {self.data.size:,} bytes") from error
        self.place = place
        return texts

    def header(self, index: int) -> _Header:
        """Return the next description of a tensor."""
        name = self.text(f"the name of tensor {index}")
        axes = self.number("<u4", name)
        if not 1 <= axes <= _MOST_AXES:
            raise self.fail(f"the tensor {name} has {axes} axes")
        shape = tuple(self.number("<u8", name) for _ in range(axes))[::-1]
        return _Header(name, shape, self.number("<u4", name), self.number("<u8", name))


def _tensor(
    reader: _Reader, header: _Header, first: int, alignment: int, blocks: Mapping[int, Block], otherwise: str
) -> Tensor:
    """Return a tensor, whose bytes are all there."""
    name, shape, block = header.name, header.shape, blocks.get(header.kind)
    if block is None:
        raise UsageError(
            f"{reader.path}: the tensor {name} is stored in type {header.kind}, which {otherwise}",
            page="language-models",
        )
    if min(shape) < 1 or math.prod(shape) >= 1 << 48:
        raise reader.fail(f"the tensor {name} has the shape {list(shape)}")
    if shape[-1] % block.numbers:
        raise reader.fail(
            f"the tensor {name} has rows of {shape[-1]}, which are no blocks of {block.numbers} of {block.kind}"
        )
    start, size = first + header.offset, math.prod(shape) // block.numbers * block.size
    if header.offset % alignment:
        raise reader.fail(f"the tensor {name} begins at {header.offset:,}, which is no multiple of {alignment}")
    if start + size > reader.data.size:
        raise reader.fail(
            f"the tensor {name} ends at byte {start + size:,}, and the file at {reader.data.size:,}: it is cut off"
        )
    return Tensor(name, shape, header.kind, block, reader.data[start : start + size])


@dataclass(frozen=True)
class Container:
    """A file that was opened.

    Attributes:
        metadata: by key; arrays of numbers are NumPy's, of texts lists.
    """

    metadata: Mapping[str, Any]
    _reader: _Reader
    _headers: list[_Header]

    def tensors(self, blocks: Mapping[int, Block], otherwise: str) -> list[Tensor]:
        """Return the tensors that lie after the header, in its order.

        Args:
            blocks: the kinds of tensors that the caller reads, by number.
            otherwise: what to do about a tensor of another kind, which ends the sentence.

        Raises:
            UsageError: a tensor is of another kind, cut off, or in the place of another.
        """
        reader, alignment = self._reader, self.metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise reader.fail(f"general.alignment is {alignment!r}, not a power of two")
        first = -(-reader.place // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        places = []
        for header in self._headers:
            if header.name in tensors:
                raise reader.fail(f"two tensors are called {header.name}")
            tensor = tensors[header.name] = _tensor(reader, header, first, alignment, blocks, otherwise)
            places.append((header.offset, header.offset + tensor.data.size, header.name))
        places.sort()
        for (_, end, name), (start, _, after) in pairwise(places):
            if start < end:
                raise reader.fail(f"the tensors {name} and {after} lie in the same place")
        return list(tensors.values())
