"""Recognises layer normalisation and RMS normalisation over the last axis, in the many ways they are written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from converter.ir import Node, Value, ops
from converter.ir.rewrite import Rewriter
from converter.passes.idioms.softmax import as_written, core, is_row_statistic, over_rows

#: How many nodes deep a product or a sum is taken apart.
DEPTH = 5


@dataclass
class Product:
    """number * product(factors) / product(roots' square roots)."""

    number: float = 1.0
    factors: list[Value] = field(default_factory=list)
    roots: list[Value] = field(default_factory=list)  # u stands for 1 / sqrt(u)


def product(b: Rewriter, value: Value, depth: int = DEPTH) -> Product:
    """Takes a chain of products, quotients and inverse square roots apart."""
    result = Product()

    def visit(v: Value, depth: int) -> None:
        number = b.scalar(v) if v.shape == () else None
        if number is not None:
            result.number *= number
        elif (node := b.producer(v, ops.Rsqrt)) is not None:
            result.roots.append(node.inputs[0])
        elif depth and (node := b.producer(v, ops.Mul)) is not None:
            for part in node.inputs:
                visit(part, depth - 1)
        elif depth and (node := b.producer(v, ops.Neg)) is not None:
            result.number = -result.number
            visit(node.inputs[0], depth - 1)
        elif depth and (node := b.producer(v, ops.Div)) is not None and _root(b, node.inputs[1]) is not None:
            result.roots.append(_root(b, node.inputs[1]))  # type: ignore[arg-type]
            visit(node.inputs[0], depth - 1)
        else:
            result.factors.append(v)

    visit(value, depth)
    return result


def _root(b: Rewriter, value: Value) -> Value | None:
    node = b.producer(core(b, value), ops.Sqrt)
    return node.inputs[0] if node else None


def _with_epsilon(b: Rewriter, value: Value) -> tuple[Value, float] | None:
    """(v, epsilon) for value = v + epsilon."""
    node = b.producer(core(b, value), ops.Add)
    if node is None:
        return None
    for v, other in (node.inputs, node.inputs[::-1]):
        epsilon = b.scalar(other)
        if epsilon is not None and epsilon > 0:
            return core(b, v), as_written(epsilon)
    return None


def _is_square(b: Rewriter, value: Value | None, x: Value) -> bool:
    node = b.producer(value, ops.Mul) if value is not None else None
    return node is not None and node.inputs[0] is x and node.inputs[1] is x


def _is_mean(b: Rewriter, value: Value, x: Value) -> bool:
    """Return the means of the rows of x, in a shape that meets x row by row (x - x.mean(-1) of a square x does not)."""
    return is_row_statistic(value, x) and over_rows(b, value, ops.Mean) is x


def _is_variance(b: Rewriter, value: Value, x: Value) -> bool:
    """mean((x - mean)^2) or mean(x^2) - mean^2 in any shape, cut off at 0 or not."""
    value = core(b, value)
    cut = b.producer(value, ops.Relu)  # max(0, variance) has been raised to it
    if cut:
        value = core(b, cut.inputs[0])
    squares = over_rows(b, value, ops.Mean)
    if squares is not None:
        difference = b.producer(squares, ops.SquaredDifference)
        if difference:
            return difference.inputs[0] is x and _is_mean(b, difference.inputs[1], x)
        made = b.producer(squares, ops.Mul)
        return made is not None and made.inputs[0] is made.inputs[1] and _is_centered(b, made.inputs[0], x)
    separate = b.producer(value, ops.Sub)
    if separate is None or any(v.type.size != value.type.size for v in separate.inputs):
        return False
    squared = b.producer(core(b, separate.inputs[1]), ops.Mul)
    return (
        _is_square(b, over_rows(b, separate.inputs[0], ops.Mean), x)
        and squared is not None
        and squared.inputs[0] is squared.inputs[1]
        and over_rows(b, squared.inputs[0], ops.Mean) is x
    )


def _is_centered(b: Rewriter, value: Value, x: Value) -> bool:
    node = b.producer(value, ops.Sub)
    return node is not None and node.inputs[0] is x and _is_mean(b, node.inputs[1], x)


def _scaled(b: Rewriter, y: Value, number: float, factors: list[Value], roots: list[Value]) -> Value:
    """y with what was left of the product around it."""
    for v in factors:
        y = b(ops.Mul(), y, v)
    for u in roots:
        y = b(ops.Mul(), y, b(ops.Rsqrt(), u))
    return y if number == 1 else b(ops.Mul(), y, number)


def layer_norm(b: Rewriter, node: Node) -> Value | None:
    """(x - mean) / sqrt(variance + epsilon), times and plus anything."""
    if isinstance(node.op, ops.Mul | ops.Div):
        return _centered_norm(b, node)
    if isinstance(node.op, ops.Add | ops.Sub):
        return _expanded_norm(b, node)
    return None


def _centered_norm(b: Rewriter, node: Node) -> Value | None:
    parts = _product_of(b, node)
    for u in parts.roots:
        found = _with_epsilon(b, u)
        if found is None:
            continue
        for v in parts.factors:
            separate = b.producer(v, ops.Sub)
            if separate is None or v.shape != node.output.shape:
                continue
            x = separate.inputs[0]
            if is_row_statistic(u, x) and _is_centered(b, v, x) and _is_variance(b, found[0], x):
                return _rebuilt(b, ops.LayerNorm(found[1]), x, parts, v, u)
    return None


def rms_norm(b: Rewriter, node: Node) -> Value | None:
    """x / sqrt(mean(x^2) + epsilon), times anything."""
    if not isinstance(node.op, ops.Mul | ops.Div):
        return None
    parts = _product_of(b, node)
    for u in parts.roots:
        found = _with_epsilon(b, u)
        squares = over_rows(b, found[0], ops.Mean) if found else None
        for x in parts.factors:
            if found and x.shape == node.output.shape and is_row_statistic(u, x) and _is_square(b, squares, x):
                return _rebuilt(b, ops.RMSNorm(found[1]), x, parts, x, u)
    return None


def _product_of(b: Rewriter, node: Node) -> Product:
    """Return the product that a node, which is not yet in the graph, makes."""
    if isinstance(node.op, ops.Div):
        root = _root(b, node.inputs[1])
        if root is None:
            return Product()
        parts = product(b, node.inputs[0])
        parts.roots.append(root)
        return parts
    left, right = (product(b, v) for v in node.inputs)
    return Product(left.number * right.number, left.factors + right.factors, left.roots + right.roots)


def _rebuilt(b: Rewriter, op: ops.LayerNorm | ops.RMSNorm, x: Value, parts: Product, v: Value, u: Value) -> Value:
    factors, roots = list(parts.factors), list(parts.roots)
    factors.remove(v)
    roots.remove(u)
    return _scaled(b, b(op, x), parts.number, factors, roots)


def _terms(b: Rewriter, node: Node, depth: int = 3) -> list[tuple[int, Value]]:
    """Signed terms of a tree of sums."""
    sign = -1 if isinstance(node.op, ops.Sub) else 1
    result: list[tuple[int, Value]] = []
    for factor, v in zip((1, sign), node.inputs, strict=True):
        inner = (b.producer(v, ops.Add) or b.producer(v, ops.Sub)) if depth else None
        if inner:
            result += [(factor * s, t) for s, t in _terms(b, inner, depth - 1)]
        else:
            result.append((factor, v))
    return result


def _expanded_norm(b: Rewriter, node: Node) -> Value | None:
    """x * r - mean * r + rest with r = scale / sqrt(variance + epsilon), as Keras writes it."""
    terms = _terms(b, node)
    if not 2 <= len(terms) <= 4:
        return None
    parts = [(sign, v, product(b, v)) for sign, v in terms]
    for sign, v, whole in parts:
        for other_sign, w, subtracted in parts:
            if w is v or len(whole.roots) != len(subtracted.roots):
                continue
            if sign * whole.number != -other_sign * subtracted.number:
                continue
            made = _joined(b, node, whole, subtracted, sign)
            if made is not None:
                for s, t in terms:
                    if t is not v and t is not w:
                        made = b(ops.Add() if s > 0 else ops.Sub(), made, t)
                return made
    return None


def _joined(b: Rewriter, node: Node, whole: Product, subtracted: Product, sign: int) -> Value | None:
    """Return the product `whole`, of x, minus the same product of x's mean, as one normalisation."""
    if Counter(whole.roots) != Counter(subtracted.roots):
        return None
    for x in whole.factors:
        if x.shape != node.output.shape:
            continue
        for mean in subtracted.factors:
            if not _is_mean(b, mean, x):
                continue
            left, right = Counter(whole.factors), Counter(subtracted.factors)
            if left - Counter([x]) != right - Counter([mean]):
                continue
            for u in whole.roots:
                found = _with_epsilon(b, u)
                if found and is_row_statistic(u, x) and _is_variance(b, found[0], x):
                    signed = Product(sign * whole.number, whole.factors, whole.roots)
                    return _rebuilt(b, ops.LayerNorm(found[1]), x, signed, x, u)
    return None
