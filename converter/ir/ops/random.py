"""What is random while a model trains, and nothing elsewhere (`converter.dropout`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.op import Cost, Cotangent, Op
from converter.ir.rows import Rows, together
from converter.ir.types import INT32, TensorType

if TYPE_CHECKING:
    from converter.ir.builder import Builder
    from converter.ir.graph import Value


@dataclass(frozen=True)
class Dropout(Op):
    """Where elements are dropped while a model trains (`converter.dropout`); elsewhere nothing is done.

    Attributes:
        rate: how likely.
        shared: axes along which all elements share one fate.
        label: what reports call it.
        key: number of this one in its model: no two have the same masks.
    """

    rate: float
    shared: tuple[int, ...] = ()
    label: str = "Dropout"
    key: int = 0

    @property
    def said(self) -> str:
        """What reports call it."""
        return f"{self.label}(rate={self.rate:g})"

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return x

    def vjp(self, b: Builder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: dy,)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0]

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        return Cost()


@dataclass(frozen=True)
class InTraining(Op):
    """x, and while a model trains the other operand.

    Attributes:
        said: what reports call it.
    """

    said: str

    def infer(self, x: TensorType, trained: TensorType) -> TensorType:
        return x

    def evaluate(self, x: np.ndarray, trained: np.ndarray) -> np.ndarray:
        return x

    def vjp(self, b: Builder, x: Value, trained: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: dy), None

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return together(*operands)


@dataclass(frozen=True)
class CallKey(Op):
    """A key [] that is new in each call.

    Attributes:
        key: number of who draws with it; as that of a dropout.
    """

    key: int

    def infer(self) -> TensorType:
        return TensorType((), INT32)

    def evaluate(self) -> np.ndarray:
        """Any: what is drawn with it is for training alone (`InTraining`)."""
        return np.zeros((), np.int32)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return Rows.none(0)


@dataclass(frozen=True)
class RandomBits(Op):
    """Random bits of some keys while a function is traced: [*keys, *shape], until it is known what they are used for.

    Attributes:
        shape: the bits of one key.
        use: nothing yet, `mantissa` of a number, or a `float` from 1 to 2.
    """

    shape: tuple[int, ...]
    use: str = ""

    def infer(self, keys: TensorType) -> TensorType:
        return keys.with_shape((*keys.shape, *self.shape))
