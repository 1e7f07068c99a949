"""Elementwise builtins: arithmetic, functions, activations, selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from converter.backend.builtins.base import Builtin, Fused, Pointwise, Types, broadcasts_wide
from converter.ir import ops
from converter.ir.op import Cost, Op, ShapeError
from converter.ir.quantization import Quantization
from converter.ir.types import INT32, TensorType


class Add(Fused):
    """x + y, then the activation."""

    code, table, means = "ADD", "AddOptions", ops.Add
    kinds = "fi"
    rescales = True
    reuses = (0, 1)


class Sub(Fused):
    """x - y, then the activation."""

    code, table, means = "SUB", "SubOptions", ops.Sub
    kinds = "fi"
    rescales = True
    reuses = (0, 1)

    def version(self, inputs: Types, outputs: Types) -> int:
        return 3 if broadcasts_wide(inputs) else 1


class Mul(Fused):
    """x * y, then the activation."""

    code, table, means = "MUL", "MulOptions", ops.Mul
    kinds = "fi"
    rescales = True
    factors = (1, 0)
    reuses = (0, 1)


class Div(Fused):
    """x / y, then the activation; integers truncate toward zero."""

    code, table, means = "DIV", "DivOptions", ops.Div
    kinds = "fi"
    reuses = (0, 1)

    def version(self, inputs: Types, outputs: Types) -> int:
        return 2 if broadcasts_wide(inputs) else 1


class Maximum(Pointwise):
    """Elementwise maximum."""

    code, table, means = "MAXIMUM", "MaximumMinimumOptions", ops.Maximum
    kinds = "fi"

    def version(self, inputs: Types, outputs: Types) -> int:
        return 3 if broadcasts_wide(inputs) else 1


class Minimum(Pointwise):
    """Elementwise minimum."""

    code, table, means = "MINIMUM", "MaximumMinimumOptions", ops.Minimum
    kinds = "fi"

    def version(self, inputs: Types, outputs: Types) -> int:
        return 3 if broadcasts_wide(inputs) else 1


class SquaredDifference(Pointwise):
    """(x - y)^2."""

    code, table, means = "SQUARED_DIFFERENCE", "SquaredDifferenceOptions", ops.SquaredDifference
    kinds = "fi"


class Pow(Builtin):
    """x ** y."""

    code, table, means = "POW", "PowOptions", ops.Pow
    kinds = "fi"


class Atan2(Builtin):
    """The angle of the point (second operand, first operand); both of one shape."""

    code, table, means = "ATAN2", "ATan2Options", ops.Atan2

    def result(self, *types: TensorType) -> TensorType | Types:
        y, x = types
        if y.shape != x.shape:  # the kernel reads beyond the smaller one
            raise ShapeError(f"Atan2: the kernel repeats no operand: {y}, {x}")
        return super().result(y, x)


class FloorMod(Builtin):
    """Remainder with the sign of the divisor."""

    code, table, means = "FLOOR_MOD", "FloorModOptions", ops.FloorMod
    kinds = "fi"


class _FloorDiv(ops.Binary):
    function = np.floor_divide


class FloorDiv(Builtin):
    """Quotient rounded down."""

    code, table, means = "FLOOR_DIV", "FloorDivOptions", _FloorDiv
    kinds = "fi"

    def version(self, inputs: Types, outputs: Types) -> int:
        return 2 if inputs[0].dtype.kind == "f" else 1


class AddN(Builtin):
    """Sum of any number of operands of one type."""

    code, table = "ADD_N", "AddNOptions"
    elementwise = True
    kinds = "fi"

    def result(self, *xs: TensorType) -> TensorType:
        if not xs or len(set(xs)) != 1:
            raise ShapeError(f"AddN: operands differ: {', '.join(map(str, xs))}")
        return xs[0]

    def evaluate(self, *xs: np.ndarray) -> np.ndarray:
        return reduce(np.add, xs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost((len(inputs) - 1) * outputs[0].size, sum(t.nbytes for t in (*inputs, *outputs)))


class Neg(Pointwise):
    """-x."""

    code, table, means = "NEG", "NegOptions", ops.Neg
    kinds = "fi"


class Exp(Pointwise):
    """e^x."""

    code, table, means = "EXP", "ExpOptions", ops.Exp


class Log(Pointwise):
    """Natural logarithm."""

    code, means = "LOG", ops.Log


class Sqrt(Pointwise):
    """Square root."""

    code, means = "SQRT", ops.Sqrt


class Rsqrt(Pointwise):
    """1 / sqrt(x)."""

    code, means = "RSQRT", ops.Rsqrt


class Sin(Pointwise):
    """Sine."""

    code, means = "SIN", ops.Sin


class Cos(Pointwise):
    """Cosine."""

    code, table, means = "COS", "CosOptions", ops.Cos


class Abs(Pointwise):
    """Absolute value."""

    code, table, means = "ABS", "AbsOptions", ops.Abs
    kinds = "fi"

    def version(self, inputs: Types, outputs: Types) -> int:
        return 5 if inputs[0].dtype == INT32 else 1


class Sign(Builtin):
    """-1, 0 or 1."""

    code, table, means = "SIGN", "SignOptions", ops.Sign
    kinds = "fi"

    def version(self, inputs: Types, outputs: Types) -> int:
        return 2 if inputs[0].dtype == INT32 else 1


class Floor(Pointwise):
    """Rounds down."""

    code, means = "FLOOR", ops.Floor


class _Function(Pointwise):
    """An elementwise function without a semantic twin."""

    function: ClassVar[Callable]

    def meaning(self, *types: TensorType) -> Op:
        return Applied(type(self).function)


@dataclass(frozen=True)
class Applied(ops.Unary):
    """A function of each element that no semantic op stands for."""

    apply: Callable

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return self.apply(x)


class Ceil(Pointwise):
    """Rounds up."""

    code, means = "CEIL", ops.Ceil


class Round(Pointwise):
    """Rounds to the nearest integer, halves to the even one."""

    code, means = "ROUND", ops.Round


class Square(_Function):
    """x * x."""

    code, table, function = "SQUARE", "SquareOptions", np.square


class ReluN1To1(_Function):
    """min(max(x, -1), 1)."""

    code, function = "RELU_N1_TO_1", staticmethod(lambda x: np.clip(x, -1, 1))


class Relu(Pointwise):
    """max(x, 0)."""

    code, means = "RELU", ops.Relu
    rescales = True


class Relu6(Pointwise):
    """min(max(x, 0), 6)."""

    code, means = "RELU6", ops.Relu6
    rescales = True


class Tanh(Pointwise):
    """Hyperbolic tangent."""

    code, means = "TANH", ops.Tanh
    fixed_scale = Quantization((1 / 128,), 0)


class Logistic(Pointwise):
    """1 / (1 + e^-x)."""

    code, means = "LOGISTIC", ops.Logistic
    fixed_scale = Quantization((1 / 256,), -128)


class HardSwish(Pointwise):
    """x * relu6(x + 3) / 6."""

    code, table, means = "HARD_SWISH", "HardSwishOptions", ops.HardSwish


class Elu(Pointwise):
    """x where positive, else e^x - 1."""

    code, means = "ELU", ops.Elu


@dataclass(frozen=True)
class Gelu(Pointwise):
    """x * Phi(x), exact or by tanh."""

    code, table = "GELU", "GeluOptions"
    approximate: bool = False

    def meaning(self, *types: TensorType) -> Op:
        return ops.Gelu(self.approximate)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"Approximate": self.approximate}


@dataclass(frozen=True)
class LeakyRelu(Pointwise):
    """x where positive, else alpha * x."""

    code, table = "LEAKY_RELU", "LeakyReluOptions"
    rescales = True
    alpha: float = 0.2

    def meaning(self, *types: TensorType) -> Op:
        return ops.LeakyRelu(self.alpha)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"Alpha": self.alpha}


class SelectV2(Builtin):
    """Where the condition holds x, else y; all three broadcast."""

    code, table, means = "SELECT_V2", "SelectV2Options", ops.Select
    moved = "select"
    kinds = "fib"


@dataclass(frozen=True)
class Cast(Builtin):
    """Another element type; float to int truncates."""

    code, table, means = "CAST", "CastOptions", ops.Cast
    kinds = "fibu"
    dtype: np.dtype

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def meaning(self, *types: TensorType) -> Op:
        return ops.Cast(self.dtype)

    def options(self, inputs: Types, outputs: Types) -> Mapping[str, Any]:
        return {"InDataType": inputs[0].dtype, "OutDataType": self.dtype}
