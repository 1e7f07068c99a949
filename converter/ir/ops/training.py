"""What a value adds to the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.op import Cost, Cotangent, Op
from converter.ir.rows import Rows
from converter.ir.types import TensorType

if TYPE_CHECKING:
    from converter.ir.builder import Builder
    from converter.ir.graph import Value


@dataclass(frozen=True)
class Activity(Op):
    """x, of whose rows each adds l1 * sum(|x|) + l2 * sum(x^2) to its loss (`converter.losses`).

    Attributes:
        l1: the first factor.
        l2: the second.
        layer: what gives it.
    """

    l1: float = 0.0
    l2: float = 0.0
    layer: str = ""

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
