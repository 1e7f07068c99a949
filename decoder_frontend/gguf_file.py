"""GGUF files: the header is read and checked, tensors are dequantised row by row as they are asked for.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What the quantised blocks mean the
library `gguf` knows; its own reader makes an array of each word of a vocabulary and does not notice where a file ends.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from converter.ir import INT4, INT8, StoredIntegers
from converter.support.errors import NumericError, UsageError
from converter.support.files import check_regular
from decoder_frontend.stored import StoredTensor

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ADVICE = "Copy or download it again, and compare its size and checksum with the original's"
#: Scalars of the metadata by their number; 8 is a text and 9 an array.
_SCALARS = dict(enumerate(("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?")))
_SCALARS |= {10: "<u8", 11: "<i8", 12: "<f8"}
_TEXT, _ARRAY = 8, 9
_MOST_AXES = 4


@dataclass(frozen=True)
class GGUFFile:
    """A file that was opened.

    Attributes:
        path: its place.
        metadata: by key; arrays of numbers are NumPy's, of texts lists.
        tensors: by name.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Return a file with its header read and checked; of its tensors nothing is read yet.

    Raises:
        UsageError: it is no GGUF file, or it is damaged: what, at which tensor, and what to do.
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
    return GGUFFile(path, metadata, _tensors(reader, headers, metadata.get("general.alignment", 32)))


@dataclass(frozen=True)
class _Header:
    """A tensor as the file describes it: rows first, the offset behind the header's end."""

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


def _tensors(reader: _Reader, headers: list[_Header], alignment: Any) -> dict[str, StoredTensor]:
    """Return the tensors that lie behind the header."""
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise reader.fail(f"general.alignment is {alignment!r}, not a power of two")
    first = -(-reader.place // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    places = []
    for header in headers:
        if header.name in tensors:
            raise reader.fail(f"two tensors are called {header.name}")
        tensor, size = _tensor(reader, header, first, alignment)
        tensors[header.name] = tensor
        places.append((header.offset, header.offset + size, header.name))
    places.sort()
    for (_, end, name), (start, _, after) in pairwise(places):
        if start < end:
            raise reader.fail(f"the tensors {name} and {after} lie in the same place")
    return tensors


def _tensor(reader: _Reader, header: _Header, first: int, alignment: int) -> tuple[StoredTensor, int]:
    """Return a tensor and the bytes that it takes."""
    name, shape = header.name, header.shape
    try:
        kind = GGMLQuantizationType(header.kind)
    except ValueError as error:
        raise UsageError(
            f"{reader.path}: the tensor {name} is stored in type {header.kind}, which gguf does not know: quantise the "
            "model anew, in Q4_K_M or Q8_0 for example, or pip install -U gguf",
            page="language-models",
        ) from error
    block, each = GGML_QUANT_SIZES[kind]
    if min(shape) < 1 or math.prod(shape) >= 1 << 48:
        raise reader.fail(f"the tensor {name} has the shape {list(shape)}")
    if shape[-1] % block:
        raise reader.fail(f"the tensor {name} has rows of {shape[-1]}, which are no blocks of {block} of {kind.name}")
    row = math.prod(shape[1:]) // block * each if len(shape) > 1 else each
    length, size = (shape[0], row * shape[0]) if len(shape) > 1 else (shape[0], shape[0] // block * each)
    start = first + header.offset
    if header.offset % alignment:
        raise reader.fail(f"the tensor {name} begins at {header.offset:,}, which is no multiple of {alignment}")
    if start + size > reader.data.size:
        raise reader.fail(
            f"the tensor {name} ends at byte {start + size:,}, and the file at {reader.data.size:,}: it is cut off"
        )
    numbers = reader.data[start : start + size]

    def read(first_row: int, last_row: int) -> np.ndarray:
        first_row, last_row = max(first_row, 0), min(last_row, length)
        if len(shape) == 1:
            return _numbers(numbers, kind, reader.path, name)[first_row:last_row].copy()
        rows = numbers.reshape(length, row)[first_row:last_row]
        return _numbers(rows, kind, reader.path, name).reshape(-1, *shape[1:])

    integers = _INTEGERS.get(kind) if len(shape) == 2 else None
    if integers is None:
        return StoredTensor(name, shape, kind.name, read), size

    def quantised(first_row: int, last_row: int) -> tuple[np.ndarray, np.ndarray]:
        blocks = np.asarray(numbers.reshape(length, -1, each)[first_row:last_row])
        scales = blocks[..., :2].copy().view("<f2")[..., 0]
        if not np.isfinite(scales).all():
            raise NumericError(f"The model's weights are not finite: {name} of {reader.path}")
        return integers.of(blocks[..., 2:]).reshape(-1, shape[1]), scales.astype(np.float16)

    stored = StoredIntegers(integers.dtype, shape[1] // block, np.dtype(np.float16), quantised)
    return StoredTensor(name, shape, kind.name, read, quantised=stored), size


class _Integers(NamedTuple):
    """How a kind of blocks keeps integers behind a scale in float16.

    Attributes:
        dtype: of them.
        of: returns them from the bytes behind the scale, [..., n].
    """

    dtype: np.dtype
    of: Callable[[np.ndarray], np.ndarray]


def _of_nibbles(stored: np.ndarray) -> np.ndarray:
    """Return the numbers of a block of Q4_0: the first half in the lower four bits, 8 more than they are."""
    return (np.concatenate([stored & 15, stored >> 4], -1).view(np.int8) - np.int8(8)).astype(INT4)


#: What is a scale in float16 and integers of 4 or 8 bits around 0: all others have offsets, or scales of scales.
_INTEGERS = {
    GGMLQuantizationType.Q4_0: _Integers(INT4, _of_nibbles),
    GGMLQuantizationType.Q8_0: _Integers(INT8, lambda stored: stored.copy().view(np.int8)),
}


def _numbers(stored: np.ndarray, kind: GGMLQuantizationType, path: Path, name: str) -> np.ndarray:
    """Return stored rows in float32."""
    try:
        return np.ascontiguousarray(dequantize(np.asarray(stored), kind), np.float32)
    except NotImplementedError as error:
        raise UsageError(
            f"{path}: the tensor {name} is stored as {kind.name}, which gguf does not dequantise: quantise the model "
            "anew, in Q4_K_M or Q8_0 for example",
            page="language-models",
        ) from error
