"""Marker ops: identities that the making of a step or a loss reads; elsewhere nothing is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from converter.ir.op import Cost, Cotangent, Op, ShapeError
from converter.ir.ops.elementwise import Select
from converter.ir.row_dependence import Rows, together
from converter.ir.types import TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


class Mark(Op):
    """x; what else it is given says more of it."""

    moves_data = True
    linear_in: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def infer(self, x: TensorType, *others: TensorType) -> TensorType:
        return x

    def evaluate(self, x: np.ndarray, *others: np.ndarray) -> np.ndarray:
        return x

    def vjp(self, b: GraphBuilder, x: Value, *others: Value, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: dy, *(None for _ in others))

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0]

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost()


@dataclass(frozen=True)
class Dropout(Mark):
    """Where elements are dropped while a model trains (`converter.training.dropout`).

    Attributes:
        rate: how likely.
        shared: axes along which all elements share one fate.
        label: what reports call it.
        key: number of this one in its model: no two have the same masks.
    """

    folds = False  # of ones it is a mask
    moves_data = False  # a step multiplies what is left
    rate: float
    shared: tuple[int, ...] = ()
    label: str = "Dropout"
    key: int = 0

    @property
    def said(self) -> str:
        """What reports call it."""
        return f"{self.label}(rate={self.rate:g})"


@dataclass(frozen=True)
class InTraining(Mark):
    """x, and while a model trains the other operand (`converter.training.dropout`).

    Attributes:
        said: what reports call it.
    """

    moves_data = False  # a step computes the other operand
    linear_in = ()
    said: str

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return together(*operands)


@dataclass(frozen=True)
class Masked(Mark):
    """x, of whose places a loss, or the statistics of a batch, count those that the mask, the other operand, says."""


@dataclass(frozen=True)
class Activity(Mark):
    """x, of whose rows each adds l1 * sum(|x|) + l2 * sum(x^2) to its loss (`converter.training.losses`).

    Attributes:
        l1: the first factor.
        l2: the second.
        layer: what gives it.
    """

    l1: float = 0.0
    l2: float = 0.0
    layer: str = ""


@dataclass(frozen=True)
class Probe(Mark):
    """What a weight is multiplied with: where its channels are weighed (`converter.training.fisher`).

    Attributes:
        weight: name of the weight.
        axis: that of its input channels.
    """

    weight: str
    axis: int


@dataclass(frozen=True)
class DerivedWhere(Mark):
    """x, whose derivative is that of a constant where the other operand, which repeats to the shape of x, is false."""

    def infer(self, x: TensorType, *others: TensorType) -> TensorType:
        (condition,) = others
        if Select().infer(condition, x, x) != x:
            raise ShapeError(f"DerivedWhere: {x} where {condition}")
        return x

    def vjp(self, b: GraphBuilder, x: Value, *others: Value, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return lambda: b(Select(), *others, dy, 0.0), None
