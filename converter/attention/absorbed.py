"""Attention of few queries: they meet the projections of keys and values before they meet the tokens.

A net that reads one token of its last layer, the first or the last one, still makes keys and values of all tokens
there: two products with as many rows as there are tokens, for one query of each head. These are linear:
q (x Wk)' = (q Wk') x', and p (x Wv) = (p x) Wv, with as many rows as there are queries.
(DeepSeek-AI 2024, section 2.1.2, calls it absorbing a projection: https://arxiv.org/abs/2405.04434.)
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from converter.ir import Graph, Node, Op, Shape, Value, known_result, ops
from converter.passes.rewrite import Rewriter, rewrite
from converter.targets import Target


def absorb_projections(graph: Graph, target: Target) -> Graph:
    """The graph in which few queries meet what projects keys and values, where the target's table says that this pays.

    Before: softmax(q (x Wk)') (x Wv).   After: (softmax((q Wk') x') x) Wv.

    What trains keeps its gradient: it is made of this graph, by products that are as much smaller.
    """

    def absorb(b: Rewriter, node: Node) -> Value | None:
        if not isinstance(node.op, ops.MatMul):
            return None
        for k in (1, 0):
            projected = _projected(b, node.inputs[k])
            meeting = None if projected is None else _meeting(node, k, projected)
            if projected is not None and meeting is not None and _pays(b, meeting, projected, target):
                return _met(b, node, k, meeting, projected)
        return None

    return rewrite(graph, absorb)


class _Projected(NamedTuple):
    """Keys or values: x w + bias, by heads.

    Attributes:
        node: the product of all tokens.
        bias: [heads, size], if there is one.
        batch, heads, tokens, size: of [batch, heads, tokens, size]; one head may have no axis.
        tokens_last: whether they are [batch, heads, size, tokens].
    """

    node: Node
    bias: Value | None
    batch: int
    heads: int
    tokens: int
    size: int
    tokens_last: bool

    @property
    def features(self) -> int:
        return self.node.inputs[0].shape[-1]


class _Meeting(NamedTuple):
    """How queries, or the weights of attention, meet them.

    Attributes:
        queries: how many of each head.
        of_size: whether the product sums over the size of a head, as scores do, or over tokens.
        swapped: whether the operand of queries has them last.
    """

    queries: int
    of_size: bool
    swapped: bool


def _projected(b: Rewriter, value: Value) -> _Projected | None:
    """What a value is, if it is read once and a product of all tokens with a matrix, by heads."""
    if len(value.shape) not in (3, 4) or not b.used_once(value):
        return None
    perm = tuple(range(len(value.shape)))
    turned = b.producer(value, ops.Transpose)
    if turned is not None:
        perm, value = turned.op.perm, turned.inputs[0]
    batch, tokens, *heads, size = value.shape
    tokens_last = perm[-1] == 1
    if perm not in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 1, 2), (0, 2, 1)):
        if perm != (0, 1, 2, 3) or tokens != 1:
            return None
        tokens, heads = heads[0], [1]
    count, bias = prod(heads) * size, None
    while b.used_once(value):
        flat, shifted, product = (b.producer(value, kind) for kind in (ops.Reshape, ops.Add, ops.MatMul))
        if flat is not None:
            value = flat.inputs[0]
        elif shifted is not None and bias is None:
            found = _of_features(shifted, count)
            if found is None:
                return None
            value, bias = found
        elif product is not None:
            w = product.inputs[1]
            plain = len(w.shape) == 2 and not product.op.adj_x and product.output.shape[-1] == count
            return _Projected(product, bias, batch, prod(heads), tokens, size, tokens_last) if plain else None
        else:
            return None
    return None


def _of_features(node: Node, count: int) -> tuple[Value, Value] | None:
    """The larger operand of a sum, and the other one, if this holds a number for each of so many features."""
    for value, bias in (node.inputs, node.inputs[::-1]):
        own = bias.shape[next((i for i, n in enumerate(bias.shape) if n > 1), len(bias.shape)) :]
        if value.shape == node.output.shape and bias.type.size == count and prod(value.shape[-len(own) :]) == count:
            return value, bias
    return None


def _meeting(node: Node, k: int, projected: _Projected) -> _Meeting | None:
    """How operand k of a product meets the other one, whose batch and heads are the same."""
    other, flipped = node.inputs[1 - k], (node.op.adj_x, node.op.adj_y)[1 - k]
    if other.shape[:-2] != node.inputs[k].shape[:-2]:
        return None
    swapped = flipped != (k == 0)
    over_last = node.op.adj_y if k == 1 else not node.op.adj_x
    return _Meeting(other.shape[-1 if swapped else -2], over_last != projected.tokens_last, swapped)


def _pays(b: Rewriter, meeting: _Meeting, p: _Projected, target: Target) -> bool:
    """Whether the forward pass gets cheaper; a backward pass does in proportion."""
    w, n = p.node.inputs[1], meeting.queries
    constant = b.array(w) is not None
    m, k, columns = (n, p.size, p.tokens) if meeting.of_size else (n, p.tokens, p.size)
    before = target.product(p.batch * p.tokens, p.features, p.heads * p.size, constant)
    before += p.batch * p.heads * target.product(m, k, columns)
    (k, columns), of_heads = ((p.features, p.tokens), (p.size, p.features))
    if not meeting.of_size:
        (k, columns), of_heads = (columns, k), of_heads[::-1]
    after = p.batch * target.product(p.heads * n, k, columns) + p.heads * target.product(p.batch * n, *of_heads)
    moved = 0.0 if constant or p.node.op.adj_y else target.moved("shuffled", 2 * w.type.nbytes)
    return after + moved < before


def _met(b: Rewriter, node: Node, k: int, meeting: _Meeting, p: _Projected) -> Value:
    """The result of `node`, by the other order of products."""
    a, n = node.inputs[1 - k], meeting.queries
    a = b.transpose(a, (*range(len(a.shape) - 2), len(a.shape) - 1, len(a.shape) - 2)) if meeting.swapped else a
    a = b.reshape(a, (p.batch, p.heads, n, a.shape[-1]))
    x = b.reshape(p.node.inputs[0], (p.batch, p.tokens, p.features))
    bias = None if p.bias is None else _shaped(b, p.bias, (p.heads, 1, p.size))
    if meeting.of_size:
        by_heads = _exchanged(b, a)
        met = _exchanged(b, _by_head(b, p, by_heads, summed=True), p.batch)
        made = b(ops.MatMul(adj_y=True), b.reshape(met, (p.batch, p.heads * n, p.features)), x)
        made = b.reshape(made, (p.batch, p.heads, n, p.tokens))
        if bias is not None:
            of_bias = b(ops.MatMul(adj_y=True), by_heads, bias)
            made = b(ops.Add(), made, _exchanged(b, of_bias, p.batch))
    else:
        met = b(ops.MatMul(), b.reshape(a, (p.batch, p.heads * n, p.tokens)), x)
        by_heads = _exchanged(b, b.reshape(met, (p.batch, p.heads, n, p.features)))
        made = _exchanged(b, _by_head(b, p, by_heads, summed=False), p.batch)
        if bias is not None:  # weights that dropout has met do not sum up to 1
            made = b(ops.Add(), made, b(ops.Mul(), b(ops.Sum((3,), keepdims=True), a), bias))
    made = made if k == 1 else b.transpose(made, (0, 1, 3, 2))
    return b.reshape(made, node.output.shape)


def _by_head(b: Rewriter, p: _Projected, rows: Value, summed: bool) -> Value:
    """[heads, n, size] to [heads, n, features] by each head's part of the matrix; or back, which sums over features."""
    w = p.node.inputs[1]
    outputs_first = p.node.op.adj_y or b.array(w) is not None
    with b.at(p.node.origin):
        if outputs_first:  # as the runtime's dense layers hold a constant, which other signatures have, too
            w = w if p.node.op.adj_y else _known(b, ops.Transpose((1, 0)), w, w.shape[::-1])
            w = _shaped(b, w, (p.heads, p.size, p.features))
        else:
            w = b.transpose(b.reshape(w, (p.features, p.heads, p.size)), (1, 0, 2))
        return b(ops.MatMul(adj_y=outputs_first != summed), rows, w)


def _exchanged(b: Rewriter, value: Value, batch: int | None = None) -> Value:
    """[batch, heads, n, m] to [heads, batch * n, m]; or back, with `batch`."""
    if batch is None:
        batch, heads, n, m = value.shape
        return b.reshape(b.transpose(value, (1, 0, 2, 3)), (heads, batch * n, m))
    heads, rows, m = value.shape
    return b.transpose(b.reshape(value, (heads, batch, rows // batch, m)), (1, 0, 2, 3))


def _shaped(b: Rewriter, value: Value, shape: Shape) -> Value:
    return value if value.shape == shape else _known(b, ops.Reshape(shape), value, shape)


def _known(b: Rewriter, op: Op, value: Value, shape: Shape) -> Value:
    """What an op makes of a value, of this shape: of a constant another constant."""
    array = b.array(value)
    made = None if array is None else known_result(op, value.type.with_shape(shape), array)
    return b(op, value) if made is None else b.constant(made, dtype=value.dtype, name=value.name)
