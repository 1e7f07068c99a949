"""Recognises softmaxes, their logarithms, cross entropy and one-hot rows, over the last axis."""

from __future__ import annotations

import numpy as np

from converter.ir import FLOAT32, Node, Op, Value, ops
from converter.passes.rewrite import Rewriter


def is_row_statistic(value: Value, x: Value) -> bool:
    """Whether `value` holds one number a row of `x`."""
    return len(value.shape) == len(x.shape) and value.shape == (*x.shape[:-1], 1)


def core(b: Rewriter, value: Value) -> Value:
    """The value behind reshapes that add or remove axes of size 1, and behind stop_gradient."""
    while node := b.producer(value, ops.Reshape) or _stopped(b, value):
        if isinstance(node.op, ops.Reshape) and _sizes(node.inputs[0]) != _sizes(value):
            break
        value = node.inputs[-1]
    return value


def _sizes(value: Value) -> list[int]:
    return [d for d in value.shape if d != 1]


def _stopped(b: Rewriter, value: Value) -> Node | None:
    node = b.producer(value, ops.CustomGradient)
    return node if node is not None and not node.op.arguments and len(node.inputs) == 1 else None


def over_rows(b: Rewriter, value: Value, kind: type[ops.Reduction]) -> Value | None:
    """The operand if `value` is this reduction of it over the last axis, with or without the axis kept."""
    node = b.producer(core(b, value), kind)
    if node is None:
        return None
    x = node.inputs[0]
    last = len(x.shape) - 1
    return x if tuple(a % len(x.shape) for a in node.op.axes) == (last,) else None


def _shifted(b: Rewriter, z: Value) -> tuple[Value, Value | None]:
    """(x, m) for z = x - m with one m a row: a shift that a softmax does not see."""
    node = b.producer(z, ops.Sub)
    if node and node.inputs[0].shape == z.shape and is_row_statistic(node.inputs[1], z):
        return node.inputs[0], node.inputs[1]
    return z, None


def _total(b: Rewriter, value: Value) -> Value | None:
    """z for value = sum(exp(z)) over the last axis."""
    summed = over_rows(b, value, ops.Sum)
    power = b.producer(summed, ops.Exp) if summed is not None else None
    return power.inputs[0] if power else None


def softmax(b: Rewriter, node: Node) -> Value | None:
    """exp(z) / sum(exp(z)), shifted or not."""
    if not isinstance(node.op, ops.Div) or not is_row_statistic(node.inputs[1], node.output):
        return None
    power = b.producer(node.inputs[0], ops.Exp)
    if power is None or _total(b, node.inputs[1]) is not power.inputs[0]:
        return None
    return b(ops.Softmax(), _shifted(b, power.inputs[0])[0])


def log_softmax(b: Rewriter, node: Node) -> Value | None:
    """z - log(sum(exp(z))), or x - logsumexp(x)."""
    if not isinstance(node.op, ops.Sub) or not is_row_statistic(node.inputs[1], node.output):
        return None
    z, subtracted = node.inputs
    if z.shape != node.output.shape:
        return None
    logarithm = b.producer(core(b, subtracted), ops.Log)
    if logarithm and _total(b, logarithm.inputs[0]) is z:
        return b(ops.LogSoftmax(), _shifted(b, z)[0])
    known = b.producer(core(b, subtracted), ops.LogSumExp)
    return b(ops.LogSoftmax(), z) if known and known.inputs[0] is z else None


def log_sum_exp(b: Rewriter, node: Node) -> Value | None:
    """log(sum(exp(x - m))) + m."""
    if not isinstance(node.op, ops.Add):
        return None
    for left, right in (node.inputs, node.inputs[::-1]):
        logarithm = b.producer(core(b, left), ops.Log)
        if logarithm is None:
            continue
        inner = b.producer(core(b, logarithm.inputs[0]), ops.Abs)  # jax takes |sum|, which is positive anyway
        z = _total(b, inner.inputs[0] if inner else logarithm.inputs[0])
        if z is None:
            continue
        x, shift = _shifted(b, z)
        if shift is not None and core(b, shift) is core(b, right) and left.type.size == node.output.type.size:
            return b.reshape(b(ops.LogSumExp(), x), node.output.shape)
    return None


def cross_entropy(b: Rewriter, node: Node) -> Value | None:
    """-sum(target * log_softmax(x)), or logsumexp(x) - sum(one_hot * x)."""
    if isinstance(node.op, ops.Neg):
        log_p, target = _weighted(b, node.inputs[0], ops.LogSoftmax)
        if log_p is not None:
            return b.reshape(b(ops.SoftmaxCrossEntropy(), log_p, target), node.output.shape)
    if isinstance(node.op, ops.Sub):
        total = b.producer(core(b, node.inputs[0]), ops.LogSumExp)
        chosen, target = _weighted(b, node.inputs[1], None)
        if total and chosen is total.inputs[0] and b.producer(target, ops.OneHot):
            return b.reshape(b(ops.SoftmaxCrossEntropy(), chosen, target), node.output.shape)
    return None


def _weighted(b: Rewriter, value: Value, kind: type[Op] | None) -> tuple[Value | None, Value]:
    """(x, target) for value = sum(target * kind(x)) over the last axis; (None, value) if it is something else."""
    product = over_rows(b, value, ops.Sum)
    made = b.producer(product, ops.Mul) if product is not None else None
    if made is None or made.inputs[0].shape != made.inputs[1].shape:
        return None, value
    for x, target in (made.inputs, made.inputs[::-1]):
        if kind is None and b.producer(target, ops.OneHot):
            return x, target
        known = b.producer(x, kind) if kind else None
        if known:
            return known.inputs[0], target
    return None, value


def one_hot(b: Rewriter, node: Node) -> Value | None:
    """float(index == [0, 1, 2, ...])."""
    if not isinstance(node.op, ops.Cast) or node.op.dtype != FLOAT32:
        return None
    equal = b.producer(node.inputs[0], ops.Equal)
    if equal is None:
        return None
    for index, line in (equal.inputs, equal.inputs[::-1]):
        places = b.array(line)
        depth = node.output.shape[-1] if node.output.shape else 0
        if places is None or places.size != depth or line.shape[-1:] != (depth,) or index.dtype.kind != "i":
            continue
        if index.shape == (*node.output.shape[:-1], 1) and (places.reshape(-1) == np.arange(depth)).all():
            return b(ops.OneHot(depth), b.reshape(index, index.shape[:-1]))
    return None
