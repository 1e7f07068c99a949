"""Lazy arrays: weights that are read from where they lie when they are asked for, a few rows at a time.

A parameter of a model may have one as its `source`. Its type is known and its numbers are not read until a build says
in what form it needs them: as float32 in memory, or quantised piece by piece, never whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from converter.ir.types import Shape


@dataclass(frozen=True)
class StoredIntegers:
    """A matrix [A, B] that is quantised where it lies, with a scale for each row, or for each block of one.

    Attributes:
        dtype: INT4 or INT8.
        blocks: in a row, all of as many numbers; 1: a row has one scale.
        of_scales: their dtype, float32 or float16.
        rows: returns of rows [start, stop) the integers, [stop - start, B], and the scales, [stop - start, blocks]; a
            number is its integer times the scale of its block.
    """

    dtype: np.dtype
    blocks: int
    of_scales: np.dtype
    rows: Callable[[int, int], tuple[np.ndarray, np.ndarray]]


class LazyArray(ABC):
    """An array of floating point numbers that is read when it is asked for.

    Attributes:
        shape: of the whole array, of at least one axis.
        dtype: of what `rows` returns: float32, float16 or bfloat16.
    """

    shape: Shape
    dtype: np.dtype

    @abstractmethod
    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return [start, stop) of the first axis, [stop - start, ...]. Raise OSError where it cannot be read."""

    def integers(self) -> StoredIntegers | None:
        """Return the integers that the numbers are made of, where they are stored so."""
        return None

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        """Return the whole array."""
        return np.asarray(self.rows(0, self.shape[0]), dtype)


class Unread(LazyArray):
    """An array of which a plan knows how it is stored, and not the numbers."""

    def __init__(self, array: LazyArray) -> None:
        """Take over shape, dtype and the form of the integers of another one."""
        self.shape, self.dtype = array.shape, array.dtype
        stored = array.integers()
        self._stored = None if stored is None else replace(stored, rows=self._unread)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Raise AssertionError: nothing reads what is only planned."""
        return self._unread(start, stop)

    def _unread(self, start: int, stop: int) -> Any:
        raise AssertionError("a plan reads no weights")

    def integers(self) -> StoredIntegers | None:
        """Return the form of the integers, where the numbers are stored so."""
        return self._stored
