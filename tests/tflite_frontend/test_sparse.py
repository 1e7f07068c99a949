"""Sparse constants, against the matrices that they were made of."""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from converter.frontends.tflite.reading.sparse import densified


def level(size: int | None = None, segments: Any = None, indices: Any = None) -> Any:
    """A dense level of a size, or a compressed one."""
    made = schema.DimensionMetadataT()
    if size is not None:
        made.format, made.denseSize = schema.DimensionType.DENSE, size
        return made
    made.format = schema.DimensionType.SPARSE_CSR
    made.arraySegmentsType = made.arrayIndicesType = schema.SparseIndexVector.Int32Vector
    made.arraySegments, made.arrayIndices = schema.Int32VectorT(), schema.Int32VectorT()
    made.arraySegments.values, made.arrayIndices.values = list(map(int, segments)), list(map(int, indices))
    return made


def table(order: list[int], levels: list[Any], blocks: list[int] | None = None) -> Any:
    said = schema.SparsityParametersT()
    said.traversalOrder, said.dimMetadata, said.blockMap = order, levels, blocks
    builder = flatbuffers.Builder(0)
    builder.Finish(said.Pack(builder))
    return schema.SparsityParameters.GetRootAs(bytes(builder.Output()), 0)


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_are_compressed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((5, 7)).astype(np.float32) * (rng.random((5, 7)) < 0.4)
    rows, columns = np.nonzero(dense)
    segments = np.searchsorted(rows, np.arange(6))
    said = table([0, 1], [level(5), level(None, segments, columns)])
    np.testing.assert_array_equal(densified(said, (5, 7), dense[rows, columns]), dense)


def test_blocks_along_the_last_axis() -> None:
    rng = np.random.default_rng(0)
    dense = np.zeros((4, 6, 4), np.float32)
    kept = rng.random((4, 6)) < 0.5
    dense[kept] = rng.standard_normal((kept.sum(), 4))
    rows, blocks = np.nonzero(kept)
    said = table([0, 1, 2], [level(4), level(None, np.searchsorted(rows, np.arange(5)), blocks), level(4)], [1])
    np.testing.assert_array_equal(densified(said, (4, 24), dense[kept].ravel()), dense.reshape(4, 24))


def test_levels_that_do_not_fit_are_refused() -> None:
    values = np.ones(3, np.float32)
    for order, levels in (
        ([0, 0], [level(2), level(2)]),
        ([0, 1], [level(2), level(2)]),
        ([0, 1], [level(1 << 30), level(1 << 30)]),
        ([0, 1], [level(2), level(None, [0, 2, 9], [0, 1])]),
    ):
        with pytest.raises((ValueError, IndexError)):
            densified(table(order, levels), (2, 2), values)
