"""Tensors of a model's file: integers that represent numbers, and results that only the runtime can compute."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from converter.ir.op import Cotangent, Op, ShapeError
from converter.ir.quantization import INT8, Quantization
from converter.ir.row_dependence import NO_ROW, Rows, RowsMixed
from converter.ir.types import FLOAT32, TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


@dataclass(frozen=True)
class Real(Op):
    """Integers to the numbers that they stand for, float32.

    Attributes:
        of: how they stand for them.
    """

    of: Quantization

    def infer(self, x: TensorType) -> TensorType:
        if x.quantization != self.of:
            raise ShapeError(f"{self}: the operand is {x}")
        return TensorType(x.shape)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return self.of.real(x).astype(FLOAT32)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return Rows(operands[0].of)


@dataclass(frozen=True)
class Nearest(Op):
    """Numbers, float32, to the nearest integers that stand for them.

    Attributes:
        of: how they stand for them.
    """

    of: Quantization

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.shape, INT8, self.of)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return self.of.stored(x)

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (None,)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return Rows(operands[0].of)


#: In the place of a tensor's number where it lies in a subgraph that operators run.
INSIDE = -1


@dataclass(frozen=True)
class Stored(Op):
    """x, which is a tensor of the file: cut off where the integers end that stand for it there.

    It stands in a graph until it is known what trains: then the file's own operators take the place of what is in front
    of it, or its bounds become operations.

    Attributes:
        number: of the tensor; INSIDE for one in a loop or branch, which only the operator that runs it makes.
        low: the least number that it can hold.
        high: the largest.
    """

    number: int
    low: float = -inf
    high: float = inf

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return np.clip(x, x.dtype.type(self.low), x.dtype.type(self.high)) if x.dtype.kind == "f" else x

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return operands[0]


@dataclass(frozen=True)
class Foreign(Op):
    """An operator of the file of which only the runtime knows what it computes.

    Attributes:
        kind: what the file calls it.
        number: its place in the file.
        types: of its results.
    """

    folds = False
    kind: str
    number: int
    types: tuple[TensorType, ...]

    def infer(self, *operands: TensorType) -> TensorType | tuple[TensorType, ...]:
        return self.types if len(self.types) != 1 else self.types[0]

    def evaluate(self, *arrays: np.ndarray) -> Any:
        raise NotImplementedError(f"{self.kind} is known to the runtime alone")

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows | tuple[Rows, ...]:
        """Give each row a part of the first axis: who carries it over compares several rows with each."""
        made = tuple(in_parts(t, 1 + max(int(rows.of.max(initial=0)) for rows in operands)) for t in self.types)
        return made if len(made) != 1 else made[0]


def in_parts(type: TensorType, rows: int) -> Rows:
    """Return the rows of a value whose first axis holds as many places of each. Raise RowsMixed where it does not."""
    if not type.rank:  # a counter, or what all rows share: trials compare what becomes of it
        return Rows(np.array(NO_ROW if rows > 1 else 0))
    if type.shape[0] % rows:
        raise RowsMixed
    owners = np.repeat(np.arange(rows), type.shape[0] // rows)
    return Rows(owners.reshape(-1, *(1,) * (type.rank - 1)))
