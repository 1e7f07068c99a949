"""The TFLite flatbuffer schema: the one importer of the generated builders, with what emission needs of them."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as generated

from converter.ir import INT4, Quantization

#: What a TFLite file carries at byte 4.
FILE_IDENTIFIER = b"TFL3"
VERSION = 3
#: Kernels and memory-mapped files want it; the vectors of the schema promise only 4 (or nothing).
ALIGNMENT = 16
#: Offsets in a flatbuffer are signed 32-bit numbers.
LARGEST_FILE = 2**31 - 1
#: Room for tables: an operator and its tensors take 250 bytes on the average.
_TABLES = 1 << 26
#: Bytes of data that a flatbuffer has room for beside them.
LARGEST_FLATBUFFER = LARGEST_FILE - _TABLES

#: Where the field `offset` of Buffer stands in its table of fields.
_OFFSET_OF_BUFFER = 6
_TENSOR_TYPES = {
    np.dtype(np.float32): generated.TensorType.FLOAT32,
    np.dtype(np.float16): generated.TensorType.FLOAT16,
    np.dtype(np.int64): generated.TensorType.INT64,
    np.dtype(np.int32): generated.TensorType.INT32,
    np.dtype(np.int16): generated.TensorType.INT16,
    INT4: generated.TensorType.INT4,
    np.dtype(np.int8): generated.TensorType.INT8,
    np.dtype(np.uint8): generated.TensorType.UINT8,
    np.dtype(np.bool_): generated.TensorType.BOOL,
    np.dtype(np.complex64): generated.TensorType.COMPLEX64,
    np.dtype(object): generated.TensorType.RESOURCE,
}
#: Fields of option tables that hold an enum.
_ENUMS = {
    "Padding": generated.Padding,
    "FusedActivationFunction": generated.ActivationFunctionType,
}


def builtin_code(name: str) -> int:
    """Return number of an operator in the enum BuiltinOperator."""
    return getattr(generated.BuiltinOperator, name)


def tensor_type(dtype: np.dtype) -> int:
    """Return number of an element type in the enum TensorType. Raises KeyError for one that TFLite lacks."""
    return _TENSOR_TYPES[dtype]


def in_pairs(numbers: np.ndarray) -> np.ndarray:
    """Return numbers of 4 bits, one a byte, as two a byte: the first in the lower half; after an odd one stands 0."""
    low, high = numbers[::2] & 15, np.zeros(-(-numbers.size // 2), np.uint8)
    high[: numbers.size // 2] = numbers[1::2] << 4
    return low | high


def unpacked(data: np.ndarray, size: int) -> np.ndarray:
    """Return so many numbers of 4 bits, int8, of the bytes of a file. Raise ValueError where these are not as many."""
    if data.size != (size + 1) // 2:
        raise ValueError("size")
    halves = np.stack([data << 4, data & 240], -1)  # their signs at the top
    return halves.reshape(-1)[:size].view(np.int8) >> 4


def table(builder: flatbuffers.Builder, name: str, **fields: Any) -> int:
    """Writes a table. Values: numbers and offsets as they are; bytes, str, dtypes, sequences of ints are encoded."""
    encoded = [_encode(builder, field, value) for field, value in fields.items()]
    start, adding, end = _writers(name, tuple(fields))
    start(builder)
    for add, value in zip(adding, encoded, strict=True):
        add(builder, value)
    return end(builder)


@cache
def _writers(name: str, fields: tuple[str, ...]) -> tuple[Any, list[Any], Any]:
    """Return the generated functions that begin a table, add each field, and end it."""
    adding = [getattr(generated, f"{name}Add{field}") for field in fields]
    return getattr(generated, f"{name}Start"), adding, getattr(generated, f"{name}End")


def _encode(builder: flatbuffers.Builder, field: str, value: Any) -> Any:
    if isinstance(value, str):
        return getattr(_ENUMS[field], value) if field in _ENUMS else builder.CreateString(value)
    if isinstance(value, np.dtype):
        return tensor_type(value)
    if isinstance(value, (tuple, list)):
        return int_vector(builder, value)
    return value


def int_vector(builder: flatbuffers.Builder, numbers: Sequence[int]) -> int:
    """Writes a vector of int32: at once, as most are short and many."""
    data = struct.pack(f"<{len(numbers)}i", *numbers)
    builder.StartVector(4, len(numbers), 4)
    builder.head -= len(data)
    builder.Bytes[builder.head : builder.head + len(data)] = data
    return builder.EndVector()


def offset_vector(builder: flatbuffers.Builder, offsets: Iterable[int]) -> int:
    """Writes a vector of tables."""
    offsets = list(offsets)
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def roomy_builder(nbytes: int) -> flatbuffers.Builder:
    """Return a builder with room for so many bytes of data and all tables: growing would copy all that it holds.

    It takes memory only where something is written.
    """
    builder = flatbuffers.Builder(0)
    builder.head = min(nbytes + _TABLES, LARGEST_FILE)
    builder.Bytes = mmap.mmap(-1, builder.head)
    return builder


def set_offsets(built: memoryview, offsets: Mapping[int, int]) -> None:
    """Write into the tables of buffers, which have one, where their data lie, by number."""
    model = generated.Model.GetRootAs(built, 0)
    for number, offset in offsets.items():
        table = model.Buffers(number)._tab
        struct.pack_into("<Q", built, table.Pos + table.Offset(_OFFSET_OF_BUFFER), offset)


def buffer_data(data: Any, buffer: Any) -> np.ndarray:
    """Return the bytes of a buffer of a file, uint8; `data` are those of the file. Raise ValueError where it ends."""
    if buffer.Offset() and buffer.Size():
        return np.frombuffer(data, np.uint8, buffer.Size(), buffer.Offset())
    return buffer.DataAsNumpy() if buffer.DataLength() else np.zeros(0, np.uint8)


def aligned_space(builder: flatbuffers.Builder, nbytes: int) -> int:
    """Room for a vector of bytes whose first one lies at a multiple of ALIGNMENT in the finished file.

    Nothing but its length is written; the bytes lie after that, 4 bytes from what is returned.
    """
    builder.StartVector(1, nbytes, ALIGNMENT)
    builder.head -= nbytes
    return builder.EndVector()


def quantization(builder: flatbuffers.Builder, said: Quantization | None) -> dict[str, int]:
    """Writes a tensor's quantization; returns the field of Tensor that refers to it."""
    if said is None:
        return {}
    scales = builder.CreateNumpyVector(np.array(said.scales, np.float32))
    zeros = builder.CreateNumpyVector(np.full(len(said.scales), said.zero_point, np.int64))
    parameters = table(builder, "QuantizationParameters", Scale=scales, ZeroPoint=zeros, QuantizedDimension=said.axis)
    return {"Quantization": parameters}


def options(builder: flatbuffers.Builder, name: str, fields: Mapping[str, Any]) -> dict[str, int]:
    """Writes an operator's options table; returns the fields of Operator that refer to it."""
    if not name:
        return {}
    union = "BuiltinOptions" if hasattr(generated.BuiltinOptions, name) else "BuiltinOptions2"
    kind = getattr(getattr(generated, union), name)
    return {f"{union}Type": kind, union: table(builder, name, **fields)}


def written_options(builder: flatbuffers.Builder, operator: Any, changed: Mapping[str, int]) -> dict[str, int]:
    """Write the options of an operator of another file (`OperatorT`).

    Args:
        builder: of the file.
        operator: the operator.
        changed: numbers of subgraphs, by the fields that name them.

    Returns:
        The fields of Operator that they are.
    """
    fields: dict[str, int] = {}
    for union in ("BuiltinOptions", "BuiltinOptions2"):
        options = getattr(operator, union[0].lower() + union[1:])
        if options is not None:
            options = copy(options)
            vars(options).update({name: number for name, number in changed.items() if name in vars(options)})
            fields[union] = options.Pack(builder)
            fields[f"{union}Type"] = getattr(operator, union[0].lower() + union[1:] + "Type")
    if operator.customOptions is not None:
        fields["CustomOptions"] = builder.CreateByteVector(bytes(bytearray(operator.customOptions)))
        fields["CustomOptionsFormat"] = operator.customOptionsFormat
    return fields
