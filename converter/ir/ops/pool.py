"""Pooling over windows, NHWC."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.extent import Extent
from converter.ir.op import Cost, Cotangent, Op, ShapeError
from converter.ir.ops.conv import NO_PADDING, Padding, taps, windows
from converter.ir.ops.shape import Dilate, Pad, Slice
from converter.ir.row_dependence import Rows, together
from converter.ir.types import TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


@dataclass(frozen=True)
class Pool(Op):
    """Window and strides (height, width), padding ((top, bottom), (left, right)) >= 0."""

    window: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: Padding = NO_PADDING

    def infer(self, x: TensorType) -> TensorType:
        if x.rank != 4:
            raise ShapeError(f"{self.name}: wants NHWC, got {list(x.shape)}")
        sizes = zip(x.shape[1:3], self.window, self.strides, self.padding, strict=True)
        spatial = tuple((n + sum(p) - k) // s + 1 for n, k, s, p in sizes)
        if min(spatial) < 1:
            raise ShapeError(f"{self}: window larger than input {list(x.shape)}")
        return x.with_shape((x.shape[0], *spatial, x.shape[3]))

    def padded(self, x: np.ndarray, value: float) -> np.ndarray:
        """Return the input with `value` around it."""
        return np.pad(x, ((0, 0), *self.padding, (0, 0)), constant_values=value)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return together(*operands).along((1, 2))

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        work = outputs[0].size * self.window[0] * self.window[1]
        return Cost(work, sum(t.nbytes for t in (*inputs, *outputs)))


class MaxPool2D(Pool):
    """Largest element of each window; padding never wins. Of equal ones the first (row-major) gets the cotangent."""

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return windows(self.padded(x, -np.inf), self.window, self.strides, (1, 1)).max((4, 5))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(MaxPoolGrad(self.window, self.strides, self.padding), x, y, dy),)

    def exact_vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (lambda: b(MaxPoolGrad(self.window, self.strides, self.padding, selects=True), x, y, dy),)


@dataclass(frozen=True)
class MaxPoolGrad(Pool):
    """Cotangent of a MaxPool2D's input from its input x, output y and cotangent dy (as XLA's select_and_scatter).

    With `selects` also of a dy that is not finite.
    """

    linear_in = ((2,),)
    selects: bool = field(default=False, kw_only=True)

    def infer(self, x: TensorType, y: TensorType, dy: TensorType) -> TensorType:  # type: ignore[override]
        if super().infer(x) != dy or y != dy:
            raise ShapeError(f"{self}: input {x}, output {y} and cotangent {dy} do not fit")
        return x

    def evaluate(self, x: np.ndarray, y: np.ndarray, dy: np.ndarray) -> np.ndarray:
        padded = self.padded(x, -np.inf)
        out, free = np.zeros_like(padded), np.ones(y.shape, bool)
        for _, rows, columns in taps(y.shape[1:3], self.window, self.strides, (1, 1)):
            first = free & (padded[:, rows, columns] == y)
            out[:, rows, columns] += np.where(first, dy, 0)
            free &= ~first
        (top, _), (left, _) = self.padding
        return out[:, top : top + x.shape[1], left : left + x.shape[2]]


class SumPool2D(Pool):
    """Sum of each window; padding counts as zero. An average pool is this, scaled."""

    linear_in = ((0,),)

    def extent(self, *operands: Extent) -> Extent:
        (x,) = operands
        return Extent(0.0 if x.low >= 0 else -inf, 0.0 if x.high <= 0 else inf)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        return windows(self.padded(x, 0), self.window, self.strides, (1, 1)).sum((4, 5))

    def vjp(self, b: GraphBuilder, x: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def cotangent() -> Value:
            # Every input is read by the windows around it: sum the spread-out cotangent over windows of the same size.
            spread = dy if self.strides == (1, 1) else b(Dilate((1, *self.strides, 1)), dy)
            spread = b(Pad(((0, 0), *((k - 1, k - 1) for k in self.window), (0, 0))), spread)
            full = b(SumPool2D(self.window), spread)
            (top, _), (left, _) = self.padding
            missing = [max(p + n - m, 0) for p, n, m in zip((top, left), x.shape[1:3], full.shape[1:3], strict=True)]
            if any(missing):  # inputs at the far edge that no window reaches
                full = b(Pad(((0, 0), (0, missing[0]), (0, missing[1]), (0, 0))), full)
            return full if full.shape == x.shape else b(Slice((0, top, left, 0), x.shape), full)

        return (cotangent,)
