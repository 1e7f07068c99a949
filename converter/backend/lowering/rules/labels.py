"""One-hot labels, and the losses of classes."""

from __future__ import annotations

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering, LoweringRules
from converter.backend.lowering.rules.normalize import LARGEST, log_sum_exp, shifted_rows
from converter.ir import FLOAT32, Op, Value, ops

lowers = LoweringRules()

#: The integers up to here are float32 numbers.
EXACT = 2**24
#: Between the numbers of two classes: no logit comes near its square, which is finite, for GPUs know no infinity.
_SPREAD = 2.0**58
#: What a loss stays below.
_MOST = 2.0**100


@lowers(ops.OneHot)
def one_hot(c: Lowering, op: ops.OneHot, indices: Value) -> Value:
    """ONE_HOT is a loop of branches; max(1 - (class - index)^2, 0) is the same to the last bit, six times as quick.

    An index that float32 rounds is far from every class, and from those an accelerator would round.
    """
    if not c.target.is_cpu or op.depth > EXACT:
        return c(tfl.OneHot(op.depth), indices)
    if c.target.is_micro:
        return c.reshape(c(tfl.Cast(FLOAT32), _at_label(c, op.depth, indices)), (*indices.shape, op.depth))
    separate = _apart(c, op.depth, indices)
    return c.reshape(c(tfl.Sub("RELU"), 1.0, separate), (*indices.shape, op.depth))


def _apart(c: Lowering, depth: int, indices: Value) -> Value:
    """[rows, depth]: 0 at the index of each row, elsewhere the square of how far it is, times `_SPREAD`^2."""
    index = c(tfl.Mul(), c.reshape(c(tfl.Cast(FLOAT32), indices), (indices.type.size, 1)), _SPREAD)
    classes = np.arange(depth, dtype=np.float32)[None] * np.float32(_SPREAD)
    return c(tfl.SquaredDifference(), c.constant(classes), index)


@lowers(ops.Pick)
def pick(c: Lowering, op: ops.Pick, x: Value, indices: Value) -> Value:
    """A product with the one-hot rows and a sum, of numbers below infinity."""
    finite = c(tfl.Minimum(), LARGEST, c(tfl.Maximum(), -LARGEST, x)) if c.target.is_cpu else x
    rows = c(tfl.Mul(), finite, one_hot(c, ops.OneHot(x.shape[-1]), indices))
    picked = c(tfl.Sum((len(rows.shape) - 1,), keepdims=True), rows)
    shape = op.infer(x.type, indices.type).shape
    return c.reshape(_unbounded(c, picked) if c.target.is_cpu else picked, shape)


@lowers(ops.IsClass)
def is_class(c: Lowering, op: ops.IsClass, indices: Value) -> Value:
    """max(1 - (nearest class - index)^2, 0), as OneHot."""
    if not c.target.is_cpu or op.depth > EXACT:
        rows = one_hot(c, ops.OneHot(op.depth), indices)
        return c(tfl.Sum((len(rows.shape) - 1,)), rows)
    if c.target.is_micro:  # each operator takes memory, and the derivative has these rows, too
        rows = one_hot(c, ops.OneHot(op.depth), indices)
        return c.reshape(c(tfl.ReduceMax((len(rows.shape) - 1,), keepdims=True), rows), indices.shape)
    index = c(tfl.Cast(FLOAT32), indices)
    nearest = c(tfl.Minimum(), c(tfl.Maximum(), index, 0.0), float(op.depth - 1))
    return c(tfl.Sub("RELU"), 1.0, c(tfl.SquaredDifference(), nearest, index))


@lowers(ops.LabelCrossEntropy)
def label_cross_entropy(c: Lowering, op: ops.LabelCrossEntropy, logits: Value, labels: Value) -> Value:
    """max(z) - z[label] - log(max(softmax(z))), as the largest exponential is 1: the derivative has the softmax, too.

    Each pass over all logits counts: four fewer, and a head over 8000 words trains in 3% less time. z[label] is the
    largest of z less a huge number at the other classes, whose own logits may be -inf.
    """
    classes = logits.shape[-1]
    if not c.target.is_cpu or classes > EXACT:
        return _by_one_hot(c, op, logits, labels)
    if c.target.is_micro and not op.everywhere:
        return _with_few_operators(c, logits, labels)
    last = (len(logits.shape) - 1,)
    most = c(tfl.Log(), c(tfl.ReduceMax(last, keepdims=True), c(tfl.Softmax(), logits)))
    separate = c.reshape(_apart(c, classes, labels), logits.shape)
    of_label = c(tfl.Maximum(), -LARGEST, c(tfl.ReduceMax(last, keepdims=True), c(tfl.Sub(), logits, separate)))
    known = is_class(c, ops.IsClass(classes), labels)
    if op.everywhere:  # of what is no class 0 is taken away
        of_label = c(tfl.Mul(), of_label, c.reshape(known, of_label.shape))
    below = c(tfl.Sub(), c(tfl.ReduceMax(last, keepdims=True), logits), of_label)
    surprise = c.reshape(c(tfl.Sub(), below, most), labels.shape)
    return _unbounded(c, surprise if op.everywhere else c(tfl.Mul(), surprise, known))


def _with_few_operators(c: Lowering, logits: Value, labels: Value) -> Value:
    """-min(log softmax(z) at the label, 0 at the other classes), for runtimes where each operator takes memory.

    The loss of what is no class is 0, and a logit of -inf gives what it should: plain kernels compute with infinity.
    """
    at_label = c.reshape(_at_label(c, logits.shape[-1], labels), logits.shape)
    of_label = c(tfl.SelectV2(), at_label, c(tfl.LogSoftmax(), logits), 0.0)
    return c(tfl.Neg(), c.reshape(c(tfl.ReduceMin((len(logits.shape) - 1,)), of_label), labels.shape))


def _at_label(c: Lowering, depth: int, indices: Value) -> Value:
    """[rows, depth]: whether a class is the label of a row."""
    return c(tfl.Equal(), np.arange(depth, dtype=np.int32)[None], c.reshape(indices, (indices.type.size, 1)))


def _by_one_hot(c: Lowering, op: ops.LabelCrossEntropy, logits: Value, labels: Value) -> Value:
    classes = ops.OneHot(logits.shape[-1])
    loss = softmax_cross_entropy(c, ops.SoftmaxCrossEntropy(), logits, one_hot(c, classes, labels))
    if not op.everywhere:
        return loss
    others = c(tfl.Sub(), 1.0, is_class(c, ops.IsClass(classes.depth), labels))
    total = c.reshape(log_sum_exp(c, ops.LogSumExp(), logits), labels.shape)
    return c(tfl.Add(), loss, c(tfl.Mul(), total, others))


@lowers(ops.SoftmaxCrossEntropy)
def softmax_cross_entropy(c: Lowering, op: ops.SoftmaxCrossEntropy, logits: Value, targets: Value) -> Value:
    """-sum(t (z - max(z))) - sum(t) log(max(softmax(z))): the derivative has the softmax and the sum, too."""
    last = (len(logits.shape) - 1,)
    if not c.target.is_cpu:
        _, shifted, log_total = shifted_rows(c, logits)
        return c(tfl.Sum(last), c(tfl.Mul(), c(tfl.Sub(), log_total, shifted), targets))
    most = c(tfl.Log(), c(tfl.ReduceMax(last, keepdims=True), c(tfl.Softmax(), logits)))
    top = c(tfl.ReduceMax(last, keepdims=True), logits)
    shifted = c(tfl.Maximum(), -LARGEST, c(tfl.Sub(), logits, top))
    chosen = c(tfl.Sum(last, keepdims=True), c(tfl.Mul(), shifted, targets))
    mass = c(tfl.Sum(last, keepdims=True), targets)
    loss = c(tfl.Sub(), c(tfl.Mul(), c(tfl.Neg(), most), mass), chosen)
    return _unbounded(c, c.reshape(loss, op.infer(logits.type, targets.type).shape))


@lowers(ops.BinaryCrossEntropy)
def binary_cross_entropy(c: Lowering, op: Op, logits: Value, targets: Value) -> Value:
    """max(z, 0) - z t + log(1 + e^-|z|), which does not overflow."""
    if not c.target.is_cpu:
        return _binary(c, logits, targets)
    finite = c(tfl.Minimum(), LARGEST, c(tfl.Maximum(), -LARGEST, logits))
    return _unbounded(c, _binary(c, finite, targets))


def _binary(c: Lowering, z: Value, t: Value) -> Value:
    rest = c(tfl.Log(), c(tfl.Add(), c(tfl.Exp(), c(tfl.Neg(), c(tfl.Abs(), z))), 1.0))
    return c(tfl.Add(), c(tfl.Sub(), c(tfl.Relu(), z), c(tfl.Mul(), z, t)), rest)


def _unbounded(c: Lowering, loss: Value) -> Value:
    """Infinity where what was made of numbers up to `LARGEST` is as large as one of them, and itself else."""
    return c(tfl.Mul(), loss, c(tfl.Maximum(), 1.0, c(tfl.Mul(), c(tfl.Abs(), loss), 1 / _MOST)))
