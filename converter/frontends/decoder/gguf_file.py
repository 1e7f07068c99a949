"""Tensors of GGUF files: dequantised row by row as they are asked for.

What the quantised blocks mean the library `gguf` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from converter.frontends.decoder.stored import StoredTensor
from converter.ir import INT4, INT8, StoredIntegers
from converter.support.errors import NumericError, UsageError
from converter.support.gguf import Block, Tensor, open_container

_BLOCKS = {kind.value: Block(kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}


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
    unknown = "gguf does not know: quantise the model anew, in Q4_K_M or Q8_0 for example, or pip install -U gguf"
    file = open_container(path)
    tensors = file.tensors(_BLOCKS, unknown)
    return GGUFFile(path, file.metadata, {tensor.name: _stored(path, tensor) for tensor in tensors})


def _stored(path: Path, tensor: Tensor) -> StoredTensor:
    """Return a tensor that is dequantised as it is read."""
    name, shape, numbers = tensor.name, tensor.shape, tensor.data
    kind, (_, block, each) = GGMLQuantizationType(tensor.number), tensor.block
    length = shape[0]

    def read(first_row: int, last_row: int) -> np.ndarray:
        first_row, last_row = max(first_row, 0), min(last_row, length)
        if len(shape) == 1:
            return _numbers(numbers, kind, path, name)[first_row:last_row].copy()
        rows = numbers.reshape(length, -1)[first_row:last_row]
        return _numbers(rows, kind, path, name).reshape(-1, *shape[1:])

    integers = _INTEGERS.get(kind) if len(shape) == 2 else None
    if integers is None:
        return StoredTensor(name, shape, kind.name, read)

    def quantised(first_row: int, last_row: int) -> tuple[np.ndarray, np.ndarray]:
        blocks = np.asarray(numbers.reshape(length, -1, each)[first_row:last_row])
        scales = blocks[..., :2].copy().view("<f2")[..., 0]
        if not np.isfinite(scales).all():
            raise NumericError(f"The model's weights are not finite: {name} of {path}")
        return integers.of(blocks[..., 2:]).reshape(-1, shape[1]), scales.astype(np.float16)

    stored = StoredIntegers(integers.dtype, shape[1] // block, np.dtype(np.float16), quantised)
    return StoredTensor(name, shape, kind.name, read, quantised=stored)


class _Integers(NamedTuple):
    """How a kind of blocks keeps integers after a scale in float16.

    Attributes:
        dtype: of them.
        of: returns them from the bytes after the scale, [..., n].
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
            "again, in Q4_K_M or Q8_0 for example",
            page="language-models",
        ) from error
