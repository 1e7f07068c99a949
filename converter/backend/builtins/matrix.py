"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from converter.backend.builtins.base import Builtin, Delegated, Fused, Types, activate, packed_matrix
from converter.ir import ops
from converter.ir.op import Cost, Op, ShapeError
from converter.ir.types import TensorType


@dataclass(frozen=True)
class FullyConnected(Fused):
    """x [..., I] times w [O, I] transposed, plus a bias [O] if there is a third operand, then the activation.

    The result is [rows, O], or [..., O] with `keep_num_dims`.
    """

    code, table = "FULLY_CONNECTED", "FullyConnectedOptions"
    elementwise = xnnpack_in_place = is_cheap = False
    product = "fully_connected"
    factors = (1, 0)
    int8_weights = True
    keep_num_dims: bool = False

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        run = super().delegated(inputs, outputs, constant, lanes)
        columns, rows = inputs[1].shape
        if run is None or not all(constant[1:]):
            return None
        return replace(run, packed=packed_matrix(rows, columns, lanes), clamps=False)

    def result(self, *types: TensorType) -> TensorType:
        x, w, *bias = types
        if w.rank != 2 or x.shape[-1:] != w.shape[1:] or any(b.shape != w.shape[:1] for b in bias):
            raise ShapeError(f"FullyConnected: operands {', '.join(map(str, types))}")
        rows = x.shape[:-1] if self.keep_num_dims else (prod(x.shape[:-1]),)
        return x.with_shape((*rows, w.shape[0]))

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        x, w, *bias = arrays
        rows = x if self.keep_num_dims else x.reshape(-1, x.shape[-1])
        return activate(self.activation, sum(bias, start=rows @ w.T))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(2 * outputs[0].size * inputs[1].shape[1], sum(t.nbytes for t in (*inputs, *outputs)))

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        # False is the default, and a version 1 table does not have the field.
        return {**super().options(inputs, outputs), **({"KeepNumDims": True} if self.keep_num_dims else {})}

    def version(self, inputs: Types, outputs: Types) -> int:
        return 6 if len(inputs) == 2 else 5 if self.keep_num_dims else 1


@dataclass(frozen=True)
class BatchMatmul(Builtin):
    """[..., M, K] x [..., K, N] -> [..., M, N], leading axes broadcast; `adj_x`, `adj_y` transpose the last two."""

    code, table = "BATCH_MATMUL", "BatchMatMulOptions"
    xnnpack = True
    product = "batch_matmul"
    factors = (1, 0)
    scratch_of = (None, 1)
    adj_x: bool = False
    adj_y: bool = False

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        run = super().delegated(inputs, outputs, constant, lanes)
        if run is None:
            return None
        x, y = inputs
        rows, columns = y.shape[-1:-3:-1] if self.adj_y else y.shape[-2:]
        packed = prod(y.shape[:-2]) * packed_matrix(rows, columns, lanes)
        transposed = x.nbytes if self.adj_x else 0
        return (
            replace(run, packed=packed, scratch=transposed)
            if constant[1]
            else replace(run, scratch=packed + transposed)
        )

    def meaning(self, *types: TensorType) -> Op:
        if max(t.rank for t in types) > 5:
            raise ShapeError(f"BatchMatmul: wants rank 5 or less, got {' and '.join(map(str, types))}")
        return ops.MatMul(self.adj_x, self.adj_y)

    def scratch(self, inputs: Types, outputs: Types) -> tuple[int, ...]:
        """Room for both operands transposed, whether or not the kernel needs it."""
        return inputs[0].nbytes, inputs[1].nbytes

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"AdjX": self.adj_x, "AdjY": self.adj_y}
