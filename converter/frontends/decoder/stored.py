"""Stored tensors: weights that stay in their file until rows of them are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from converter.ir import FLOAT32, LazyArray, Shape, StoredIntegers


@dataclass(frozen=True, eq=False)
class StoredTensor(LazyArray):
    """A tensor in a file, as float32.

    Attributes:
        name: in the file.
        shape: its own.
        kind: how the file stores the numbers, as `Q4_K` or `BF16`.
        read: returns rows [start, stop) along the first axis, float32.
        dtype: of what is read.
        quantised: the integers that the numbers are made of, where they are of a kind that a program meets as it is.
    """

    name: str
    shape: Shape
    kind: str
    read: Callable[[int, int], np.ndarray]
    dtype: np.dtype = FLOAT32
    quantised: StoredIntegers | None = None

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows along the first axis, float32 [stop - start, ...]."""
        return self.read(start, stop)

    def integers(self) -> StoredIntegers | None:
        """Return the stored integers; None if the file has none."""
        return self.quantised


def in_order(tensor: StoredTensor, order: np.ndarray) -> StoredTensor:
    """Return a tensor whose row i is row `order[i]` of another tensor.

    Args:
        tensor: the other tensor.
        order: int [rows]; rows that are read together should be close to each other in it.
    """

    def read(start: int, stop: int) -> np.ndarray:
        first, last, among = span(start, stop)
        return tensor.rows(first, last)[among]

    def span(start: int, stop: int) -> tuple[int, int, np.ndarray]:
        wanted = order[start:stop]
        first = int(wanted.min(initial=len(order)))
        return first, int(wanted.max(initial=-1)) + 1, wanted - first

    def integers(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        assert tensor.quantised is not None
        first, last, among = span(start, stop)
        numbers, scales = tensor.quantised.rows(first, last)
        return numbers[among], scales[among]

    stored = None if tensor.quantised is None else replace(tensor.quantised, rows=integers)
    return replace(tensor, read=read, quantised=stored)


def plus_one(tensor: StoredTensor) -> StoredTensor:
    """Return a tensor with 1 added to each number."""
    return StoredTensor(tensor.name, tensor.shape, tensor.kind, lambda start, stop: tensor.rows(start, stop) + 1)
