"""Cross entropies from logits: one op each, with its derivative in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from converter.ir.op import Cotangent, ShapeError
from converter.ir.ops.activations import Logistic
from converter.ir.ops.elementwise import Binary, Mul, Neg, Sub
from converter.ir.ops.indexing import IsClass, OneHot
from converter.ir.ops.nn import LogSoftmax, LogSumExp, OverLastAxis, Softmax
from converter.ir.ops.reduce import Sum
from converter.ir.row_dependence import Rows, together
from converter.ir.types import INT32, TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


@dataclass(frozen=True)
class LabelCrossEntropy(OverLastAxis):
    """Per-example loss logsumexp(z) - z[label] from logits [..., C] and int32 labels [...].

    Of what is no class the loss is 0; with `everywhere` it is logsumexp(z), as if such a label had the logit 0. The
    cotangent of the logits is softmax(z) less the label's one, in rows that have a class, or `everywhere`.
    """

    everywhere: bool = False

    def infer(self, logits: TensorType, labels: TensorType) -> TensorType:  # type: ignore[override]
        if logits.shape[:-1] != labels.shape or labels.dtype != INT32:
            raise ShapeError(f"LabelCrossEntropy: logits {logits}, labels {labels}")
        return logits.with_shape(labels.shape)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        logits, labels = operands
        return together(logits.along((-1,), keepdims=False), labels)

    def evaluate(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        classes = logits.shape[-1]
        loss = SoftmaxCrossEntropy().evaluate(logits, OneHot(classes).evaluate(labels))
        if not self.everywhere:
            return loss
        return np.where(IsClass(classes).evaluate(labels), loss, LogSumExp().evaluate(logits)[..., 0])

    def vjp(self, b: GraphBuilder, logits: Value, labels: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def to_logits() -> Value:
            classes = logits.shape[-1]
            rows = dy if self.everywhere else b(Mul(), dy, b(IsClass(classes), labels))
            separate = b(Sub(), b(Softmax(), logits), b(OneHot(classes), labels))
            return b(Mul(), separate, b.reshape(rows, (*dy.shape, 1)))

        return to_logits, None


class SoftmaxCrossEntropy(OverLastAxis):
    """Per-example loss logsumexp(z) - sum(z * target) from logits and (one-hot) targets, both [..., C] -> [...].

    The cotangent of the logits is softmax(z) * sum(target) - target: for targets that sum to 1, softmax minus target.
    A logit of -inf, as masks make them, costs nothing where its target is 0.
    """

    linear_in = ((1,),)

    def infer(self, logits: TensorType, targets: TensorType) -> TensorType:  # type: ignore[override]
        if logits.shape != targets.shape:
            raise ShapeError(f"SoftmaxCrossEntropy: logits {list(logits.shape)}, targets {list(targets.shape)}")
        return logits.with_shape(logits.shape[:-1])

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> Rows:
        return together(*operands).along((-1,), keepdims=False)

    def evaluate(self, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
        shifted = logits - logits.max(-1, keepdims=True)
        log_total = np.log(np.exp(shifted).sum(-1, keepdims=True))
        return _weighted(log_total - shifted, targets).sum(-1)

    def vjp(self, b: GraphBuilder, logits: Value, targets: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        def to_logits() -> Value:
            mass = b(Sum((-1,), keepdims=True), targets)
            return b(Mul(), b(Sub(), b(Mul(), b(Softmax(), logits), mass), targets), b.reshape(dy, (*dy.shape, 1)))

        def to_targets() -> Value:
            return b(Mul(), b(Mul(), b(LogSoftmax(), logits), -1.0), b.reshape(dy, (*dy.shape, 1)))

        return to_logits, to_targets


class BinaryCrossEntropy(Binary):
    """-t log(p) - (1 - t) log(1 - p) of p = logistic(z), for logits z and targets t: max(z, 0) - z t + log(1 + e^-|z|).

    The cotangent of the logits is logistic(z) - t everywhere. The slopes of the parts have corners at 0, and would not
    add up to it there. A logit of -inf costs nothing where t is 0, one of inf where it is 1.
    """

    @staticmethod
    def function(z: np.ndarray, t: np.ndarray) -> np.ndarray:
        return _weighted(np.abs(z), np.where(z > 0, 1 - t, t)) + np.log1p(np.exp(-np.abs(z)))

    def vjp(self, b: GraphBuilder, z: Value, t: Value, *, y: Value, dy: Value) -> tuple[Cotangent, ...]:
        return (
            lambda: b.sum_to_shape(b(Mul(), dy, b(Sub(), b(Logistic(), z), t)), z.shape),
            lambda: b(Neg(), b.sum_to_shape(b(Mul(), dy, z), t.shape)),
        )


def _weighted(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """x * weights, with 0 for infinity times 0."""
    return np.where((weights == 0) & np.isinf(x), 0, x * weights)
