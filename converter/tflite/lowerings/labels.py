"""Labels of classes, and the loss that reads them."""

from __future__ import annotations

import numpy as np

from converter.ir import FLOAT32, Value, ops
from converter.tflite import builtins as tfl
from converter.tflite.lower import Lowering, lowers
from converter.tflite.lowerings.normalize import log_sum_exp, softmax_cross_entropy

#: The integers up to here are float32 numbers.
EXACT = 2**24
#: What places are multiplied by, exactly: the square of the distance between two of them is infinite.
APART = 2.0**64
#: The least finite number.
LEAST = float(np.finfo(np.float32).min)


def _distance(c: Lowering, depth: int, indices: Value) -> Value:
    """Along a new last axis, 0 where the class is the index and infinite elsewhere.

    An index that float32 rounds is far from every class.
    """
    index = c(tfl.Mul(), c.reshape(c(tfl.Cast(FLOAT32), indices), (indices.type.size, 1)), APART)
    classes = c.constant((np.arange(depth) * APART).astype(np.float32)[None])
    return c.reshape(c(tfl.SquaredDifference(), classes, index), (*indices.shape, depth))


@lowers(ops.OneHot)
def one_hot(c: Lowering, op: ops.OneHot, indices: Value) -> Value:
    """ONE_HOT is a loop of branches; max(1 - distance, 0) is the same to the last bit, six times as quick.

    Indices that an accelerator would round are its own kernel's.
    """
    if not _by_distance(c, op.depth):
        return c(tfl.OneHot(op.depth), indices)
    return c(tfl.Sub("RELU"), 1.0, _distance(c, op.depth, indices))


@lowers(ops.Pick)
def pick(c: Lowering, op: ops.Pick, x: Value, indices: Value) -> Value:
    """max(x - distance): a pass over x less than a product with the row of OneHot, and no 0 times what is infinite."""
    if _by_distance(c, x.shape[-1]):
        return c.reshape(_picked(c, x, indices), indices.shape)
    rows = one_hot(c, ops.OneHot(x.shape[-1]), indices)
    return c(tfl.Sum((len(indices.shape),)), c(tfl.Mul(), x, rows))


def _picked(c: Lowering, x: Value, indices: Value) -> Value:
    """[..., 1], as the statistics of a softmax are; -inf where the index is out of range."""
    apart = c(tfl.Sub(), x, _distance(c, x.shape[-1], indices))
    return c(tfl.ReduceMax((len(indices.shape),), keepdims=True), apart)


def _by_distance(c: Lowering, depth: int) -> bool:
    return c.target.is_cpu and depth <= EXACT


@lowers(ops.IsClass)
def is_class(c: Lowering, op: ops.IsClass, indices: Value) -> Value:
    """max(1 - (nearest class - index)^2, 0), as OneHot."""
    if not _by_distance(c, op.depth):
        rows = one_hot(c, ops.OneHot(op.depth), indices)
        return c(tfl.Sum((len(rows.shape) - 1,)), rows)
    index = c(tfl.Cast(FLOAT32), indices)
    nearest = c(tfl.Minimum(), c(tfl.Maximum(), index, 0.0), float(op.depth - 1))
    return c(tfl.Sub("RELU"), 1.0, c(tfl.SquaredDifference(), nearest, index))


@lowers(ops.LabelCrossEntropy)
def label_cross_entropy(c: Lowering, op: ops.LabelCrossEntropy, logits: Value, labels: Value) -> Value:
    """max(z) - z[label] - log(max(softmax(z))), as the largest exponential is 1: the derivative has the softmax, too.

    Each pass over all logits counts: four fewer, and a head over 8000 words trains in 3% less time.
    """
    depth = logits.shape[-1]
    if not c.target.is_cpu:
        loss = softmax_cross_entropy(c, op, logits, one_hot(c, ops.OneHot(depth), labels))
        if not op.everywhere:
            return loss
        others = c(tfl.Sub(), 1.0, is_class(c, ops.IsClass(depth), labels))
        total = c.reshape(log_sum_exp(c, ops.LogSumExp(), logits), labels.shape)
        return c(tfl.Add(), loss, c(tfl.Mul(), total, others))
    last, known = (len(labels.shape),), is_class(c, ops.IsClass(depth), labels)
    most = c(tfl.Log(), c(tfl.ReduceMax(last, keepdims=True), c(tfl.Softmax(), logits)))
    of_label = c(tfl.Maximum(), _picked(c, logits, labels), LEAST)  # a finite number of what is no class, too
    if op.everywhere:
        of_label = c(tfl.Mul(), of_label, c.reshape(known, of_label.shape))
    below = c(tfl.Sub(), c(tfl.ReduceMax(last, keepdims=True), logits), of_label)
    surprise = c.reshape(c(tfl.Sub(), below, most), labels.shape)
    return surprise if op.everywhere else c(tfl.Mul(), surprise, known)
