"""Sparse constants of DENSIFY: the stored numbers, level by level; all others are 0."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from converter.program.flatbuffer.schema import generated


def densified(sparsity: Any, shape: Sequence[int], values: np.ndarray) -> np.ndarray:
    """Return the dense tensor of a sparse one.

    Args:
        sparsity: a `SparsityParameters` table (the schema of TFLite: levels in the order of a traversal, each dense or
            compressed by rows; after those of the axes come those of blocks).
        shape: of the tensor.
        values: those that are stored, in that order.

    Raises:
        ValueError, IndexError: the levels do not fit the shape or the values.
    """
    said = generated.SparsityParametersT.InitFromObj(sparsity)
    order = [int(i) for i in np.ravel(said.traversalOrder)]
    blocks = [int(i) for i in np.ravel(said.blockMap)] if said.blockMap is not None else []
    if sorted(order) != list(range(len(shape) + len(blocks))) or len(said.dimMetadata) != len(order):
        raise ValueError("levels")
    if prod(shape) > 64 * values.size + (1 << 20):
        raise ValueError("shape")
    places, coordinates = np.zeros(1, np.int64), np.zeros((1, 0), np.int64)
    most = 4 * values.size + (1 << 20)
    for level in said.dimMetadata:
        if level.format == generated.DimensionType.DENSE:
            if level.denseSize < 1 or len(places) * level.denseSize > most:
                raise ValueError("size")
            counts, found = np.full(len(places), level.denseSize), np.tile(np.arange(level.denseSize), len(places))
            places = np.repeat(places, level.denseSize) * level.denseSize + found
        else:
            segments, indices = (
                np.ravel(part.values).astype(np.int64) for part in (level.arraySegments, level.arrayIndices)
            )
            first, last = segments[places], segments[places + 1]
            counts = last - first
            if (counts < 0).any() or counts.sum() > most or (last > len(indices)).any():
                raise ValueError("segments")
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            places = np.repeat(first, counts) + within
            found = indices[places]
        coordinates = np.column_stack([np.repeat(coordinates, counts, axis=0), found])
    if len(places) > values.size or (len(places) and places.max() >= values.size):
        raise IndexError("values")
    at = np.empty_like(coordinates)
    at[:, order] = coordinates
    for number, axis in enumerate(blocks):
        size = next(m.denseSize for m, o in zip(said.dimMetadata, order, strict=True) if o == len(shape) + number)
        at[:, axis] = at[:, axis] * size + at[:, len(shape) + number]
    dense = np.zeros(tuple(shape), values.dtype)
    dense[tuple(at[:, : len(shape)].T)] = values[places]
    return dense
