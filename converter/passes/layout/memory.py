"""Memory layouts: in which order the elements of a tensor lie, as sizes and strides, whatever its shape is."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from converter.ir import Shape

#: Loops over the elements in the order in which they lie, the outermost first: how many, and how far apart they are in
#: row-major order. Canonical: no loop of one element, none that only continues the one around it. So a reshape leaves
#: it as it is, and two layouts are the same if they are equal.
Memory = tuple[tuple[int, int], ...]


def natural(size: int) -> Memory:
    """Return row-major order."""
    return joined([(size, 1)])


def joined(loops: Iterable[tuple[int, int]]) -> Memory:
    """Return the canonical form of loops."""
    made: list[tuple[int, int]] = []
    for size, stride in loops:
        if size == 1:
            continue
        if made and made[-1][1] == size * stride:
            made[-1] = made[-1][0] * size, stride
        else:
            made.append((size, stride))
    return tuple(made)


def strides_of(shape: Shape) -> tuple[int, ...]:
    """Return the row-major strides of a shape."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def transposed(shape: Shape, perm: tuple[int, ...]) -> Memory:
    """Return how a tensor of a shape lies if its axes are stored in another order."""
    strides = strides_of(shape)
    return joined((shape[p], strides[p]) for p in perm)


def split(loops: Iterable[tuple[int, int]], sizes: Shape) -> list[list[tuple[int, int, int]]] | None:
    """Return each loop as loops over the axes of a shape: (axis, how many, how far apart on it).

    None where one covers a part of an axis that is no whole number of steps.
    """
    bounds = list(zip(range(len(sizes)), sizes, strides_of(sizes), strict=True))
    made = []
    for size, stride in loops:
        parts, left = [], 1
        for axis, count, step in bounds:
            low, high = max(stride, step), min(stride * size, step * count)
            if low >= high:
                continue
            if low % stride or low % step or (stride * size) % high or (step * count) % high or high % low:
                return None
            parts.append((axis, high // low, low // step))
            left *= high // low
        if left != size:
            return None
        made.append(parts)
    return made


def compose(inner: Memory, outer: Memory) -> Memory | None:
    """Return how a tensor lies if what lies as `outer` is stored as `inner` says of it; None where no loops do."""
    parts = split(inner, tuple(size for size, _ in outer))
    if parts is None:
        return None
    return joined((size, step * outer[axis][1]) for loop in parts for axis, size, step in loop)


def inverse(memory: Memory) -> Memory:
    """Return how row-major order lies, seen from what lies so."""
    places = strides_of(tuple(size for size, _ in memory))
    ordered = sorted(zip(memory, places, strict=True), key=lambda one: -one[0][1])
    return joined((size, place) for (size, _), place in ordered)


def keeps_rows(memory: Memory, rows: int) -> bool:
    """Return whether so many rows, one after the other in row-major order, are so in this one; of others: True."""
    size = prod(count for count, _ in memory)
    if rows == 1 or size % rows:
        return True
    parts = split(memory, (rows, size // rows))
    return parts is not None and next(part for loop in parts for part in loop) == (0, rows, 1)
