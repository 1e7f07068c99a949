"""Builtins that meet constants as they lie in the file, and give float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from converter.ir import ops
from converter.ir.op import Cost, ShapeError
from converter.ir.quantization import INT8, UNSCALED
from converter.ir.types import FLOAT32, INT4, TensorType, stored_bytes
from converter.tflite.builtins.arithmetic import Cast
from converter.tflite.builtins.base import Builtin, Types


@dataclass(frozen=True)
class CastWeight(Cast):
    """A weight of int4, int8 or float32 as float32, at each run: the constant is mapped, and its copy is in the arena.

    DEQUANTIZE keeps what it made of a constant as long as the interpreter lives, and so do products of a constant.
    """

    folds = merges = False  # what is made for one product would be kept for the next
    moved = "unpacked"
    dtype: np.dtype = FLOAT32

    def infer(self, *types: TensorType) -> TensorType:
        (w,) = types
        if w.dtype not in (INT4, INT8, FLOAT32) or w.quantization is not None:
            raise ShapeError(f"CastWeight: no kernel takes {w}")
        return TensorType(w.shape, FLOAT32)

    def copies(self) -> bool:
        return True

    def version(self, inputs: Types, outputs: Types) -> int:
        return 6 if inputs[0].dtype == INT4 else 3


@dataclass(frozen=True)
class EmbeddingLookup(Builtin):
    """Rows of a constant table [V, N] of int4 or int8 with scale 1, by int32 indices [n], as float32 [n, N].

    An index out of range is an error at run time.
    """

    code = "EMBEDDING_LOOKUP"

    def infer(self, *types: TensorType) -> TensorType:
        indices, table = types
        if table.quantization != UNSCALED or indices.rank != 1:
            raise ShapeError(f"EmbeddingLookup: no kernel takes {indices} and {table}")
        return ops.CastGather().infer(TensorType(table.shape, table.dtype), indices)

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        indices, table = arrays
        return ops.CastGather().evaluate(table, indices)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, inputs[0].nbytes + outputs[0].nbytes + stored_bytes(outputs[0].size, inputs[1].dtype))

    def version(self, inputs: Types, outputs: Types) -> int:
        return 4 if inputs[1].dtype == INT4 else 1
