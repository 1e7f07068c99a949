"""Data movement without arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from converter.backend.builtins.base import Builtin, Delegated, Types, int32, needs_rank_4
from converter.ir import ops
from converter.ir.op import Cost, Op, ShapeError
from converter.ir.types import BOOL, FLOAT32, INT32, Shape, TensorType


class Movement(Builtin):
    """Moves data: no FLOPs, every element read and written once."""

    kinds = "fib"
    moves_data = True

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, 2 * sum(t.nbytes for t in outputs))

    def copies(self) -> bool:
        return not self.keeps_data


@dataclass(frozen=True)
class Reshape(Movement):
    """Row-major reinterpretation of the same elements; `free`: an axis whose size the runtime finds from the others."""

    code, table = "RESHAPE", "ReshapeOptions"
    keeps_data = xnnpack = xnnpack_in_place = is_cheap = same_scale = True
    reuses = (0,)
    shape: Shape
    free: int | None = None

    def meaning(self, *types: TensorType) -> Op:
        return ops.Reshape(self.shape)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(*self._sizes),)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"NewShape": self._sizes}

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(-1 if axis == self.free else size for axis, size in enumerate(self.shape))


@dataclass(frozen=True)
class Transpose(Movement):
    """Axes reordered: output axis i is input axis perm[i]."""

    code, table = "TRANSPOSE", "TransposeOptions"
    xnnpack = same_scale = True
    moved = "transpose"
    perm: tuple[int, ...]

    def meaning(self, *types: TensorType) -> Op:
        return ops.Transpose(self.perm)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(*self.perm),)

    def version(self, inputs: Types, outputs: Types) -> int:
        by_rank = {5: 4, 6: 6}
        return by_rank.get(inputs[0].rank, 3 if inputs[0].dtype == BOOL else 1) if inputs[0].rank < 7 else 8


@dataclass(frozen=True)
class BroadcastTo(Movement):
    """NumPy broadcasting to a larger shape."""

    code, table = "BROADCAST_TO", "BroadcastToOptions"
    shape: Shape

    def meaning(self, *types: TensorType) -> Op:
        return ops.BroadcastTo(self.shape)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(*self.shape),)

    def version(self, inputs: Types, outputs: Types) -> int:
        return 2  # version 1 had another code and was withdrawn


@dataclass(frozen=True)
class Slice(Movement):
    """`size` elements from `begin` on each axis."""

    code, table = "SLICE", "SliceOptions"
    xnnpack = is_cheap = same_scale = True
    begin: tuple[int, ...]
    size: tuple[int, ...]

    def meaning(self, *types: TensorType) -> Op:
        return ops.Slice(self.begin, self.size)

    def operands(self) -> tuple[np.ndarray, ...]:
        return int32(*self.begin), int32(*self.size)

    def version(self, inputs: Types, outputs: Types) -> int:
        return 5 if inputs[0].rank > 4 else 1


@dataclass(frozen=True)
class SliceWeight(Slice):
    """A part of a constant, copied at each run: folded, it would be a constant of its own in the file, and packed."""

    folds = merges = False

    def copies(self) -> bool:
        return True


@dataclass(frozen=True)
class StridedSlice(Movement):
    """Every strides[i]-th element from begin[i] up to, not including, end[i] (at most the axis) on each axis i."""

    code, table = "STRIDED_SLICE", "StridedSliceOptions"
    xnnpack = True
    begin: tuple[int, ...]
    end: tuple[int, ...]
    strides: tuple[int, ...]

    def meaning(self, *types: TensorType) -> Op:
        x = types[0]
        if not len(self.begin) == len(self.end) == len(self.strides) == x.rank or min(self.strides, default=1) < 1:
            raise ShapeError(f"{self}: does not fit {list(x.shape)}")
        axes = zip(self.begin, self.end, self.strides, x.shape, strict=True)
        return ops.Slice(self.begin, tuple(-((b - min(e, d)) // s) for b, e, s, d in axes), self.strides)

    def operands(self) -> tuple[np.ndarray, ...]:
        return int32(*self.begin), int32(*self.end), int32(*self.strides)

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        return super().delegated(inputs, outputs, constant, lanes) if set(self.strides) <= {1} else None

    def version(self, inputs: Types, outputs: Types) -> int:
        return 4 if inputs[0].rank > 4 else 3 if inputs[0].dtype == BOOL else 1


class Sizes(Movement):
    """The sizes of an operand's axes, int32 [rank], which the runtime knows before anything runs."""

    code, table = "SHAPE", "ShapeOptions"
    moves_data = False

    def result(self, *types: TensorType) -> TensorType:
        return TensorType((types[0].rank,), INT32)

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        return int32(*arrays[0].shape)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"OutType": INT32}


def _check_pad_rank(op: Op, x: TensorType) -> None:
    if x.rank > 5:
        raise ShapeError(f"{op.name}: {x} has rank above 5")


@dataclass(frozen=True)
class Pad(Movement):
    """Zeros around: paddings[i] = (before, after) on axis i; rank 5 or less."""

    code, table = "PAD", "PadOptions"
    xnnpack = same_scale = True
    paddings: tuple[tuple[int, int], ...]

    @property
    def fill(self) -> float:
        return 0.0

    def meaning(self, *types: TensorType) -> Op:
        _check_pad_rank(self, types[0])
        return ops.Pad(self.paddings)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (np.array(self.paddings, np.int32),)

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        run = super().delegated(inputs, outputs, constant, lanes)
        only_around = len(self.paddings) == 4 and self.paddings[0] == self.paddings[3] == (0, 0)
        return run and replace(run, pads=only_around)

    def version(self, inputs: Types, outputs: Types) -> int:
        return 5 if inputs[0].dtype == BOOL else 4 if inputs[0].rank > 4 else 1


@dataclass(frozen=True)
class Zeros(Movement):
    """() -> zeros, which the operator makes from one: they take no room in the file. Rank 5 or less."""

    fill = 0.0
    code, table = "PAD", "PadOptions"
    kinds = "fi"
    type: TensorType

    def result(self, *types: TensorType) -> TensorType:
        _check_pad_rank(self, self.type)
        return self.type

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        return np.zeros(self.type.shape, self.type.dtype)

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        return Delegated() if self.type.dtype == FLOAT32 else None

    def operands(self) -> tuple[np.ndarray, ...]:
        one = np.zeros((1,) * self.type.rank, self.type.dtype)
        return one, np.array([(0, d - 1) for d in self.type.shape], np.int32)


@dataclass(frozen=True)
class PadV2(Pad):
    """`value` around (float32 operand)."""

    code, table = "PADV2", "PadV2Options"
    xnnpack = same_scale = False
    kinds = "f"
    value: float = 0.0

    @property
    def fill(self) -> float:
        return self.value

    def meaning(self, *types: TensorType) -> Op:
        _check_pad_rank(self, types[0])
        return ops.Pad(self.paddings, self.value)

    def operands(self) -> tuple[np.ndarray, ...]:
        return *super().operands(), np.array([self.value], np.float32)


@dataclass(frozen=True)
class Concatenation(Movement):
    """Operands one after the other along one axis."""

    code, table = "CONCATENATION", "ConcatenationOptions"
    xnnpack = same_scale = True
    axis: int

    def meaning(self, *types: TensorType) -> Op:
        return ops.Concat(self.axis)

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        return super().delegated(inputs, outputs, constant, lanes) if len(inputs) <= 4 else None

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"Axis": self.axis}


@dataclass(frozen=True)
class ReverseV2(Movement):
    """Order reversed along axes, which are neighbours."""

    code, table = "REVERSE_V2", "ReverseV2Options"
    axes: tuple[int, ...]

    def meaning(self, *types: TensorType) -> Op:
        if sorted(self.axes) != list(range(min(self.axes), min(self.axes) + len(self.axes))):
            raise ShapeError(f"{self}: the kernel takes neighbouring axes only")
        return ops.Reverse(self.axes)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(*self.axes),)

    def version(self, inputs: Types, outputs: Types) -> int:
        return 2 if inputs[0].dtype == BOOL else 1


@dataclass(frozen=True)
class SpaceToDepth(Movement):
    """[N, H b, W b, C] -> [N, H, W, b b C]: channel (i b + j) C + c is row i, column j of the block."""

    code, table = "SPACE_TO_DEPTH", "SpaceToDepthOptions"
    xnnpack = same_scale = True
    kinds = "fi"
    block: int

    def result(self, *types: TensorType) -> TensorType:
        (x,) = types
        needs_rank_4(self, x)
        n, h, w, c = x.shape
        if h % self.block or w % self.block:
            raise ShapeError(f"{self}: blocks do not fill {list(x.shape)}")
        return x.with_shape((n, h // self.block, w // self.block, c * self.block**2))

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        (x,), b = arrays, self.block
        n, h, w, c = x.shape
        split = x.reshape(n, h // b, b, w // b, b, c).transpose(0, 1, 3, 2, 4, 5)
        return split.reshape(n, h // b, w // b, b * b * c)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"BlockSize": self.block}


@dataclass(frozen=True)
class DepthToSpace(Movement):
    """Inverse of SpaceToDepth."""

    code, table = "DEPTH_TO_SPACE", "DepthToSpaceOptions"
    xnnpack = True
    kinds = "fi"
    block: int

    def result(self, *types: TensorType) -> TensorType:
        (x,) = types
        needs_rank_4(self, x)
        n, h, w, c = x.shape
        if c % self.block**2:
            raise ShapeError(f"{self}: {c} channels make no blocks")
        return x.with_shape((n, h * self.block, w * self.block, c // self.block**2))

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        (x,), b = arrays, self.block
        n, h, w, c = x.shape
        joined = x.reshape(n, h, w, b, b, c // b**2).transpose(0, 1, 3, 2, 4, 5)
        return joined.reshape(n, h * b, w * b, c // b**2)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"BlockSize": self.block}
