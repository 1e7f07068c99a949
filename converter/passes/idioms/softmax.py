"""Recognises softmaxes, their logarithms, cross entropy and one-hot rows, over the last axis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from converter.ir import FLOAT32, Node, Op, Value, ops
from converter.ir.folding import squeezed
from converter.ir.rewrite import Rewriter


def is_row_statistic(value: Value, x: Value) -> bool:
    """Return whether `value` holds one number a row of `x`, and meets `x` row by row in arithmetic."""
    return bool(x.shape) and squeezed(value.shape) == squeezed((*x.shape[:-1], 1))


def as_written(number: float) -> float:
    """Return the shortest number of the same float32: 1e-5 rather than 9.99999974e-06."""
    return float(str(np.float32(number)))


def core(b: Rewriter, value: Value) -> Value:
    """Return the value after reshapes that add or remove axes of size 1. The order of its elements is the same."""
    while (node := b.producer(value, ops.Reshape)) and _sizes(node.inputs[0]) == _sizes(value):
        value = node.inputs[0]
    return value


def _sizes(value: Value) -> list[int]:
    return [d for d in value.shape if d != 1]


def over_rows(b: Rewriter, value: Value, kind: type[ops.Reduction]) -> Value | None:
    """Return the operand if `value` is this reduction of it over the last axis, with or without the axis kept."""
    node = b.producer(core(b, value), kind)
    if node is None:
        return None
    x = node.inputs[0]
    last = len(x.shape) - 1
    return x if tuple(a % len(x.shape) for a in node.op.axes) == (last,) else None


def _shifted(b: Rewriter, z: Value) -> tuple[Value, Value | None]:
    """(x, m) for z = x - m with one m a row, or one for all: a shift that a softmax does not see."""
    node = b.producer(z, ops.Sub)
    if node and node.inputs[0].shape == z.shape and node.inputs[1].shape[-1:] in ((), (1,)):
        return node.inputs[0], node.inputs[1]
    return z, None


def _total(b: Rewriter, value: Value) -> Value | None:
    """z for value = sum(exp(z)) over the last axis."""
    summed = over_rows(b, value, ops.Sum)
    power = b.producer(summed, ops.Exp) if summed is not None else None
    return power.inputs[0] if power else None


def softmax(b: Rewriter, node: Node) -> Value | None:
    """exp(z) / sum(exp(z)) or exp(z) * (1 / sum(exp(z))), shifted or not, and exp(log_softmax(x))."""
    if isinstance(node.op, ops.Exp):
        logarithm = b.producer(node.inputs[0], ops.LogSoftmax)
        return b(ops.Softmax(), logarithm.inputs[0]) if logarithm else None
    if isinstance(node.op, ops.Div):
        return _normalized(b, node, *node.inputs)
    if isinstance(node.op, ops.Mul):
        for e, factor in (node.inputs, node.inputs[::-1]):
            inverse = b.producer(factor, ops.Div)
            if inverse and b.scalar(inverse.inputs[0]) == 1:
                made = _normalized(b, node, e, inverse.inputs[1])
                if made is not None:
                    return made
    return None


def _normalized(b: Rewriter, node: Node, e: Value, total: Value) -> Value | None:
    """Softmax for e = exp(z) and total = sum(exp(z))."""
    power = b.producer(e, ops.Exp)
    if power is None or e.shape != node.output.shape or not is_row_statistic(total, e):
        return None
    return b(ops.Softmax(), _shifted(b, power.inputs[0])[0]) if _total(b, total) is power.inputs[0] else None


def log_softmax(b: Rewriter, node: Node) -> Value | None:
    """x - logsumexp(x), and log(softmax(x)), which is finite this way where the softmax vanishes."""
    if isinstance(node.op, ops.Log):
        probability = b.producer(node.inputs[0], ops.Softmax)
        return b(ops.LogSoftmax(), probability.inputs[0]) if probability else None
    if not isinstance(node.op, ops.Sub) or node.inputs[0].shape != node.output.shape:
        return None
    z, subtracted = node.inputs
    known = b.producer(core(b, subtracted), ops.LogSumExp)
    if known is None or known.inputs[0] is not z or not is_row_statistic(subtracted, z):
        return None
    return b(ops.LogSoftmax(), _shifted(b, z)[0])


def log_sum_exp(b: Rewriter, node: Node) -> Value | None:
    """log(sum(exp(z))), and logsumexp(x - m) + m."""
    if isinstance(node.op, ops.Log):
        inner = b.producer(core(b, node.inputs[0]), ops.Abs)  # jax takes |sum|, which is positive anyway
        z = _total(b, inner.inputs[0] if inner else node.inputs[0])
        return b.reshape(b(ops.LogSumExp(), z), node.output.shape) if z is not None else None
    if not isinstance(node.op, ops.Add):
        return None
    for left, right in (node.inputs, node.inputs[::-1]):
        known = b.producer(core(b, left), ops.LogSumExp)
        if known is None or left.type.size != node.output.type.size:
            continue
        x, shift = _shifted(b, known.inputs[0])
        if shift is not None and _same_statistic(b, shift, right):
            return b.reshape(b(ops.LogSumExp(), x), node.output.shape)
    return None


def _same_statistic(b: Rewriter, left: Value, right: Value) -> bool:
    """Return whether two values hold the same numbers: one of them may have kept the axis that it was reduced over."""
    left, right = core(b, left), core(b, right)
    if left is right:
        return True
    first, second = b.producer(left, ops.Reduction), b.producer(right, ops.Reduction)
    return (
        first is not None
        and second is not None
        and first.inputs == second.inputs
        and replace(first.op, keepdims=True) == replace(second.op, keepdims=True)
    )


def cross_entropy(b: Rewriter, node: Node) -> Value | None:
    """-sum(target * log_softmax(x)), or logsumexp(x) - sum(one_hot * x).

    What is read for labels that are no class stays around it.
    """
    if isinstance(node.op, ops.Neg):
        guard = _guard(b, node.inputs[0], ops.Select, ops.DerivedWhere)
        log_p, target = _weighted(b, _guarded(guard) if guard else node.inputs[0], ops.LogSoftmax)
        if log_p is not None:
            loss = _of_targets(b, log_p, target, False)
            return b.reshape(_with_guard(b, guard, loss) if guard else loss, node.output.shape)
    if isinstance(node.op, ops.Sub):
        guard = _guard(b, node.inputs[1], ops.Select)
        total = b.producer(core(b, node.inputs[0]), ops.LogSumExp)
        chosen, target = _weighted(b, _guarded(guard) if guard else node.inputs[1], None)
        if total and chosen is total.inputs[0] and all(v.type.size == node.output.type.size for v in node.inputs):
            loss = _of_targets(b, chosen, target, True)
            if guard:  # the derivative by all other logits is there for what is no class, too
                nothing = b(ops.Select(), guard.inputs[0], 0.0, guard.inputs[2])
                loss = b(ops.Add(), b.reshape(loss, guard.output.shape), nothing)
            return b.reshape(loss, node.output.shape)
    return None


def _guard(b: Rewriter, value: Value, *kinds: type[Op]) -> Node | None:
    """What makes a value NaN, or without a derivative, where an index lies outside: one condition for each number."""
    for kind in kinds:
        node = b.producer(core(b, value), kind)
        if node is None or _guarded(node).shape != node.output.shape:
            continue
        filler = b.array(node.inputs[2]) if isinstance(node.op, ops.Select) else None
        if isinstance(node.op, ops.DerivedWhere) or (filler is not None and np.isnan(filler).all()):
            return node
    return None


def _guarded(guard: Node) -> Value:
    return guard.inputs[1 if isinstance(guard.op, ops.Select) else 0]


def _with_guard(b: Rewriter, guard: Node, value: Value) -> Value:
    """Return another value in the place of the guarded one."""
    inner = _guarded(guard)
    value = b.reshape(value, inner.shape)
    return b(guard.op, *(value if operand is inner else operand for operand in guard.inputs))


def _of_targets(b: Rewriter, logits: Value, target: Value, everywhere: bool) -> Value:
    """Return the cross entropy of a distribution, or of labels, `everywhere` if what is no class has a loss."""
    labels = b.producer(target, ops.OneHot)
    if labels is not None:
        return b(ops.LabelCrossEntropy(everywhere), logits, labels.inputs[0])
    return b(ops.SoftmaxCrossEntropy(), logits, target)


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


def picked(b: Rewriter, node: Node) -> Value | None:
    """sum(one_hot * x) over the last axis, as elements are looked up: those that are not chosen may be infinite."""
    made = b.producer(node.inputs[0], ops.Mul) if isinstance(node.op, ops.Sum) else None
    if made is None or made.output.dtype != FLOAT32 or node.op.axes not in ((-1,), (len(made.output.shape) - 1,)):
        return None
    for x, chosen in (made.inputs, made.inputs[::-1]):
        rows = b.producer(chosen, ops.OneHot)
        if rows and len(x.shape) == len(chosen.shape) and x.shape[-1] == chosen.shape[-1]:
            return b.reshape(b(ops.Pick(isinstance(made.op, ops.Chosen)), x, rows.inputs[0]), node.output.shape)
    return None


def one_hot(b: Rewriter, node: Node) -> Value | None:
    """float(index == [0, 1, 2, ...]), and rows of an identity matrix."""
    if isinstance(node.op, ops.Gather) and node.op.axis == 0:
        table = b.array(node.inputs[0])
        if table is None or table.ndim != 2 or table.dtype != FLOAT32 or not np.array_equal(table, np.eye(len(table))):
            return None
        return b(ops.OneHot(len(table)), node.inputs[1])
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
            reshaped = b.producer(index, ops.Reshape)
            source = reshaped.inputs[0] if reshaped else index
            return b(ops.OneHot(depth), b.reshape(source, index.shape[:-1]))
    return None
