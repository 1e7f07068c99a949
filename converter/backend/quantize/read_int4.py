"""Matrices in int4 of weights that are read when they are asked for: a piece at a time, into a file that is mapped."""

from __future__ import annotations

from math import prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from converter.ir import FLOAT32, INT4, LazyArray, Shape
from converter.ir.scales import int4_blocks, int4_rows, int4_scales, nearest_int4
from converter.passes.read_weights import pieces
from converter.support.collecting import let_go, room_on_disk

#: Bytes of a larger array lie in a file.
_IN_MEMORY = 1 << 20


class Rows(NamedTuple):
    """Integers of a matrix, int4 or int8 [A, B]; the scale of each row, float32 [A], or of each block, [A, blocks]."""

    integers: np.ndarray
    scales: np.ndarray


#: By what it was read from, whether it is transposed, and the block: a model is laid out for several numbers of rows.
_read: WeakKeyDictionary[LazyArray, dict[tuple[bool, int | None], Rows]] = WeakKeyDictionary()


def read_int4(source: LazyArray, transposed: bool, block: int | None, what: str) -> Rows:
    """Return a matrix as the nearest int4, a scale for each of its rows; `transposed`: for each of its columns.

    What is stored in integers already is taken over as it is: where blocks may have a scale each, with whatever blocks
    it has, else where each row has one.

    Args:
        source: the matrix [A, B].
        transposed: return the transposed one, [B, A].
        block: numbers of a row that share a scale, a divisor of their number; None: all of them.
        what: its name.

    Raises:
        NumericError: a number is not finite.
        OverflowError: a number is too large for the scale of a block.
    """
    known = _read.setdefault(source, {})
    key = transposed, block
    if key not in known:
        if is_taken_over(source, block) and not transposed:
            known[key] = _taken_over(source)
        else:
            known[key] = _turned(source, block, what) if transposed else _straight(source, block, what)
    return known[key]


def is_taken_over(source: LazyArray, block: int | None) -> bool:
    """Return whether the integers of an array are taken as they are stored."""
    stored = source.integers()
    return stored is not None and (block is not None or stored.blocks == 1)


def _taken_over(source: LazyArray) -> Rows:
    stored = source.integers()
    assert stored is not None
    room, scales = _Room(source.shape, stored.dtype), _Room((source.shape[0], stored.blocks), stored.of_scales)
    step = max(1, _IN_MEMORY // source.shape[1])
    for start in range(0, source.shape[0], step):
        part = slice(start, min(start + step, source.shape[0]))
        room.array[part], scales.array[part] = stored.rows(part.start, part.stop)
    if stored.blocks == 1:
        return Rows(room.filled(), scales.array[:, 0].astype(FLOAT32))
    return Rows(room.filled(), scales.filled())


def _straight(source: LazyArray, block: int | None, what: str) -> Rows:
    room, scales = _rooms(source.shape, block)
    for part, piece in pieces(source, what):
        room.array[part], scales.array[part] = int4_rows(piece) if block is None else int4_blocks(piece, block)
    return Rows(room.filled(), scales.filled())


def _turned(source: LazyArray, block: int | None, what: str) -> Rows:
    room, scales = _rooms(source.shape[::-1], block)
    if block is not None:
        for part, piece in pieces(source, what, block):
            blocks = slice(part.start // block, part.stop // block)
            room.array[:, part], scales.array[:, blocks] = int4_blocks(piece.T, block)
        return Rows(room.filled(), scales.filled())
    largest = np.zeros(source.shape[1], FLOAT32)
    for _, piece in pieces(source, what):
        np.maximum(largest, np.abs(piece).max(0), out=largest)
    scales.array[:] = int4_scales(largest)
    for part, piece in pieces(source, what):
        room.array[:, part] = nearest_int4(piece, scales.array).T
    return Rows(room.filled(), scales.filled())


def _rooms(shape: Shape, block: int | None) -> tuple[_Room, _Room]:
    """Return room for the integers of a matrix, and for its scales."""
    rows, columns = shape
    if block is None:
        return _Room(shape, INT4), _Room((rows,), FLOAT32)
    return _Room(shape, INT4), _Room((rows, columns // block), np.dtype(np.float16))


class _Room:
    """An array to be filled; a large one lies in a file, which ends with the array."""

    def __init__(self, shape: Shape, dtype: np.dtype) -> None:
        size = prod(shape) * dtype.itemsize
        self._on_disk = room_on_disk(size) if size > _IN_MEMORY else None
        room = bytearray(size) if self._on_disk is None else self._on_disk
        self.array = np.frombuffer(room, np.int8).view(dtype).reshape(shape)

    def filled(self) -> np.ndarray:
        """Return the array; of one in a file nothing stays in memory until it is read."""
        if self._on_disk is not None:
            self._on_disk.flush()
            let_go()
        return self.array
