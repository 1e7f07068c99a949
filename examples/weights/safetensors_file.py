"""Float32 weights from a `.safetensors` file: a header in JSON, then the numbers."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path

import numpy as np

from pocketune import UsageError

_DTYPES: dict[str, np.dtype] = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}


def read(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file by name.

    Raises:
        UsageError: the file is damaged, or has tensors of other types.
    """
    data = path.read_bytes()
    try:
        (size,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + size])
        header.pop("__metadata__", None)
        numbers = data[8 + size :]
        return {name: _tensor(name, numbers, **entry) for name, entry in header.items()}
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        raise UsageError(f"{path}: no readable file of weights: {error}") from error


def _tensor(name: str, numbers: bytes, dtype: str, shape: list[int], data_offsets: list[int]) -> np.ndarray:
    kind, (start, end) = _DTYPES[dtype], data_offsets
    if not 0 <= start <= end <= len(numbers) or min(shape, default=0) < 0:
        raise ValueError(f"{name} lies outside of the file")
    if prod(shape) * kind.itemsize != end - start:
        raise ValueError(f"{name} is not as large as its shape")
    return np.frombuffer(numbers, kind, prod(shape), start).reshape(shape)
