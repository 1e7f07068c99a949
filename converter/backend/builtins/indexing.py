"""Gather, scatter, tile and pack: builtins that look up, scatter, repeat and stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from converter.backend.builtins.base import Builtin, Types, int32
from converter.backend.builtins.movement import Movement
from converter.ir import ops
from converter.ir.op import Cost, Op, ShapeError
from converter.ir.types import BOOL, Shape, TensorType


@dataclass(frozen=True)
class Dilate(Movement):
    """Puts strides[i]-1 zeros between neighbours on axis i (float32)."""

    fill = 0.0
    code, table = "DILATE", "DilateOptions"
    kinds = "f"
    strides: tuple[int, ...]

    def meaning(self, *types: TensorType) -> Op:
        return ops.Dilate(self.strides)

    def operands(self) -> tuple[np.ndarray, ...]:
        return int32(*self.strides), np.zeros(1, np.float32)


@dataclass(frozen=True)
class Gather(Movement):
    """Rows of a table along `axis` by int32 indices of any shape; an index out of range is an error at run time."""

    code, table = "GATHER", "GatherOptions"
    axis: int = 0

    def meaning(self, *types: TensorType) -> Op:
        return ops.Gather(self.axis)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"Axis": self.axis}

    def version(self, inputs: Types, outputs: Types) -> int:
        return 3 if inputs[0].dtype == BOOL else 1


@dataclass(frozen=True)
class ScatterNd(Movement):
    """Zeros of `shape` to which updates[i] is added at row indices[i, 0]: indices int32 [N, 1], updates [N, *row]."""

    code, table = "SCATTER_ND", "ScatterNdOptions"
    moves_data = False
    kinds = "fi"
    shape: Shape

    def result(self, *types: TensorType) -> TensorType:
        indices, updates = types
        rows = (*indices.shape[:1], *self.shape[1:])
        if indices.rank != 2 or indices.shape[1] != 1 or indices.dtype.kind != "i" or updates.shape != rows:
            raise ShapeError(f"{self}: indices {indices}, updates {updates}")
        return updates.with_shape(self.shape)

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        indices, updates = arrays
        return ops.ScatterAdd(self.shape[0]).evaluate(indices[:, 0], updates)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(*self.shape),)


@dataclass(frozen=True)
class UnsortedSegment(Builtin):
    """`rows` rows, each made of the rows of the first operand whose index, in the second, is its number."""

    kinds = "fi"
    means: ClassVar[type[ops.Segment]]
    rows: int

    def result(self, *types: TensorType) -> TensorType:
        updates, indices = types
        return self.means(self.rows).infer(indices, updates)

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        updates, indices = arrays
        return self.means(self.rows).evaluate(indices, updates)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return self.means(self.rows).cost(inputs, outputs)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(self.rows),)


class UnsortedSegmentMax(UnsortedSegment):
    """The largest."""

    code, table, means = "UNSORTED_SEGMENT_MAX", "UnsortedSegmentMaxOptions", ops.SegmentMax


class UnsortedSegmentMin(UnsortedSegment):
    """The smallest."""

    code, table, means = "UNSORTED_SEGMENT_MIN", "UnsortedSegmentMinOptions", ops.SegmentMin


class UnsortedSegmentProd(UnsortedSegment):
    """The product."""

    code, table, means = "UNSORTED_SEGMENT_PROD", "UnsortedSegmentProdOptions", ops.SegmentProd


@dataclass(frozen=True)
class TopKV2(Builtin):
    """The k largest elements of the last axis, largest first, and where they are."""

    code, table = "TOPK_V2", "TopKV2Options"
    kinds = "fi"
    k: int

    def result(self, *types: TensorType) -> Types:
        indices = ops.TopIndices(self.k).infer(*types)
        return TensorType(indices.shape, types[0].dtype), indices

    def evaluate(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        indices = ops.TopIndices(self.k).evaluate(*arrays)
        return np.take_along_axis(arrays[0], indices, -1), indices

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return ops.TopIndices(self.k).cost(inputs, outputs)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(self.k),)


@dataclass(frozen=True)
class DynamicUpdateSlice(Movement):
    """The first operand with the box at the third, a vector, replaced by the second."""

    code, table = "DYNAMIC_UPDATE_SLICE", "DynamicUpdateSliceOptions"

    def meaning(self, *types: TensorType) -> Op:
        return ops.UpdateSlice()


@dataclass(frozen=True)
class OneHot(Movement):
    """float32 rows with a one at the index, appended as the last axis; an index out of range gives zeros."""

    code, table = "ONE_HOT", "OneHotOptions"
    moves_data = False
    kinds = "i"
    depth: int

    def meaning(self, *types: TensorType) -> Op:
        return ops.OneHot(self.depth)

    def operands(self) -> tuple[np.ndarray, ...]:
        return int32(self.depth), np.ones(1, np.float32), np.zeros(1, np.float32)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"Axis": -1}


@dataclass(frozen=True)
class Tile(Movement):
    """The whole repeated multiples[i] times along axis i."""

    code, table = "TILE", "TileOptions"
    multiples: tuple[int, ...]

    def result(self, *types: TensorType) -> TensorType:
        (x,) = types
        if len(self.multiples) != x.rank:
            raise ShapeError(f"{self}: does not fit {list(x.shape)}")
        return x.with_shape(tuple(d * m for d, m in zip(x.shape, self.multiples, strict=True)))

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        return np.tile(arrays[0], self.multiples)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(*self.multiples),)


@dataclass(frozen=True)
class Pack(Movement):
    """Operands of one type stacked along a new axis."""

    code, table = "PACK", "PackOptions"
    kinds = "fi"
    axis: int

    def result(self, *types: TensorType) -> TensorType:
        x = types[0]
        if len(set(types)) != 1 or not 0 <= self.axis <= x.rank:
            raise ShapeError(f"{self}: operands {', '.join(map(str, types))}")
        return x.with_shape((*x.shape[: self.axis], len(types), *x.shape[self.axis :]))

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        return np.stack(arrays, self.axis)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"ValuesCount": len(inputs), "Axis": self.axis}


@dataclass(frozen=True)
class Unpack(Movement):
    """The slices along one axis, without it, as so many outputs."""

    code, table = "UNPACK", "UnpackOptions"
    axis: int

    def result(self, *types: TensorType) -> Types:
        (x,) = types
        if x.rank < 2 or not 0 <= self.axis < x.rank:
            raise ShapeError(f"{self}: does not fit {list(x.shape)}")
        piece = x.with_shape((*x.shape[: self.axis], *x.shape[self.axis + 1 :]))
        return (piece,) * x.shape[self.axis]

    def evaluate(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.moveaxis(arrays[0], self.axis, 0))

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"Num": len(outputs), "Axis": self.axis}

    def version(self, inputs: Types, outputs: Types) -> int:
        return 3 if inputs[0].dtype == BOOL else 1
