"""Formulas of the named losses, as ops: from outputs and targets to one number a row, or a row and place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log

import numpy as np

from converter.ir import FLOAT32, Builder, Value, ops
from converter.support.errors import UsageError

#: Emits the loss from the output (logits where the loss has a link) and y; axes behind the first are averaged later.
RowLoss = Callable[[Builder, Value, Value], Value]
#: The same from several outputs or targets.
RowLossOfSeveral = Callable[[Builder, list[Value], list[Value]], Value]
#: Axes to sum over, of the output with its batch; None for all.
Axes = int | Sequence[int] | None
#: What Keras clips probabilities to.
_EPSILON = 1e-7
#: The surprise at what Keras takes for impossible: minus the logarithm of that.
SURPRISE = -log(_EPSILON)
#: That at its opposite: 1 - 1e-7 is 1 - 2^-23 in float32.
_SURPRISE_OF_OPPOSITE = 23 * log(2)
#: What logits are below where a model masks them, with -inf or a large number. No other makes a loss of this size.
MASKED = 1e6
#: Under the root of a distance, whose slope would have no end at 0.
_TINY = 1e-6


def mean_rows(b: Builder, values: Value) -> Value:
    """Return the mean over all axes but the first."""
    return b(ops.Mean(tuple(range(1, len(values.shape)))), values) if len(values.shape) > 1 else values


def masked_mean(b: Builder, values: Value, mask: Value) -> Value:
    """Return the mean over all axes but the first of what the mask, 0 or 1, leaves; 0 where it leaves nothing."""
    axes = tuple(range(1, len(values.shape)))
    total, count = (b(ops.Sum(axes), v) if axes else v for v in (b(ops.Mul(), values, mask), mask))
    return b(ops.Div(), total, b(ops.Maximum(), count, 1.0))


def sparse_cross_entropy(label_smoothing: float = 0.0) -> RowLoss:
    """Cross entropy of labels."""
    if not label_smoothing:
        return lambda b, logits, y: b(ops.LabelCrossEntropy(), logits, y)
    dense = cross_entropy(label_smoothing)
    return lambda b, logits, y: dense(b, logits, b(ops.OneHot(logits.shape[-1]), y))


def all_labels_but(ignore: float) -> Callable[[Builder, Value], Value]:
    """1 for labels, 0 for the one to ignore."""
    return lambda b, y: b(ops.Cast(FLOAT32), b(ops.NotEqual(), y, int(ignore)))


def mask_of_labels(ignore: float | None = None) -> Callable[[Builder, Value], Value]:
    """1 for labels from 0 on, 0 for others and for `ignore`."""

    def mask(b: Builder, y: Value) -> Value:
        here = b(ops.Cast(FLOAT32), b(ops.GreaterEqual(), y, 0))
        if ignore is None:
            return here
        return b(ops.Mul(), here, b(ops.Cast(FLOAT32), b(ops.NotEqual(), y, int(ignore))))

    return mask


def next_token(label_smoothing: float = 0.0, ignore: float | None = None) -> RowLoss:
    """Cross entropy of the labels of a row that are not masked."""
    rows, mask = sparse_cross_entropy(label_smoothing), mask_of_labels(ignore)
    return lambda b, logits, y: masked_mean(b, rows(b, logits, y), mask(b, y))


def distillation(temperature: float = 2.0, alpha: float = 1.0) -> RowLossOfSeveral:
    """T^2 KL(teacher / T, logits / T), which alpha mixes with the cross entropy of labels (arXiv 1503.02531)."""
    if not temperature or alpha > 1:
        raise UsageError(
            f"the loss distillation: temperature is above 0 and alpha at most 1, not {temperature}, {alpha}",
            page="losses",
        )

    def emit(b: Builder, outputs: list[Value], targets: list[Value]) -> Value:
        (logits,), teacher = outputs, b(ops.Mul(), targets[-1], 1 / temperature)
        axis = len(teacher.shape) - 1
        p, log_p = b(ops.Softmax(), teacher), _log_softmax(b, teacher)
        cross = b(ops.SoftmaxCrossEntropy(), b(ops.Mul(), logits, 1 / temperature), p)
        separate = b(
            ops.Mul(), b(ops.Add(), cross, b(ops.Sum((axis,)), b(ops.Mul(), p, log_p))), alpha * temperature**2
        )
        if alpha == 1:
            return separate
        hard = sparse_cross_entropy()(b, logits, targets[0])
        return b(ops.Add(), separate, b(ops.Mul(), hard, 1 - alpha))

    return emit


def contrastive(margin: float = 1.0) -> RowLossOfSeveral:
    """y d^2 + (1 - y) max(margin - d, 0)^2 of the distance d of two embeddings (Hadsell et al., 2006)."""

    def emit(b: Builder, outputs: list[Value], targets: list[Value]) -> Value:
        (first, second), (y,) = outputs, targets
        d = _distance(b, first, second)
        near = b(ops.Mul(), y, b(ops.Mul(), d, d))
        separate = b(ops.Maximum(), b(ops.Sub(), margin, d), 0.0)
        return b(ops.Add(), near, b(ops.Mul(), b(ops.Sub(), 1.0, y), b(ops.Mul(), separate, separate)))

    return emit


def triplet(margin: float = 1.0) -> RowLossOfSeveral:
    """max(d(anchor, positive) - d(anchor, negative) + margin, 0) of three embeddings."""

    def emit(b: Builder, outputs: list[Value], targets: list[Value]) -> Value:
        anchor, positive, negative = outputs
        gap = b(ops.Sub(), _distance(b, anchor, positive), _distance(b, anchor, negative))
        return b(ops.Maximum(), b(ops.Add(), gap, margin), 0.0)

    return emit


def cross_entropy(label_smoothing: float = 0.0) -> RowLoss:
    """Cross entropy of a distribution; smoothing mixes it with the uniform one."""

    def emit(b: Builder, logits: Value, y: Value) -> Value:
        return b(ops.SoftmaxCrossEntropy(), logits, _smooth(b, y, label_smoothing, 1 / logits.shape[-1]))

    return emit


def focal_cross_entropy(gamma: float = 2.0, alpha: float = 0.25, label_smoothing: float = 0.0) -> RowLoss:
    """sum(alpha * (1 - p)^gamma * -y log p) (Lin et al., arXiv 1708.02002), p clipped as in Keras, from logits too."""

    def emit(b: Builder, logits: Value, y: Value) -> Value:
        y = _smooth(b, y, label_smoothing, 1 / logits.shape[-1])
        missing = b(ops.Sub(), 1.0, b(ops.Softmax(), logits))
        surprise = b(ops.Mul(), b(ops.Mul(), _clipped_surprise(b, logits), y), alpha)
        return b(ops.Sum((len(y.shape) - 1,)), b(ops.Mul(), _power(b, missing, gamma), surprise))

    return emit


def kl_divergence() -> RowLoss:
    """sum(y log(y / p)); y and p are clipped as in Keras."""

    def emit(b: Builder, logits: Value, y: Value) -> Value:
        y = b(ops.Minimum(), b(ops.Maximum(), y, _EPSILON), 1.0)
        separate = b(ops.Add(), b(ops.Log(), y), _clipped_surprise(b, logits))
        return b(ops.Sum((len(y.shape) - 1,)), b(ops.Mul(), y, separate))

    return emit


def binary_cross_entropy(label_smoothing: float = 0.0) -> RowLoss:
    """-y log p - (1 - y) log(1 - p) of each number."""
    return lambda b, logits, y: b(ops.BinaryCrossEntropy(), logits, _smooth(b, y, label_smoothing, 0.5))


def binary_focal_cross_entropy(gamma: float = 2.0, alpha: float | None = None, label_smoothing: float = 0.0) -> RowLoss:
    """Binary cross entropy times (1 - p_t)^gamma, and alpha for y = 1, 1 - alpha for y = 0 where alpha is given.

    Its probabilities are clipped as in Keras, from logits too: the loss of what is sure of the opposite has no slope.
    """

    def emit(b: Builder, logits: Value, y: Value) -> Value:
        y = _smooth(b, y, label_smoothing, 0.5)
        p = b(ops.Logistic(), logits)
        missing = b(ops.Sub(), b(ops.Add(), p, y), b(ops.Mul(), b(ops.Mul(), p, y), 2.0))  # 1 - yp - (1-y)(1-p)
        yes, no = (b(ops.BinaryCrossEntropy(), logits, b.constant(np.full(logits.shape, k, "f"))) for k in (1, 0))
        yes, no = b(ops.Minimum(), yes, SURPRISE), b(ops.Minimum(), no, _SURPRISE_OF_OPPOSITE)
        entropy = b(ops.Add(), b(ops.Mul(), y, yes), b(ops.Mul(), b(ops.Sub(), 1.0, y), no))
        loss = b(ops.Mul(), _power(b, missing, gamma), entropy)
        if alpha is None:
            return loss
        return b(ops.Mul(), loss, b(ops.Add(), b(ops.Mul(), y, 2 * alpha - 1), 1 - alpha))

    return emit


def squared_error() -> RowLoss:
    """(x - y)^2."""
    return lambda b, x, y: b(ops.SquaredDifference(), x, y)


def absolute_error() -> RowLoss:
    """|y - x|, whose slope is that of Keras where both are equal, -1."""
    return lambda b, x, y: b(ops.Abs(), b(ops.Sub(), y, x))


def absolute_percentage_error() -> RowLoss:
    """100 |y - x| / |y|; y is at least Keras' epsilon."""

    def emit(b: Builder, x: Value, y: Value) -> Value:
        e, size = b(ops.Abs(), b(ops.Sub(), y, x)), b(ops.Maximum(), b(ops.Abs(), y), _EPSILON)
        return b(ops.Mul(), b(ops.Div(), e, size), 100.0)

    return emit


def squared_logarithmic_error() -> RowLoss:
    """(log(x + 1) - log(y + 1))^2; x and y are at least Keras' epsilon."""

    def logarithm(b: Builder, x: Value) -> Value:
        return b(ops.Log(), b(ops.Add(), b(ops.Maximum(), x, _EPSILON), 1.0))

    return lambda b, x, y: b(ops.SquaredDifference(), logarithm(b, x), logarithm(b, y))


def poisson() -> RowLoss:
    """x - y log(x): of counts y, expected to be x, which is above 0."""
    return lambda b, x, y: b(ops.Sub(), x, b(ops.Mul(), y, b(ops.Log(), b(ops.Add(), x, _EPSILON))))


def huber(delta: float = 1.0) -> RowLoss:
    """e^2 / 2 up to |e| = delta, and a line of the same slope from there on."""

    def emit(b: Builder, x: Value, y: Value) -> Value:
        e = b(ops.Abs(), b(ops.Sub(), x, y))
        near = b(ops.Minimum(), e, delta)
        return b(ops.Mul(), near, b(ops.Sub(), e, b(ops.Mul(), near, 0.5)))

    return emit


def quantile(q: float = 0.5) -> RowLoss:
    """q (y - x) where y is above x, (1 - q) (x - y) below: least where a share q of y lies below x (pinball loss).

    Raises:
        UsageError: q is no share between 0 and 1.
    """
    if not 0 < q < 1:
        raise UsageError(f"the loss quantile: q is a share between 0 and 1, got {q:g}", page="losses")

    def emit(b: Builder, x: Value, y: Value) -> Value:
        e = b(ops.Sub(), y, x)
        return b(ops.Maximum(), b(ops.Mul(), e, q), b(ops.Mul(), e, q - 1))

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


def squared_hinge() -> RowLoss:
    """Return the square of `hinge`."""
    near = hinge()

    def emit(b: Builder, x: Value, y: Value) -> Value:
        missing = near(b, x, y)
        return b(ops.Mul(), missing, missing)

    return emit


def categorical_hinge() -> RowLoss:
    """max(max((1 - y) x) - sum(y x) + 1, 0) along the last axis, for one-hot y."""

    def emit(b: Builder, x: Value, y: Value) -> Value:
        axes = (len(x.shape) - 1,)
        right = b(ops.Sum(axes), b(ops.Mul(), y, x))
        wrong = b(ops.Max(axes), b(ops.Mul(), b(ops.Sub(), 1.0, y), x))
        return b(ops.Maximum(), b(ops.Add(), b(ops.Sub(), wrong, right), 1.0), 0.0)

    return emit


def generalized_cross_entropy(q: float = 0.5) -> RowLoss:
    """(1 - p^q) / q of the probability of the label (Zhang and Sabuncu, arXiv 1805.07836)."""
    if not 0 < q < 1:
        raise UsageError(
            f"the loss categorical_generalized_cross_entropy: q is between 0 and 1, not {q}", page="losses"
        )
    surprise = sparse_cross_entropy()

    def emit(b: Builder, logits: Value, y: Value) -> Value:
        power = b(ops.Exp(), b(ops.Mul(), surprise(b, logits, y), -q))
        return b(ops.Mul(), b(ops.Sub(), 1.0, power), 1 / q)

    return emit


def dice(axis: Axes = None) -> RowLoss:
    """1 - 2 |x y| / (|x| + |y|), sizes being sums over some axes: of masks (Milletari et al., arXiv 1606.04797)."""

    def emit(b: Builder, x: Value, y: Value) -> Value:
        shared, ours, theirs = (_over(b, v, axis) for v in (b(ops.Mul(), x, y), x, y))
        sizes = b(ops.Add(), b(ops.Add(), theirs, ours), _EPSILON)
        overlap = b(ops.Div(), b(ops.Mul(), shared, 2.0), sizes)
        return _of_rows(b, b(ops.Sub(), 1.0, overlap), x, axis)

    return emit


def tversky(alpha: float = 0.5, beta: float = 0.5, axis: Axes = None) -> RowLoss:
    """1 - |x y| / (|x y| + alpha |(1 - x) y| + beta |x (1 - y)|) of masks (Salehi et al., arXiv 1706.05721)."""

    def emit(b: Builder, x: Value, y: Value) -> Value:
        shared = _over(b, b(ops.Mul(), x, y), axis)
        missed = _over(b, b(ops.Mul(), b(ops.Sub(), 1.0, x), y), axis)
        invented = _over(b, b(ops.Mul(), x, b(ops.Sub(), 1.0, y)), axis)
        wrong = b(ops.Add(), b(ops.Mul(), missed, alpha), b(ops.Mul(), invented, beta))
        whole = b(ops.Add(), b(ops.Add(), shared, wrong), _EPSILON)
        return _of_rows(b, b(ops.Sub(), 1.0, b(ops.Div(), shared, whole)), x, axis)

    return emit


def _axes(x: Value, axis: Axes) -> tuple[int, ...]:
    rank = len(x.shape)
    if axis is None:
        return tuple(range(rank))
    axes = [axis] if isinstance(axis, int) else list(axis)
    if any(not -rank <= n < rank for n in axes):
        raise UsageError(
            f"the loss sums over axis {axis}, and the output {list(x.shape)} has {rank} axes", page="losses"
        )
    return tuple(sorted({n % rank for n in axes}))


def _over(b: Builder, x: Value, axis: Axes) -> Value:
    return b(ops.Sum(_axes(x, axis)), x)


def _of_rows(b: Builder, values: Value, x: Value, axis: Axes) -> Value:
    """Return what was summed over axes of x, as a number for each row: the same of all where rows were summed."""
    if 0 not in _axes(x, axis):
        return values
    if values.shape:
        values = b(ops.Mean(tuple(range(len(values.shape)))), values)
    return b(ops.BroadcastTo(x.shape[:1]), values)


def _distance(b: Builder, x: Value, y: Value) -> Value:
    """Return the Euclidean distance along the last axis."""
    return b(ops.Sqrt(), b(ops.Add(), b(ops.Sum((len(x.shape) - 1,)), b(ops.SquaredDifference(), x, y)), _TINY))


def _smooth(b: Builder, y: Value, smoothing: float, toward: float) -> Value:
    return b(ops.Add(), b(ops.Mul(), y, 1 - smoothing), smoothing * toward) if smoothing else y


def _power(b: Builder, x: Value, exponent: float) -> Value:
    """x >= 0 to a constant power."""
    return b(ops.Mul(), x, x) if exponent == 2 else b(ops.Pow(), x, exponent)


def _softplus_of_negative(b: Builder, z: Value) -> Value:
    """log(1 + e^z) for z <= 0."""
    return b(ops.Log(), b(ops.Add(), b(ops.Exp(), z), 1.0))


def bounded(b: Builder, loss: Value) -> Value:
    """Return what Keras' clipped probabilities give, without slope, for the endless loss of what a model masks."""
    return b(ops.Select(), b(ops.Greater(), loss, MASKED), b.constant(SURPRISE), loss)


def _clipped_surprise(b: Builder, logits: Value) -> Value:
    """Return minus the logarithm of the softmax, at most that of the least probability that Keras knows."""
    return b(ops.Minimum(), b(ops.Neg(), b(ops.LogSoftmax(), logits)), SURPRISE)


def _log_softmax(b: Builder, logits: Value) -> Value:
    """Return the logarithm of the softmax, with Keras' least one where a logit is masked."""
    return b(ops.Neg(), bounded(b, b(ops.Neg(), b(ops.LogSoftmax(), logits))))
