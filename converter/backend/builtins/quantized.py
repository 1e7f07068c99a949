"""Quantized builtins, whose operands are integers that represent real numbers (`TensorType.quantization`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from converter.backend.builtins.arithmetic import Applied
from converter.backend.builtins.base import Builtin, Delegated, Types
from converter.ir.op import Cost, Op, ShapeError
from converter.ir.quantization import INT8, UNSCALED, Quantization
from converter.ir.types import FLOAT32, INT4, TensorType

#: Versions with which the kernels began to take int8 operands, where that is not the first.
_INT8_VERSIONS = {
    "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4, "HARD_SWISH": 1, "RESHAPE": 1,
}  # fmt: skip
#: Versions with which the kernels began to take float operands and int8 weights: of one scale, of a scale a channel.
_DYNAMIC_RANGE_VERSIONS = {
    "FULLY_CONNECTED": (3, 12), "CONV_2D": (2, 5), "BATCH_MATMUL": (1, 1), "TRANSPOSE_CONV": (2, 2),
}  # fmt: skip

#: The version of FULLY_CONNECTED with which it took weights of int4.
_DYNAMIC_RANGE_INT4_VERSION = 10


def as_real(type: TensorType) -> TensorType:
    """Return the type of the numbers that a tensor stands for."""
    return TensorType(type.shape, FLOAT32) if type.quantization is not None else type


@dataclass(frozen=True)
class Quantize(Builtin):
    """Real numbers to the nearest int8 that stands for them."""

    code, table = "QUANTIZE", "QuantizeOptions"
    to: Quantization

    def meaning(self, *types: TensorType) -> Op:
        return Applied(self.to.stored)

    def result(self, *types: TensorType) -> TensorType:
        return TensorType(types[0].shape, INT8, self.to)

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        return Delegated()


@dataclass(frozen=True)
class _Quantized(Builtin):
    """What takes quantized operands, as `of` says."""

    of: tuple[Quantization | None, ...]

    def infer(self, *types: TensorType) -> TensorType | Types:
        if tuple(t.quantization for t in types) != self.of:
            raise ShapeError(f"{self.name}: is of {', '.join(map(str, self.of))}, got {', '.join(map(str, types))}")
        return self.result(*types)

    def real(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Return the numbers that the operands stand for."""
        pairs = zip(arrays, self.of, strict=True)
        return [array if of is None else of.real(array).astype(np.float32) for array, of in pairs]


@dataclass(frozen=True)
class Dequantize(_Quantized):
    """int8 to the real numbers that it stands for."""

    code, table = "DEQUANTIZE", "DequantizeOptions"

    def meaning(self, *types: TensorType) -> Op:
        return Applied(lambda stored: self.real(stored)[0])

    def result(self, *types: TensorType) -> TensorType:
        return as_real(types[0])

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        return Delegated()

    def version(self, inputs: Types, outputs: Types) -> int:
        return {"uint8": 1, "int8": 2}.get(inputs[0].dtype.name, 3)


@dataclass(frozen=True)
class UnpackedWeight(Dequantize):
    """A weight of int4 or int8 with scale 1 as float32, for engines that take no CAST of a constant.

    The interpreter keeps what it makes, as long as it lives.
    """

    folds = merges = False
    of: tuple[Quantization | None, ...] = (UNSCALED,)


@dataclass(frozen=True)
class Wrapped(_Quantized):
    """A builtin on other element types: shapes, options and meaning are those of `op`."""

    op: Builtin

    @property
    def code(self) -> str:  # type: ignore[override]
        """That of the builtin."""
        return self.op.code

    @property
    def table(self) -> str:  # type: ignore[override]
        """That of the builtin."""
        return self.op.table

    @property
    def name(self) -> str:
        return f"{self.op.name}{super().name}"

    def meaning(self, *types: TensorType) -> Op:
        return self.op.meaning(*map(as_real, types))

    def result(self, *types: TensorType) -> TensorType | Types:
        return self.op.infer(*map(as_real, types))

    def evaluate(self, *arrays: np.ndarray) -> Any:
        return self.op.evaluate(*self.real(*arrays))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        moved = sum(t.nbytes for t in (*inputs, *outputs))
        return replace(self.op.cost(tuple(map(as_real, inputs)), tuple(map(as_real, outputs))), bytes=moved)

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        """As the builtin on real numbers, of whose constants these take a quarter, or an eighth."""
        run = self.op.delegated(tuple(map(as_real, inputs)), tuple(map(as_real, outputs)), constant, lanes)
        less = 8 if any(t.dtype == INT4 for t in inputs) else 4
        return run and replace(run, packed=run.packed // less)

    @property
    def keeps_data(self) -> bool:  # type: ignore[override]
        """As the builtin's."""
        return self.op.keeps_data

    @property
    def moved(self) -> str:  # type: ignore[override]
        """As the builtin's."""
        return self.op.moved

    def operands(self) -> tuple[np.ndarray, ...]:
        return self.op.operands()

    def assemble(self, inputs: tuple[Any, ...], constants: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.op.assemble(inputs, constants)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return self.op.options(inputs, outputs)


@dataclass(frozen=True)
class Int8(Wrapped):
    """A builtin of int8 operands (and an int32 bias) and an int8 result, which stands for numbers as `to` says.

    The kernel multiplies integers exactly and rounds once, to the result's scale.
    """

    to: Quantization

    def result(self, *types: TensorType) -> TensorType:
        real = super().result(*types)
        assert isinstance(real, TensorType)
        return TensorType(real.shape, INT8, self.to)

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        return self.to.stored(super().evaluate(*arrays))

    def scratch(self, inputs: Types, outputs: Types) -> tuple[int, ...]:
        return self.op.scratch(inputs, outputs)

    def in_place(self) -> tuple[int, ...]:
        return self.op.in_place()

    def version(self, inputs: Types, outputs: Types) -> int:
        plain = self.op.version(tuple(map(as_real, inputs)), tuple(map(as_real, outputs)))
        return max(plain, _INT8_VERSIONS.get(self.code, 2))


@dataclass(frozen=True)
class DynamicRange(Wrapped):
    """A matrix product or convolution of float32 activations with constant int8 weights, FULLY_CONNECTED also of int4.

    The kernel finds the range of each row (image) as it runs, multiplies integers, and gives float32.
    """

    def version(self, inputs: Types, outputs: Types) -> int:
        plain = self.op.version(tuple(map(as_real, inputs)), outputs)
        per_channel = any(of is not None and of.per_channel for of in self.of)
        if inputs[1].dtype == INT4:
            return max(plain, _DYNAMIC_RANGE_INT4_VERSION)
        return max(plain, _DYNAMIC_RANGE_VERSIONS[self.code][per_channel])
