"""Stored tensors: weights that stay in their file until rows of them are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from converter.ir import FLOAT32, LazyArray, Shape


@dataclass(frozen=True, eq=False)
class StoredTensor(LazyArray):
    """A tensor in a file, as float32.

    Attributes:
        name: in the file.
        shape: its own.
        kind: how the file stores the numbers, as `Q4_K` or `BF16`.
        read: returns rows [start, stop) along the first axis, float32.
        dtype: of what is read.
    """

    name: str
    shape: Shape
    kind: str
    read: Callable[[int, int], np.ndarray]
    dtype: np.dtype = FLOAT32

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows along the first axis, float32 [stop - start, ...]."""
        return self.read(start, stop)


def in_order(tensor: StoredTensor, order: np.ndarray) -> StoredTensor:
    """Return a tensor whose row i is row `order[i]` of another one.

    Args:
        tensor: the other.
        order: int [rows]; few rows lie between the first and the last of any that are asked for together.
    """

    def read(start: int, stop: int) -> np.ndarray:
        wanted = order[start:stop]
        if not wanted.size:
            return tensor.rows(0, 0)
        first = int(wanted.min())
        return tensor.rows(first, int(wanted.max()) + 1)[wanted - first]

    return StoredTensor(tensor.name, tensor.shape, tensor.kind, read)


def plus_one(tensor: StoredTensor) -> StoredTensor:
    """Return a tensor with 1 added to each number."""
    return StoredTensor(tensor.name, tensor.shape, tensor.kind, lambda start, stop: tensor.rows(start, stop) + 1)
