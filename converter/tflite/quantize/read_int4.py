"""Matrices in int4 of weights that are read when they are asked for: a piece at a time, into a file that is mapped."""

from __future__ import annotations

from math import prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from converter.ir import FLOAT32, INT4, LazyArray, Shape
from converter.ir.scales import int4_rows, int4_scales, nearest_int4
from converter.passes.read_weights import pieces
from converter.support.collecting import let_go, room_on_disk

#: Integers of a larger matrix lie in a file.
_IN_MEMORY = 1 << 20


class Rows(NamedTuple):
    """Integers of a matrix, int4 or int8 [A, B], and the scale of each row, float32 [A]."""

    integers: np.ndarray
    scales: np.ndarray


#: By what it was read from, and whether it is turned: a model is laid out for several numbers of rows.
_read: WeakKeyDictionary[LazyArray, dict[bool, Rows]] = WeakKeyDictionary()


def read_int4(source: LazyArray, turned: bool, what: str) -> Rows:
    """Return a matrix as the nearest int4, a scale for each of its rows; `turned`: for each of its columns.

    What is stored in integers already, one scale for each of these, is taken over as it is.

    Args:
        source: the matrix [A, B].
        turned: return the transposed one, [B, A].
        what: its name.

    Raises:
        NumericError: a number is not finite.
    """
    known = _read.setdefault(source, {})
    if turned not in known:
        known[turned] = _turned(source, what) if turned else _taken_over(source) or _straight(source, what)
    return known[turned]


def _taken_over(source: LazyArray) -> Rows | None:
    stored = source.integers()
    if stored is None:
        return None
    room = _Room(source.shape, stored.dtype)
    step = max(1, _IN_MEMORY // source.shape[1])
    for start in range(0, source.shape[0], step):
        stop = min(start + step, source.shape[0])
        room.array[start:stop] = stored.rows(start, stop)
    return Rows(room.filled(), np.asarray(stored.scales, FLOAT32))


def _straight(source: LazyArray, what: str) -> Rows:
    room, scales = _Room(source.shape, INT4), np.empty(source.shape[0], FLOAT32)
    for part, piece in pieces(source, what):
        room.array[part], scales[part] = int4_rows(piece)
    return Rows(room.filled(), scales)


def _turned(source: LazyArray, what: str) -> Rows:
    largest = np.zeros(source.shape[1], FLOAT32)
    for _, piece in pieces(source, what):
        np.maximum(largest, np.abs(piece).max(0), out=largest)
    room, scales = _Room(source.shape[::-1], INT4), int4_scales(largest)
    for part, piece in pieces(source, what):
        room.array[:, part] = nearest_int4(piece, scales).T
    return Rows(room.filled(), scales)


class _Room:
    """An array of integers, one a byte, to be filled; a large one lies in a file, which ends with the array."""

    def __init__(self, shape: Shape, dtype: np.dtype) -> None:
        self._on_disk = room_on_disk(prod(shape)) if prod(shape) > _IN_MEMORY else None
        room = bytearray(prod(shape)) if self._on_disk is None else self._on_disk
        self.array = np.frombuffer(room, np.int8).view(dtype).reshape(shape)

    def filled(self) -> np.ndarray:
        """Return the array; of one in a file nothing stays in memory until it is read."""
        if self._on_disk is not None:
            self._on_disk.flush()
            let_go()
        return self.array
