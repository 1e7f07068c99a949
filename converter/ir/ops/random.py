"""Keys and bits of random numbers, until a step is made (`converter.ir.random_numbers`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.op import Op
from converter.ir.row_dependence import Rows
from converter.ir.types import INT32, TensorType

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class CallKey(Op):
    """A key [] that is new in each call.

    Attributes:
        key: number of who draws with it; as that of a dropout.
    """

    folds = False
    key: int

    def infer(self) -> TensorType:
        return TensorType((), INT32)

    def evaluate(self) -> np.ndarray:
        """Return any: what is drawn with it is for training alone (`InTraining`)."""
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

    folds = False
    shape: tuple[int, ...]
    use: str = ""

    def infer(self, keys: TensorType) -> TensorType:
        return keys.with_shape((*keys.shape, *self.shape))
