"""Builtins that read constants stored in fewer bits directly from the file, and return float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from converter.backend.builtins.arithmetic import Cast
from converter.backend.builtins.base import Builtin, Delegated, Types
from converter.ir import ops
from converter.ir.op import Cost, ShapeError
from converter.ir.quantization import INT8, UNSCALED
from converter.ir.types import FLOAT16, FLOAT32, INT4, TensorType, stored_bytes


@dataclass(frozen=True)
class CastWeight(Cast):
    """A weight of int4, int8, float16 or float32 as float32, at each run: a copy in the arena of what is mapped.

    DEQUANTIZE keeps what it made of a constant as long as the interpreter lives, and so do products of a constant.
    """

    folds = merges = False  # what is made for one product would be kept for the next
    moved = "unpacked"
    dtype: np.dtype = FLOAT32

    def infer(self, *types: TensorType) -> TensorType:
        (w,) = types
        if w.dtype not in (INT4, INT8, FLOAT16, FLOAT32) or w.quantization is not None:
            raise ShapeError(f"CastWeight: no kernel takes {w}")
        return TensorType(w.shape, FLOAT32)

    def copies(self) -> bool:
        return True

    def version(self, inputs: Types, outputs: Types) -> int:
        return 6 if inputs[0].dtype == INT4 else 3


@dataclass(frozen=True)
class CastInteger(Cast):
    """Whole numbers from -128 to 127 as int8 of scale 1."""

    dtype: np.dtype = INT8

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        if x.dtype != FLOAT32:
            raise ShapeError(f"CastInteger: float32 becomes int8, got {x}")
        return TensorType(x.shape, INT8, UNSCALED)


@dataclass(frozen=True)
class DequantizeFloat16(Builtin):
    """A constant of float16 as float32, of which XNNPACK packs filters and biases when the program is loaded.

    For all other operators the runtime keeps what it makes, as long as the interpreter lives.
    """

    code, table = "DEQUANTIZE", "DequantizeOptions"
    folds = False

    def infer(self, *types: TensorType) -> TensorType:
        (w,) = types
        if w.dtype != FLOAT16:
            raise ShapeError(f"DequantizeFloat16: the constant is {w}")
        return TensorType(w.shape, FLOAT32)

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        return arrays[0].astype(FLOAT32)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, 0)

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        return Delegated(known=True)

    def version(self, inputs: Types, outputs: Types) -> int:
        return 3


@dataclass(frozen=True)
class EmbeddingLookup(Builtin):
    """Rows of a constant table [V, N] of int4 or int8, all scales 1, by int32 indices [n], as float32 [n, N].

    An index out of range is an error at run time.
    """

    code = "EMBEDDING_LOOKUP"

    def infer(self, *types: TensorType) -> TensorType:
        indices, table = types
        of = table.quantization
        is_scaled = of is None or of.zero_point != 0 or set(of.scales) != {1.0}
        if is_scaled or indices.rank != 1:
            raise ShapeError(f"EmbeddingLookup: no kernel takes {indices} and {table}")
        return ops.CastGather().infer(TensorType(table.shape, table.dtype), indices)

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        indices, table = arrays
        return ops.CastGather().evaluate(table, indices)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, inputs[0].nbytes + outputs[0].nbytes + stored_bytes(outputs[0].size, inputs[1].dtype))

    def version(self, inputs: Types, outputs: Types) -> int:
        return 4 if inputs[1].dtype == INT4 else 1
