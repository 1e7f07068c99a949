"""Static types of values, and where a value comes from in the user's code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import ml_dtypes
import numpy as np

from converter.ir.quantization import Quantization

Shape = tuple[int, ...]

FLOAT32 = np.dtype(np.float32)
#: Of constants alone: programs compute in float32.
FLOAT16 = np.dtype(np.float16)
INT32 = np.dtype(np.int32)
#: Two to a byte in a file, one each in an array.
INT4 = np.dtype(ml_dtypes.int4)
BOOL = np.dtype(np.bool_)
#: A handle of a runtime variable: no data of its own.
RESOURCE = np.dtype(object)


def rows_at_once(rows: int, pieces: int) -> int:
    """Return how many rows of a matrix about so many equal pieces have; all where they are few.

    Where there are several pieces it is a multiple of 32: of elements of four bits, too, such a piece begins where
    buffers of a file are aligned, so it is stored as a part of the matrix.
    """
    return min(rows, -(-rows // (32 * pieces)) * 32) if pieces > 1 else rows


def stored_bytes(count: int, dtype: np.dtype) -> int:
    """Return the bytes that so many elements take in a file."""
    return -(-count // 2) if dtype == INT4 else count * dtype.itemsize


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a value. Shapes are static: a program is compiled for one batch size.

    Attributes:
        quantization: what real numbers the integers stand for, if they do.
    """

    shape: Shape
    dtype: np.dtype = FLOAT32
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(d) for d in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        # Types are the keys of most tables, and few.
        object.__setattr__(self, "_hash", hash((self.shape, self.dtype.num, self.quantization)))

    def __hash__(self) -> int:
        return int(self._hash)  # type: ignore[attr-defined]

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a dense buffer of this type, as a file has it."""
        return stored_bytes(self.size, self.dtype)

    def with_shape(self, shape: Shape) -> TensorType:
        """Return the same element type in another shape."""
        return TensorType(shape, self.dtype, self.quantization)

    def __str__(self) -> str:
        plain = f"{self.dtype.name}[{','.join(map(str, self.shape))}]"
        return plain if self.quantization is None else f"{plain}{{{self.quantization}}}"


@dataclass(frozen=True)
class Origin:
    """Where a node comes from: carried unchanged from tracing to the last flatbuffer tensor.

    Attributes:
        layer: path of the layer in the user's model, e.g. `block_3_expand` or `encoder/layers/0/attention`.
        source: `file:line` of the user's code, empty for what the compiler adds.
        phase: `forward`, `backward` or `update`.
    """

    layer: str = ""
    source: str = ""
    phase: str = "forward"

    @property
    def is_late(self) -> bool:
        """Whether it belongs to what a training step does after the forward pass."""
        return self.phase != "forward"

    def in_phase(self, phase: str) -> Origin:
        """Return the same place, in another phase of the training step."""
        return replace(self, phase=phase)

    def __str__(self) -> str:
        where = " at ".join(part for part in (self.layer, self.source) if part) or "(compiler)"
        return f"{where} [{self.phase}]" if self.is_late else where


#: What the compiler adds on its own.
NOWHERE = Origin()
