"""Transposes around matrix products: those that keep the last axis only copy rows."""

from __future__ import annotations

from converter.ir import Node, Op, Value, ops
from converter.ir.rewrite import Rewriter


def read_by_rows(b: Rewriter, node: Node) -> Value | None:
    """MatMul(x, Transpose(w)) where the last axis of w moves to the one before: the product reads it the other way.

    Before: S = MatMul(q, Transpose(k, (0, 2, 3, 1))).   After: S = MatMul(q, Transpose(k, (0, 2, 1, 3)), adj_y).

    It reads both ways equally well, and what is left of the transpose copies whole rows, or nothing.
    """
    x, w = node.inputs
    perm = _kept_rows(b, w)
    if perm is None:
        return None
    transposed = b.producer(w, ops.Transpose)
    assert transposed is not None
    return b(ops.MatMul(node.op.adj_x, not node.op.adj_y), x, b.transpose(transposed.inputs[0], perm))


def made_by_rows(b: Rewriter, node: Node) -> Value | None:
    """Transpose(MatMul(x, w')) where the rows of the product end up last: (x w')' = w x'.

    Before: Transpose(MatMul(v', p, adj_y), (0, 3, 1, 2)).   After: Transpose(MatMul(p, v), (0, 2, 1, 3)).
    """
    product, perm = node.inputs[0], node.op.perm
    inner = b.producer(product, ops.MatMul)
    last = len(perm) - 1
    if inner is None or not inner.op.adj_y or not b.used_once(product) or last < 2 or perm[last] != last - 1:
        return None
    x, w = inner.inputs
    if x.shape[:-2] != w.shape[:-2]:
        return None
    with b.at(inner.origin):
        exchanged = Node(ops.MatMul(False, not inner.op.adj_x), (w, x), (product,), inner.origin)
        made = read_by_rows(b, exchanged)
        made = b(exchanged.op, w, x) if made is None else made
    return b.transpose(made, tuple({last: last - 1, last - 1: last}.get(axis, axis) for axis in perm))


def summed_over_features(b: Rewriter, node: Node) -> Value | None:
    """Return the derivative of a softmax p whose cotangent is MatMul(d, v'), where o = MatMul(p, v) is there.

    Before: w = p * MatMul(d, v'); w - p * Sum(w, -1).   After: p * (MatMul(d, v') - Sum(d * o, -1)).

    Both sums are d' p v row by row, so that an attention sums over the features of a head in place of its keys, as
    FlashAttention does (Dao et al., arXiv 2205.14135), and passes over the scores twice in place of four times.
    """
    weighted, part = (b.producer(value, ops.Mul) for value in node.inputs)
    if weighted is None or part is None:
        return None
    for spread, p in (weighted.inputs, weighted.inputs[::-1]):
        inner = b.producer(spread, ops.MatMul)
        total = next((b.producer(value, ops.Sum) for value in part.inputs if value is not p), None)
        if inner is None or total is None or p not in part.inputs or total.inputs != (weighted.output,):
            continue
        last = len(p.shape) - 1
        if inner.op.adj_x or spread.shape != p.shape or total.op not in (ops.Sum((-1,), True), ops.Sum((last,), True)):
            continue
        d, v = inner.inputs
        back = ops.MatMul(False, not inner.op.adj_y)
        made = (n.output for n in b.graph.nodes if n.op == back and n.inputs == (p, v) and n.output.shape == d.shape)
        o = next(made, None)
        if o is not None and d.type.size < p.type.size:
            return b(ops.Mul(), p, b(ops.Sub(), spread, _sum_of_product(b, total.op, d, o)))
    return None


def _sum_of_product(b: Rewriter, total: ops.Sum, d: Value, o: Value) -> Value:
    """Sum(d * o) along the last axis; of both before and after the same moves, where o is kept for other readers."""
    transposed = b.producer(d, ops.Transpose)
    if transposed is not None and transposed.op.perm[-1] == len(transposed.op.perm) - 1:
        back = ops.Transpose(tuple(sorted(range(len(d.shape)), key=transposed.op.perm.__getitem__)))
        after = _made_of(b, o, back)
        if after is not None:
            return b.transpose(_sum_of_product(b, total, transposed.inputs[0], after), transposed.op.perm)
    flat = b.producer(d, ops.Reshape)
    if flat is not None and (after := _made_of(b, o, ops.Reshape(flat.inputs[0].shape))) is not None:
        return b(total, b.reshape(b(ops.Mul(), flat.inputs[0], after), d.shape))
    return b(total, b(ops.Mul(), d, o))


def _made_of(b: Rewriter, value: Value, op: Op) -> Value | None:
    """Return what an op made of a value before."""
    return next((node.output for node in b.graph.nodes if node.op == op and node.inputs == (value,)), None)


def _kept_rows(b: Rewriter, value: Value) -> tuple[int, ...] | None:
    """Return the transpose of a value, its last two axes exchanged, if then the last axis stays the last one."""
    transposed = b.producer(value, ops.Transpose)
    if transposed is None or not b.used_once(value) or transposed.op.perm[-2] != len(transposed.op.perm) - 1:
        return None
    *front, first, second = transposed.op.perm
    return (*front, second, first)
