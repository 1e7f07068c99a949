"""The losses that have a name, as ops: from an output and its targets to one number a row, or a row and place."""

from __future__ import annotations

from collections.abc import Callable
from math import log

from converter.ir import Builder, Value, ops

#: Emits the loss from the output (logits where the loss has a link) and y; axes behind the first are averaged later.
RowLoss = Callable[[Builder, Value, Value], Value]
#: What Keras clips probabilities to.
_EPSILON = 1e-7


def mean_rows(b: Builder, values: Value) -> Value:
    """The mean over all axes but the first."""
    return b(ops.Mean(tuple(range(1, len(values.shape)))), values) if len(values.shape) > 1 else values


def sparse_cross_entropy(label_smoothing: float = 0.0) -> RowLoss:
    """Cross entropy of labels."""
    dense = cross_entropy(label_smoothing)
    return lambda b, logits, y: dense(b, logits, b(ops.OneHot(logits.shape[-1]), y))


def cross_entropy(label_smoothing: float = 0.0) -> RowLoss:
    """Cross entropy of a distribution; smoothing mixes it with the uniform one."""

    def emit(b: Builder, logits: Value, y: Value) -> Value:
        return b(ops.SoftmaxCrossEntropy(), logits, _smooth(b, y, label_smoothing, 1 / logits.shape[-1]))

    return emit


def focal_cross_entropy(gamma: float = 2.0, alpha: float = 0.25, label_smoothing: float = 0.0) -> RowLoss:
    """sum(alpha * (1 - p)^gamma * -y log p) (Lin et al., arXiv 1708.02002)."""

    def emit(b: Builder, logits: Value, y: Value) -> Value:
        y = _smooth(b, y, label_smoothing, 1 / logits.shape[-1])
        missing = b(ops.Sub(), 1.0, b(ops.Softmax(), logits))
        surprise = b(ops.Mul(), b(ops.Mul(), b(ops.LogSoftmax(), logits), y), -alpha)
        return b(ops.Sum((len(y.shape) - 1,)), b(ops.Mul(), _power(b, missing, gamma), surprise))

    return emit


def kl_divergence() -> RowLoss:
    """sum(y log(y / p)); y is clipped as in Keras."""

    def emit(b: Builder, logits: Value, y: Value) -> Value:
        y = b(ops.Minimum(), b(ops.Maximum(), y, _EPSILON), 1.0)
        negentropy = b(ops.Sum((len(y.shape) - 1,)), b(ops.Mul(), y, b(ops.Log(), y)))
        return b(ops.Add(), b(ops.SoftmaxCrossEntropy(), logits, y), negentropy)

    return emit


def binary_cross_entropy(label_smoothing: float = 0.0) -> RowLoss:
    """-y log p - (1 - y) log(1 - p) of each number."""
    return lambda b, logits, y: _binary(b, logits, _smooth(b, y, label_smoothing, 0.5))


def binary_focal_cross_entropy(gamma: float = 2.0, alpha: float | None = None, label_smoothing: float = 0.0) -> RowLoss:
    """Binary cross entropy times (1 - p_t)^gamma, and alpha for y = 1, 1 - alpha for y = 0 where alpha is given."""

    def emit(b: Builder, logits: Value, y: Value) -> Value:
        y = _smooth(b, y, label_smoothing, 0.5)
        p = b(ops.Logistic(), logits)
        missing = b(ops.Sub(), b(ops.Add(), p, y), b(ops.Mul(), b(ops.Mul(), p, y), 2.0))  # 1 - yp - (1-y)(1-p)
        loss = b(ops.Mul(), _power(b, missing, gamma), _binary(b, logits, y))
        if alpha is None:
            return loss
        return b(ops.Mul(), loss, b(ops.Add(), b(ops.Mul(), y, 2 * alpha - 1), 1 - alpha))

    return emit


def squared_error() -> RowLoss:
    """(x - y)^2."""
    return lambda b, x, y: b(ops.SquaredDifference(), x, y)


def absolute_error() -> RowLoss:
    """|x - y|."""
    return lambda b, x, y: b(ops.Abs(), b(ops.Sub(), x, y))


def huber(delta: float = 1.0) -> RowLoss:
    """e^2 / 2 up to |e| = delta, and a line of the same slope from there on."""

    def emit(b: Builder, x: Value, y: Value) -> Value:
        e = b(ops.Abs(), b(ops.Sub(), x, y))
        near = b(ops.Minimum(), e, delta)
        return b(ops.Mul(), near, b(ops.Sub(), e, b(ops.Mul(), near, 0.5)))

    return emit


def log_cosh() -> RowLoss:
    """log(cosh(x - y))."""

    def emit(b: Builder, x: Value, y: Value) -> Value:
        e = b(ops.Abs(), b(ops.Sub(), x, y))
        return b(ops.Sub(), b(ops.Add(), e, _softplus_of_negative(b, b(ops.Mul(), e, -2.0))), log(2))

    return emit


def cosine_similarity() -> RowLoss:
    """Minus the cosine between x and y along the last axis."""

    def unit(b: Builder, x: Value) -> Value:
        square = b(ops.Sum((len(x.shape) - 1,), keepdims=True), b(ops.Mul(), x, x))
        return b(ops.Mul(), x, b(ops.Rsqrt(), b(ops.Maximum(), square, _EPSILON**2)))

    def emit(b: Builder, x: Value, y: Value) -> Value:
        return b(ops.Neg(), b(ops.Sum((len(x.shape) - 1,)), b(ops.Mul(), unit(b, x), unit(b, y))))

    return emit


def hinge() -> RowLoss:
    """max(1 - x y, 0) for y = -1 or 1."""
    return lambda b, x, y: b(ops.Maximum(), b(ops.Sub(), 1.0, b(ops.Mul(), x, y)), 0.0)


def _smooth(b: Builder, y: Value, smoothing: float, toward: float) -> Value:
    return b(ops.Add(), b(ops.Mul(), y, 1 - smoothing), smoothing * toward) if smoothing else y


def _power(b: Builder, x: Value, exponent: float) -> Value:
    """x >= 0 to a constant power."""
    return b(ops.Mul(), x, x) if exponent == 2 else b(ops.Pow(), x, exponent)


def _softplus_of_negative(b: Builder, z: Value) -> Value:
    """log(1 + e^z) for z <= 0."""
    return b(ops.Log(), b(ops.Add(), b(ops.Exp(), z), 1.0))


def _binary(b: Builder, z: Value, y: Value) -> Value:
    """max(z, 0) - z y + log(1 + e^-|z|): no overflow, and its slope is sigmoid(z) - y."""
    rest = _softplus_of_negative(b, b(ops.Neg(), b(ops.Abs(), z)))
    return b(ops.Add(), b(ops.Sub(), b(ops.Relu(at_kink=0.5), z), b(ops.Mul(), z, y)), rest)
