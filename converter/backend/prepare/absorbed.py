"""Reassociated attention of few queries: multiplied by the projections of keys and values before the tokens.

A net that reads one token of its last layer, the first or the last one, still makes keys and values of all tokens
there: two products with as many rows as there are tokens, for one query of each head. These are linear:
q (x Wk)' = (q Wk') x', and p (x Wv) = (p x) Wv, with as many rows as there are queries.
(DeepSeek-AI 2024, section 2.1.2, calls it absorbing a projection: https://arxiv.org/abs/2405.04434.)
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from converter.backend.targets import Target
from converter.ir import FLOAT32, Graph, Node, Shape, Value, known_result, ops
from converter.ir.rewrite import Rewriter, rewrite


def absorb_projections(graph: Graph, target: Target) -> Graph:
    """Return the graph in which few queries meet what projects keys and values, where that pays on the target.

    Before: softmax(q (x Wk)') (x Wv).   After: (softmax((q Wk') x') x) Wv.

    What trains keeps its gradient: it is made of this graph, by products that are as much smaller.
    """

    def absorb(b: Rewriter, node: Node) -> Value | None:
        if not isinstance(node.op, ops.MatMul):
            return None
        for side in (1, 0):
            projection = _projection_of(b, node.inputs[side])
            if projection is None or node.inputs[0].shape[:-2] != node.inputs[1].shape[:-2]:
                continue
            contracted = _meeting_of(node, side, projection)
            if _pays(b, contracted, projection, target):
                return (
                    _scores(b, contracted, projection) if contracted.makes_scores else _mixed(b, contracted, projection)
                )
        return None

    return rewrite(graph, absorb)


class _Projection(NamedTuple):
    """Keys or values: x w + bias, by heads.

    Attributes:
        node: the product of all tokens.
        bias: [heads, size] in any shape, if there is one.
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
    """The product in which queries meet keys, or weights of attention values.

    Attributes:
        node: the product.
        side: which of its operands the keys or values are.
        queries: how many of each head.
        makes_scores: whether it sums over the size of a head; otherwise over tokens.
        queries_last: whether the other operand has them last.
    """

    node: Node
    side: int
    queries: int
    makes_scores: bool
    queries_last: bool


#: How [batch, tokens, heads, size] or, of one head, [batch, tokens, size] are transposed, and whether tokens are last.
_TURNED = {(0, 2, 1, 3): False, (0, 2, 3, 1): True, (0, 1, 2): False, (0, 2, 1): True}


def _projection_of(b: Rewriter, value: Value) -> _Projection | None:
    """Return what a value is, if it is read once and a product of all tokens with a matrix, by heads."""
    if len(value.shape) not in (3, 4) or not b.used_once(value):
        return None
    transposed = b.producer(value, ops.Transpose)
    perm = tuple(range(len(value.shape))) if transposed is None else transposed.op.perm
    if perm in _TURNED:
        value = value if transposed is None else transposed.inputs[0]
        batch, tokens, *by_heads, size = value.shape
        heads = prod(by_heads)
    elif transposed is None and value.shape[1] == 1:  # [batch, 1, tokens, size]: no transpose is needed for one head
        batch, heads, tokens, size = value.shape
    else:
        return None
    bias = None
    while b.used_once(value):
        flat, shifted, product = (b.producer(value, kind) for kind in (ops.Reshape, ops.Add, ops.MatMul))
        if flat is not None:
            value = flat.inputs[0]
        elif shifted is not None and bias is None:
            found = _split_bias(shifted, heads * size)
            if found is None:
                return None
            value, bias = found
        elif product is not None:
            w = product.inputs[1]
            plain = len(w.shape) == 2 and not product.op.adj_x and product.output.shape[-1] == heads * size
            return _Projection(product, bias, batch, heads, tokens, size, _TURNED.get(perm, False)) if plain else None
        else:
            return None
    return None


def _split_bias(node: Node, count: int) -> tuple[Value, Value] | None:
    """Return the larger operand of a sum, and the other one, if this holds a number for each of so many features."""
    for value, bias in (node.inputs, node.inputs[::-1]):
        axes = len(bias.shape)
        while axes and bias.shape[len(bias.shape) - axes] == 1:
            axes -= 1
        if axes and value.shape == node.output.shape and bias.type.size == count == prod(value.shape[-axes:]):
            return value, bias
    return None


def _meeting_of(node: Node, side: int, p: _Projection) -> _Meeting:
    """Return how a product uses what was projected, its operand on this side."""
    queries_last = node.op.adj_x if side == 1 else not node.op.adj_y
    over_last = node.op.adj_y if side == 1 else not node.op.adj_x
    queries = node.inputs[1 - side].shape[-1 if queries_last else -2]
    return _Meeting(node, side, queries, over_last != p.tokens_last, queries_last)


def _pays(b: Rewriter, contracted: _Meeting, p: _Projection, target: Target) -> bool:
    """Return whether the forward pass gets cheaper, by count and by the table; a backward pass does in proportion."""
    w, n = p.node.inputs[1], contracted.queries
    constant = b.array(w) is not None
    # Products are times, rows, depth, columns.
    project = (1, p.batch * p.tokens, p.features, p.heads * p.size)
    if contracted.makes_scores:
        attend = (p.batch * p.heads, n, p.size, p.tokens)
        of_heads, of_tokens = (p.heads, p.batch * n, p.size, p.features), (p.batch, p.heads * n, p.features, p.tokens)
    else:
        attend = (p.batch * p.heads, n, p.tokens, p.size)
        of_heads, of_tokens = (p.heads, p.batch * n, p.features, p.size), (p.batch, p.heads * n, p.tokens, p.features)
    # Small products take longer than a table says: it is not enough that they cost less there.
    if prod(of_heads) + prod(of_tokens) >= prod(project) + prod(attend):
        return False
    before = _cost(target, *project, constant) + _cost(target, *attend)
    after = _cost(target, *of_heads) + _cost(target, *of_tokens)
    # Read and written: a row of a head goes to the other heads' and back, and so does a matrix that trains, unless it
    # lies by heads.
    moved = FLOAT32.itemsize * p.batch * p.heads * n * (p.features + p.size)
    moved += 0 if constant or p.node.op.adj_y else w.type.nbytes
    return after + target.moved("shuffled", 2 * moved) < before


def _cost(target: Target, times: int, m: int, k: int, n: int, constant: bool = False) -> float:
    return times * (target.product(m, k, n, constant) - target.per_operator) + target.per_operator


def _scores(b: Rewriter, contracted: _Meeting, p: _Projection) -> Value:
    """(q Wk') x' + q bias'."""
    q = _joined(b, _other_operand(b, contracted, p))
    with b.at(p.node.origin):
        w, features_first = _by_head(b, p)
        absorbed = _apart(b, b(ops.MatMul(adj_y=features_first), q, w), p.batch)
    rows = b.reshape(absorbed, (p.batch, p.heads * contracted.queries, p.features))
    scores = b(ops.MatMul(adj_y=True), rows, _tokens(b, p))
    scores = b.reshape(scores, (p.batch, p.heads, contracted.queries, p.tokens))
    if p.bias is not None:
        bias = _shaped(b, p.bias, (p.heads, 1, p.size))
        scores = b(ops.Add(), scores, _apart(b, b(ops.MatMul(adj_y=True), q, bias), p.batch))
    return _as_before(b, contracted, scores)


def _mixed(b: Rewriter, contracted: _Meeting, p: _Projection) -> Value:
    """(p x) Wv + sum(p) bias: weights that dropout has met do not sum up to 1."""
    weights = _other_operand(b, contracted, p)
    mixed = b(ops.MatMul(), b.reshape(weights, (p.batch, p.heads * contracted.queries, p.tokens)), _tokens(b, p))
    rows = _joined(b, b.reshape(mixed, (p.batch, p.heads, contracted.queries, p.features)))
    with b.at(p.node.origin):
        w, features_first = _by_head(b, p)
        mixed = _apart(b, b(ops.MatMul(adj_y=not features_first), rows, w), p.batch)
    if p.bias is not None:
        bias = _shaped(b, p.bias, (p.heads, 1, p.size))
        mixed = b(ops.Add(), mixed, b(ops.Mul(), b(ops.Sum((3,), keepdims=True), weights), bias))
    return _as_before(b, contracted, mixed)


def _other_operand(b: Rewriter, contracted: _Meeting, p: _Projection) -> Value:
    """Return the other operand: [batch, heads, queries, size or tokens]."""
    value = contracted.node.inputs[1 - contracted.side]
    value = _swapped(b, value) if contracted.queries_last else value
    return b.reshape(value, (p.batch, p.heads, contracted.queries, value.shape[-1]))


def _as_before(b: Rewriter, contracted: _Meeting, value: Value) -> Value:
    """[batch, heads, queries, n] as the product that is replaced gave it."""
    value = _swapped(b, value) if contracted.side == 0 else value
    return b.reshape(value, contracted.node.output.shape)


def _swapped(b: Rewriter, value: Value) -> Value:
    """Return the last two axes exchanged."""
    rank = len(value.shape)
    return b.transpose(value, (*range(rank - 2), rank - 1, rank - 2))


def _tokens(b: Rewriter, p: _Projection) -> Value:
    return b.reshape(p.node.inputs[0], (p.batch, p.tokens, p.features))


def _by_head(b: Rewriter, p: _Projection) -> tuple[Value, bool]:
    """Return the matrix as [heads, size, features], or [heads, features, size] and True."""
    w = p.node.inputs[1]
    if b.array(w) is None and not p.node.op.adj_y:
        return b.transpose(b.reshape(w, (p.features, p.heads, p.size)), (1, 0, 2)), True
    # As the runtime's dense layers hold a constant: other signatures have it, too.
    w = w if p.node.op.adj_y else _folded(b, ops.Transpose((1, 0)), w)
    return _shaped(b, w, (p.heads, p.size, p.features)), False


def _joined(b: Rewriter, value: Value) -> Value:
    """[batch, heads, n, m] to [heads, batch * n, m]."""
    batch, heads, n, m = value.shape
    return b.reshape(b.transpose(value, (1, 0, 2, 3)), (heads, batch * n, m))


def _apart(b: Rewriter, value: Value, batch: int) -> Value:
    """[heads, batch * n, m] to [batch, heads, n, m]."""
    heads, rows, m = value.shape
    return b.transpose(b.reshape(value, (heads, batch, rows // batch, m)), (1, 0, 2, 3))


def _shaped(b: Rewriter, value: Value, shape: Shape) -> Value:
    return value if value.shape == shape else _folded(b, ops.Reshape(shape), value)


def _folded(b: Rewriter, op: ops.Reshape | ops.Transpose, value: Value) -> Value:
    """Return what an op makes of a value: of a constant another one, under its name."""
    array = b.array(value)
    made = None if array is None else known_result(op, op.infer(value.type), array)
    return b(op, value) if made is None else b.constant(made, name=value.name)
