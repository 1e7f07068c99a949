"""Reductions and normalizations along axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from converter.backend.builtins.base import Builtin, Delegated, Types, int32
from converter.ir import ops
from converter.ir.op import Op
from converter.ir.types import INT32, TensorType


@dataclass(frozen=True)
class Reduction(Builtin):
    """Reduces over `axes`; `keepdims` leaves them with size 1."""

    table = "ReducerOptions"
    kinds = "fi"
    xnnpack = True
    means: ClassVar[type[ops.Reduction]]
    axes: tuple[int, ...]
    keepdims: bool = False

    def meaning(self, *types: TensorType) -> Op:
        return self.means(self.axes, self.keepdims)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(*self.axes),)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"KeepDims": self.keepdims}


class Accumulation(Reduction):
    """A reduction whose kernel keeps partial sums."""

    def scratch(self, inputs: Types, outputs: Types) -> tuple[int, ...]:
        return INT32.itemsize * inputs[0].rank, INT32.itemsize * len(self.axes), outputs[0].nbytes


class Sum(Accumulation):
    """Sum."""

    code, means = "SUM", ops.Sum
    rescales = True


class Mean(Accumulation):
    """Arithmetic mean."""

    code, means = "MEAN", ops.Mean
    rescales = True
    kinds = "f"


class ReduceMax(Reduction):
    """Largest element."""

    code, means = "REDUCE_MAX", ops.Max


class ReduceMin(Reduction):
    """Smallest element."""

    code, means = "REDUCE_MIN", ops.Min


class _Prod(ops.Reduction):
    function = np.prod


class ReduceProd(Reduction):
    """Product."""

    code, means = "REDUCE_PROD", _Prod
    xnnpack = False


@dataclass(frozen=True)
class ArgMax(Builtin):
    """Index of the first largest element along one axis, int32."""

    code, table = "ARG_MAX", "ArgMaxOptions"
    kinds = "fib"
    axis: int

    def meaning(self, *types: TensorType) -> Op:
        return ops.ArgMax(self.axis)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(self.axis),)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"OutputType": INT32}


@dataclass(frozen=True)
class CumSum(Builtin):
    """Running sum along one axis, from the end when `reverse`."""

    code, table = "CUMSUM", "CumsumOptions"
    kinds = "fi"
    axis: int
    reverse: bool = False

    def meaning(self, *types: TensorType) -> Op:
        return ops.CumSum(self.axis, self.reverse)

    def operands(self) -> tuple[np.ndarray, ...]:
        return (int32(self.axis),)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"Exclusive": False, "Reverse": self.reverse}


@dataclass(frozen=True)
class Softmax(Builtin):
    """e^(beta x) / sum(e^(beta x)) over the last axis."""

    code, table, means = "SOFTMAX", "SoftmaxOptions", ops.Softmax
    xnnpack = xnnpack_in_place = True
    reuses = (0,)
    beta: float = 1.0

    def delegated(self, inputs: Types, outputs: Types, constant: tuple[bool, ...], lanes: int) -> Delegated | None:
        return super().delegated(inputs, outputs, constant, lanes) if self.beta == 1 else None

    def evaluate(self, *arrays: np.ndarray) -> np.ndarray:
        (x,) = arrays
        return super().evaluate(x * self.beta)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"Beta": self.beta}


class LogSoftmax(Builtin):
    """x - logsumexp(x) over the last axis."""

    code, table, means = "LOG_SOFTMAX", "LogSoftmaxOptions", ops.LogSoftmax
