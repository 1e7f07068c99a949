"""Algebraic simplification: neutral elements, chained movements, repeated scalars, empty tensors."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TypeGuard

import numpy as np

from converter.ir import FLOAT32, Graph, Node, Value, is_described, ops
from converter.ir.identities import IDENTITIES, simplified
from converter.ir.rewrite import Rewriter, rewrite
from converter.passes.matrices import made_by_rows, read_by_rows, summed_over_features

#: Constants whose numbers, 0 aside, are all of this size can be multiplied in any order, and with either side of a
#: product.
SMALLEST, LARGEST = 1e-15, 1e15


def simplify(graph: Graph) -> Graph:
    """Applies the local rules below until the graph stops shrinking."""
    while True:
        smaller = rewrite(graph, _simplify)
        if len(smaller.nodes) >= len(graph.nodes):
            return smaller
        graph = smaller


def _simplify(b: Rewriter, node: Node) -> Value | None:
    if len(node.outputs) == 1 and not node.output.type.size:
        return b.constant(np.zeros(node.output.shape, node.output.dtype))
    if (shorter := simplified(b, node.op, node.inputs, IDENTITIES)) is not None:
        return shorter
    match node.op:
        case ops.Add() | ops.Sub() | ops.Mul() | ops.Div():
            return _arithmetic(b, node)
        case ops.Transpose():
            return made_by_rows(b, node)
        case ops.MatMul():
            return read_by_rows(b, node)
        case ops.BroadcastTo() | ops.Slice() | ops.Pad() | ops.Cast() if _same(node):
            return node.inputs[0]
        case ops.Pad(value=value) if not node.inputs[0].type.size:
            return b.constant(np.full(node.output.shape, value, node.output.dtype))
        case ops.Concat():
            kept = [value for value in node.inputs if value.type.size]
            if len(kept) < len(node.inputs):
                return b(node.op, *kept) if len(kept) > 1 else kept[0]
        case ops.Conv2D() | ops.DepthwiseConv2D():
            return _absorb_padding(b, node)
        case ops.Sum(axes=axes) | ops.Mean(axes=axes):
            if all(node.inputs[0].shape[a] == 1 for a in axes):
                return b.reshape(node.inputs[0], node.output.shape)
    return None


def _same(node: Node) -> bool:
    return node.inputs[0].type == node.output.type


def _absorb_padding(b: Rewriter, node: Node) -> Value | None:
    """Conv2D(Pad(x)) with zeros around height and width: the convolution's own padding, which is mostly free."""
    x, w = node.inputs
    inner = b.producer(x, ops.Pad)
    if inner is None or inner.op.value or any(map(any, (inner.op.paddings[0], inner.op.paddings[3]))):
        return None
    around = tuple(
        (low + more[0], high + more[1])
        for (low, high), more in zip(node.op.padding, inner.op.paddings[1:3], strict=True)
    )
    return b(replace(node.op, padding=around), inner.inputs[0], w)


def _arithmetic(b: Rewriter, node: Node) -> Value | None:
    x, y = node.inputs
    if node.op.commutes and b.array(x) is not None:
        x, y = y, x
    if isinstance(node.op, ops.Add) and (joined := _concatenation(b, x, y) or _concatenation_beside(b, x, y)):
        return joined
    if isinstance(node.op, ops.Mul):
        for rule in (_one_scalar, _small_factors, _before_scatter, _before_product, _signs):
            if (joined := rule(b, x, y)) is not None and joined.type == node.output.type:
                return joined  # a number of several axes gives its product as many
    if isinstance(node.op, ops.Sub) and (summed := summed_over_features(b, node)):
        return summed
    over_a_number = isinstance(node.op, ops.Div) and y.type.size == 1 and x.type == node.output.type
    if over_a_number and is_ordinary(divisor := b.scalar(y)):
        return _before_product(b, x, b.constant(1 / divisor))
    stripped = tuple(_without_broadcast(b, v, other, node.output) for v, other in ((x, y), (y, x)))
    if stripped[0] is not x:
        return b(node.op, stripped[0], y)
    return b(node.op, x, stripped[1]) if stripped[1] is not y else None


def _one_scalar(b: Rewriter, x: Value, y: Value) -> Value | None:
    """(x * a) * b with scalars a, b: x * (a * b)."""
    inner = b.producer(x, ops.Mul)
    if inner is None or x.dtype != FLOAT32 or b.scalar(y) is None or not b.used_once(x) or y.type.size != 1:
        return None
    for source, factor in (inner.inputs, inner.inputs[::-1]):
        if (first := b.scalar(factor)) is not None and factor.type.size == 1:
            return b(ops.Mul(), source, first * float(b.scalar(y) or 0.0))
    return None


def _small_factors(b: Rewriter, x: Value, y: Value) -> Value | None:
    """(x * a) * b with small a, b: x * (a * b), one pass over x. So the learning rate meets a folded scale."""
    for product, factor in ((x, y), (y, x)):
        inner = b.producer(product, ops.Mul)
        if inner is None or product.dtype != FLOAT32 or not b.used_once(product):
            continue
        first, second = inner.inputs
        source, small = (first, second) if second.type.size < first.type.size else (second, first)
        shape = ops.Mul().infer(small.type, factor.type).shape
        if source.shape == product.shape and prod(shape) < source.type.size and b.scalar(factor) is None:
            with b.at(inner.origin):  # it is still what the first factor belongs to
                return b(ops.Mul(), source, b(ops.Mul(), small, factor))
    return None


def _before_scatter(b: Rewriter, x: Value, y: Value) -> Value | None:
    """ScatterAdd(i, u) * a with one number a: ScatterAdd(i, u * a), the rows of a batch for those of a whole table."""
    for scattered, factor in ((x, y), (y, x)):
        inner = b.producer(scattered, ops.ScatterAdd)
        if inner is not None and factor.type.size == 1 and b.used_once(scattered):
            indices, updates = inner.inputs
            if len(factor.shape) <= len(updates.shape):
                return b(inner.op, indices, b(ops.Mul(), updates, factor))
    return None


def _before_product(b: Rewriter, x: Value, y: Value) -> Value | None:
    """MatMul(p, q) * a with one number a: MatMul(p, q * a), where q is an operand smaller than the product.

    So the learning rate meets a batch's cotangents in place of the gradient of a dense layer, and the scale of an
    attention its queries in place of its scores, here and in the backward pass.
    """
    for product, factor in ((x, y), (y, x)):
        inner = b.producer(product, ops.MatMul)
        if inner is None or factor.type.size != 1 or not b.used_once(product) or product.dtype != FLOAT32:
            continue
        if b.array(factor) is not None and not is_ordinary(b.scalar(factor)):
            continue
        # By its place, as both operands may be the same value.
        place = min(range(2), key=lambda k: inner.inputs[k].type.size)
        smaller = inner.inputs[place]
        if smaller.type.size < product.type.size and len(factor.shape) <= len(smaller.shape):
            operands = list(inner.inputs)
            operands[place] = b(ops.Mul(), smaller, factor)
            with b.at(inner.origin):  # the product is still the gradient's
                return b(inner.op, *operands)
    return None


def is_ordinary(number: float | None) -> TypeGuard[float]:
    """Return whether a constant can multiply an operand and leave float32's range no sooner than the product."""
    return number is not None and SMALLEST <= abs(number) <= LARGEST


def _signs(b: Rewriter, x: Value, y: Value) -> Value | None:
    """Concat(-u, v) * a with a constant a: Concat(u, v) * a, whose numbers at u have the other sign.

    As rotary embeddings turn the halves of a head.
    """
    for product, factor in ((x, y), (y, x)):
        inner, array = b.producer(product, ops.Concat), b.array(factor)
        if inner is None or array is None or is_described(array) or not b.used_once(product):
            continue
        axis = inner.op.axis - len(product.shape) + array.ndim
        transposed = [b.producer(v, ops.Neg) for v in inner.inputs]
        if axis < 0 or array.shape[axis] != product.shape[inner.op.axis] or array.size >= product.type.size:
            continue
        if not any(transposed):
            continue
        sizes = [v.shape[inner.op.axis] for v in inner.inputs]
        signs = np.repeat([-1.0 if neg else 1.0 for neg in transposed], sizes).astype(array.dtype)
        signed = array * signs.reshape((-1,) + (1,) * (array.ndim - axis - 1))
        pieces = [neg.inputs[0] if neg else v for neg, v in zip(transposed, inner.inputs, strict=True)]
        return b(ops.Mul(), b(inner.op, *pieces), b.constant(signed, name=factor.name))
    return None


def _without_broadcast(b: Rewriter, value: Value, other: Value, output: Value) -> Value:
    """Return the operand before a BroadcastTo that elementwise broadcasting makes unnecessary."""
    spread = b.producer(value, ops.BroadcastTo)
    if spread is None:
        return value
    source = spread.inputs[0]
    rank = len(value.shape)
    source_shape = (1,) * (rank - len(source.shape)) + source.shape
    padded_other = (1,) * (rank - len(other.shape)) + other.shape
    if len(other.shape) > rank:
        return value
    kept = tuple(max(a, c) for a, c in zip(source_shape, padded_other, strict=True))
    return source if kept == output.shape else value


def _concatenation(b: Rewriter, x: Value, y: Value) -> Value | None:
    """Pad(a, zeros after) + Pad(b, zeros before), side by side along one axis: Pad(Concat(a, b)), or that alone."""
    first, second = b.producer(x, ops.Pad), b.producer(y, ops.Pad)
    if not first or not second or first.op.value or second.op.value or x.type != y.type:
        return None
    padded = [i for i, p in enumerate(first.op.paddings) if any(p)]
    if padded != [i for i, p in enumerate(second.op.paddings) if any(p)] or len(padded) != 1:
        return None
    (axis,) = padded
    for before, after in ((first, second), (second, first)):
        low, high = before.op.paddings[axis][0], after.op.paddings[axis][1]
        if low + before.inputs[0].shape[axis] == after.op.paddings[axis][0]:
            joined = b(ops.Concat(axis), *_pieces(b, before, axis), *_pieces(b, after, axis))
            around = tuple((low, high) if i == axis else (0, 0) for i in range(len(x.shape)))
            return b(ops.Pad(around), joined) if low or high else joined
    return None


def _concatenation_beside(b: Rewriter, x: Value, y: Value) -> Value | None:
    """(u + Pad(a)) + Pad(b), side by side: u + Pad(Concat(a, b)). So cotangents of a whole and of its parts add up."""
    for total, pad in ((x, y), (y, x)):
        inner = b.producer(total, ops.Add)
        if inner is None or b.producer(pad, ops.Pad) is None or not b.used_once(total):
            continue
        for other, part in (inner.inputs, inner.inputs[::-1]):
            if other.type == total.type and (joined := _concatenation(b, part, pad)):
                return b(ops.Add(), other, joined)
    return None


def _pieces(b: Rewriter, pad: Node, axis: int) -> tuple[Value, ...]:
    """Return what stands one after the other along an axis in what is padded."""
    inner = b.producer(pad.inputs[0], ops.Concat)
    return inner.inputs if inner and inner.op.axis == axis and b.used_once(pad.inputs[0]) else pad.inputs
