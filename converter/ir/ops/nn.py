"""Normalisations and softmaxes: one semantic op each, so that each gets one good gradient and kernel."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.extent import Extent, Pole
from converter.ir.op import Cost, Cotangent, Op
from converter.ir.ops.elementwise import Add, Mul, Sub
from converter.ir.ops.functions import Rsqrt
from converter.ir.ops.reduce import Mean, Sum
from converter.ir.row_dependence import Rows, together
from converter.ir.types import TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


@dataclass(frozen=True)
class OverLastAxis(Op):
    """Works on each row of the last axis on its own."""

    in_parts = True

    def infer(self, x: TensorType) -> TensorType:
        return x

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return together(*operands).along((-1,))

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost(5 * inputs[0].size, inputs[0].nbytes + outputs[0].nbytes)


def _of_unit_square(x: TensorType) -> tuple[float, float]:
    """Return the ends of numbers whose squares are 1 or less on the average of a row: one may hold the whole sum."""
    end = sqrt(x.shape[-1])
    return -end, end


class Softmax(OverLastAxis):
    """e^x / sum(e^x) over the last axis, shifted by the maximum."""

    link = "softmax"

    def bounds(self, *inputs: TensorType) -> tuple[float, float]:
        return 0.0, 1.0

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def cotangent() -> Value:
            weighted = b(Mul(), dy, y)
            return b(Sub(), weighted, b(Mul(), y, b(Sum((-1,), keepdims=True), weighted)))

        return (cotangent,)


class LogSoftmax(OverLastAxis):
    """x - logsumexp(x) over the last axis."""

    link = "softmax"

    def bounds(self, *inputs: TensorType) -> tuple[float, float]:
        return -inf, 0.0

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        shifted = x - x.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Sub(), dy, b(Mul(), b(Softmax(), x), b(Sum((-1,), keepdims=True), dy))),)


class LogSumExp(OverLastAxis):
    """log(sum(e^x)) over the last axis, which stays with size 1; shifted by the maximum."""

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape((*x.shape[:-1], 1))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        top = x.max(-1, keepdims=True)
        top = np.where(np.isinf(top), 0, top)
        return top + np.log(np.exp(x - top).sum(-1, keepdims=True))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(Mul(), b(Softmax(), x), dy),)


@dataclass(frozen=True)
class LayerNorm(OverLastAxis):
    """(x - mean) / sqrt(variance + epsilon) over the last axis (Ba et al., arXiv 1607.06450); scale and shift apart."""

    epsilon: float = 1e-6

    def pole(self, *operands: Extent) -> Pole:
        return Pole.NONE if self.epsilon > 0 else Pole.VALUE

    def bounds(self, *inputs: TensorType) -> tuple[float, float]:
        return _of_unit_square(inputs[0])

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        centered = x - x.mean(-1, keepdims=True)
        return centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + self.epsilon)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def cotangent() -> Value:
            # (dy - mean(dy) - y mean(dy y)) / sigma
            along = b(Mul(), y, b(Mean((-1,), keepdims=True), b(Mul(), dy, y)))
            flat = b(Sub(), dy, b(Mean((-1,), keepdims=True), dy))
            return b(Mul(), b(Sub(), flat, along), b(InverseDeviation(self.epsilon), x))

        return (cotangent,)


@dataclass(frozen=True)
class InverseDeviation(OverLastAxis):
    """1 / sqrt(variance + epsilon) over the last axis, which stays with size 1; backward helper of LayerNorm."""

    epsilon: float = 1e-6

    def bounds(self, *inputs: TensorType) -> tuple[float, float]:
        return 0.0, inf

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape((*x.shape[:-1], 1))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return 1 / np.sqrt(x.var(-1, keepdims=True) + self.epsilon)


@dataclass(frozen=True)
class RMSNorm(OverLastAxis):
    """x / sqrt(mean(x^2) + epsilon) over the last axis (Zhang and Sennrich, arXiv 1910.07467); scale apart."""

    epsilon: float = 1e-6

    def pole(self, *operands: Extent) -> Pole:
        return Pole.NONE if self.epsilon > 0 else Pole.VALUE

    def bounds(self, *inputs: TensorType) -> tuple[float, float]:
        return _of_unit_square(inputs[0])

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + self.epsilon)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def cotangent() -> Value:
            mean_square = b(Mean((-1,), keepdims=True), b(Mul(), x, x))
            inverse = b(Rsqrt(), b(Add(), mean_square, self.epsilon))
            along = b(Mul(), y, b(Mean((-1,), keepdims=True), b(Mul(), dy, y)))
            return b(Mul(), b(Sub(), dy, along), inverse)

        return (cotangent,)
