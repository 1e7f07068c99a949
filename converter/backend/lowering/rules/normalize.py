"""Reductions, softmaxes and normalisations."""

from __future__ import annotations

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering, LoweringRules
from converter.ir import Value, ops
from converter.ir.ops.reduce import normal_axes

lowers = LoweringRules()

REDUCTIONS = {ops.Sum: tfl.Sum, ops.Mean: tfl.Mean, ops.Max: tfl.ReduceMax, ops.Min: tfl.ReduceMin}

#: In place of infinity, which times 0, or less itself, is NaN. As the first operand of a MINIMUM or MAXIMUM it leaves
#: NaN what it is.
LARGEST = 2.0**127
#: Kernels take no more, and XNNPACK fails to prepare what it has taken.
MOST_AXES = 6


def _merged(c: Lowering, op: ops.Reduction, x: Value, axes: tuple[int, ...]) -> Value:
    """The reduction with neighbouring axes as one where both are reduced, or both are not."""
    sizes: list[int] = []
    reduced: list[bool] = []
    for axis, size in enumerate(x.shape):
        if reduced and reduced[-1] == (axis in axes):
            sizes[-1] *= size
        else:
            sizes.append(size)
            reduced.append(axis in axes)
    kept = tuple(axis for axis, away in enumerate(reduced) if away)
    return c(REDUCTIONS[type(op)](kept, keepdims=True), c.reshape(x, tuple(sizes)))


@lowers(*REDUCTIONS)
def reduction(c: Lowering, op: ops.Reduction, x: Value) -> Value:
    if not op.axes:
        return x
    axes = normal_axes(op.axes, len(x.shape), op.name)
    if len(x.shape) > MOST_AXES:
        return c.reshape(_merged(c, op, x, axes), op.infer(x.type).shape or (1,))
    if not op.keepdims and len(axes) == len(x.shape):  # to one number, which has shape [1] here
        return c.reshape(c(REDUCTIONS[type(op)](axes, keepdims=True), x), (1,))
    return c(REDUCTIONS[type(op)](axes, keepdims=op.keepdims), x)


@lowers(ops.ArgMax)
def arg_max(c: Lowering, op: ops.ArgMax, x: Value) -> Value:
    if len(x.shape) == 1:  # to one number, which has shape [1] here
        return c(tfl.ArgMax(1), c.reshape(x, (1, *x.shape)))
    return c(tfl.ArgMax(op.axis % len(x.shape)), x)


@lowers(ops.CumSum)
def cumsum(c: Lowering, op: ops.CumSum, x: Value) -> Value:
    return c(tfl.CumSum(op.axis, reverse=op.reverse), x)


@lowers(ops.Softmax)
def softmax(c: Lowering, op: ops.Softmax, x: Value) -> Value:
    return c(tfl.Softmax(), x)


def shifted_rows(c: Lowering, x: Value, finite: bool = False) -> tuple[Value, Value, Value]:
    """The row maximum, x minus it, and log(sum(exp)) of the difference: LOG_SOFTMAX is slow, these are not.

    With `finite` rows of -inf, and those with infinity, have the sum that they should, and NaN else: what is subtracted
    is finite, and the maximum above it stays infinity (XNNPACK's LOG for AVX2 makes 88 of it).
    """
    top = shift = c(tfl.ReduceMax((len(x.shape) - 1,), keepdims=True), x)
    if finite:
        top = c(tfl.Maximum(), -LARGEST, top)
        shift = c(tfl.Minimum(), LARGEST, top)
    shifted = c(tfl.Sub(), x, shift)
    total = c(tfl.Sum((len(x.shape) - 1,), keepdims=True), c(tfl.Exp(), shifted))
    return top, shifted, c(tfl.Log(), total)


@lowers(ops.LogSoftmax)
def log_softmax(c: Lowering, op: ops.LogSoftmax, x: Value) -> Value:
    _, shifted, log_total = shifted_rows(c, x)
    return c(tfl.Sub(), shifted, log_total)


@lowers(ops.LogSumExp)
def log_sum_exp(c: Lowering, op: ops.LogSumExp, x: Value) -> Value:
    top, _, log_total = shifted_rows(c, x, finite=True)
    return c(tfl.Add(), top, log_total)


def _centered(c: Lowering, x: Value, epsilon: float) -> tuple[Value, Value]:
    """x minus its row mean, and 1/sqrt(row variance + epsilon)."""
    last = (len(x.shape) - 1,)
    centered = c(tfl.Sub(), x, c(tfl.Mean(last, keepdims=True), x))
    variance = c(tfl.Mean(last, keepdims=True), c(tfl.Mul(), centered, centered))
    return centered, c(tfl.Rsqrt(), c(tfl.Add(), variance, epsilon))


@lowers(ops.LayerNorm)
def layer_norm(c: Lowering, op: ops.LayerNorm, x: Value) -> Value:
    return c(tfl.Mul(), *_centered(c, x, op.epsilon))


@lowers(ops.InverseDeviation)
def inverse_deviation(c: Lowering, op: ops.InverseDeviation, x: Value) -> Value:
    return _centered(c, x, op.epsilon)[1]  # merged with the forward pass by common subexpressions


@lowers(ops.RMSNorm)
def rms_norm(c: Lowering, op: ops.RMSNorm, x: Value) -> Value:
    mean_square = c(tfl.Mean((len(x.shape) - 1,), keepdims=True), c(tfl.Mul(), x, x))
    return c(tfl.Mul(), x, c(tfl.Rsqrt(), c(tfl.Add(), mean_square, op.epsilon)))
