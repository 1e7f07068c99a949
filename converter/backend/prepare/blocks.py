"""Blocked attention: blocks of queries, each with the keys that its mask lets it see.

A causal mask hides half of all pairs, a window of some tokens most of them, and a plain program computes all: products,
the softmax, and both again in the backward pass, which keeps the weights of all pairs for it. Of a block of queries the
keys from the first to the last that one of them sees are enough: the others have the weight 0.
(Dao et al. 2022, FlashAttention: https://arxiv.org/abs/2205.14135, leaves out blocks of a mask in the same way.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from converter.backend.prepare.visible import Visible
from converter.backend.targets import Target
from converter.ir import Builder, Graph, Node, Shape, Value, is_described, ops
from converter.ir.ops.elementwise import Binary, Unary
from converter.ir.ops.nn import OverLastAxis
from converter.passes import eliminate_dead_code

#: Into how many blocks queries may be cut: more save little, and each is operators of its own.
_BLOCKS = (2, 4, 8)
#: How often a softmax goes over its operand.
_PASSES = 3

#: What is taken of a value: from where to where on some of its axes.
Cut = Mapping[int, tuple[int, int]]


def attend_in_blocks(graph: Graph, target: Target) -> Graph:
    """Return the graph with masked attention in blocks of queries, where the target's table says that this saves time.

    Before: y = softmax(q k' + mask) v.   After: y = concat(softmax(q[:n] k[:n]' + mask[:n, :n]) v[:n], ...).

    Weights that a mask makes 0 are left out of sums: nothing else changes.
    """
    visible = Visible(graph)
    if not any(visible.zero(value) is not None for node in graph.nodes for value in node.inputs):
        return graph
    return _Blocks(graph, visible, target).graph


class _Mixing(NamedTuple):
    """A product with weights of attention.

    Attributes:
        weights: which of the operands they are.
        queries: their axis of queries.
        keys: their axis of keys.
        result: the result's axis of queries.
        seen: [queries, keys], what may be more than 0.
        alike: how many queries that follow each other see the same.
    """

    weights: int
    queries: int
    keys: int
    result: int
    seen: np.ndarray
    alike: int


class _Blocks:
    """The graph again, node by node."""

    def __init__(self, before: Graph, visible: Visible, target: Target) -> None:
        self._visible, self._target = visible, target
        self.made_by = before.producers()
        self.readers = Counter(value for node in before.nodes for value in node.inputs)
        self.readers.update(before.results())
        #: What stands for a part of a value.
        self.cuts: dict[tuple[Value, tuple], Value] = {}
        self.graph = before.copy()
        self.graph.nodes = []
        for node in before.nodes:
            mixing = self._mixing(node)
            best = None if mixing is None else self._best(node, mixing)
            if best is None:
                self.graph.nodes.append(node)
            else:
                self.graph.nodes += best.nodes
                self.cuts = best.cuts
        self.graph = eliminate_dead_code(self.graph)

    def hides(self, value: Value, cut: Cut) -> bool:
        """Return whether a value is 0 in all that a part of its last axis leaves out."""
        zero = self._visible.zero(value)
        if zero is None:
            return False
        last = len(value.shape) - 1
        zero = np.broadcast_to(zero, [value.shape[axis] if axis in cut else n for axis, n in enumerate(zero.shape)])
        of_rows = tuple(slice(*cut.get(axis, (0, None))) for axis in range(last))
        return bool(np.delete(zero[of_rows], slice(*cut[last]), axis=last).all())

    def _mixing(self, node: Node) -> _Mixing | None:
        if not isinstance(node.op, ops.MatMul):
            return None
        for k, (value, swapped) in enumerate(zip(node.inputs, (node.op.adj_x, not node.op.adj_y), strict=True)):
            zero = self._visible.zero(value)
            if zero is not None and len(value.shape) == len(node.output.shape):
                rank = len(value.shape)
                queries, keys = (rank - 1, rank - 2) if swapped else (rank - 2, rank - 1)
                hidden = np.asarray(zero.all(axis=tuple(range(rank - 2))))
                seen = np.broadcast_to(~(hidden.T if swapped else hidden), (value.shape[queries], value.shape[keys]))
                return _Mixing(k, queries, keys, rank - 2 + k, seen, _alike(seen))
        return None

    def _best(self, node: Node, mixing: _Mixing) -> _Attempt | None:
        """Return the product in the number of blocks that saves most; None where none saves anything."""
        runs = len(mixing.seen) // mixing.alike
        attempts = [_Attempt(self, node, mixing, count) for count in _BLOCKS if count <= runs]
        saved = [self._cost(a.replaced) - self._cost(a.nodes) for a in attempts]
        best = max(range(len(attempts)), key=saved.__getitem__, default=None)
        return attempts[best] if best is not None and saved[best] > 0 else None

    def _cost(self, nodes: Iterable[Node]) -> float:
        """Return what nodes cost in a forward pass; a backward pass costs in proportion."""
        return sum(map(self._cost_of, nodes))

    def _cost_of(self, node: Node) -> float:
        types = [v.type for v in (*node.inputs, *node.outputs)]
        moved = self._target.moved("delegated", sum(t.nbytes for t in types))
        match node.op:
            case ops.Reshape():
                return 0.0
            case ops.MatMul(adj_x=adj_x):
                *_, m, n = types[-1].shape
                k = types[0].shape[-2 if adj_x else -1]
                packed = prod(types[1].shape[:-2])
                each = self._target.product(m, k, n, times=prod(types[-1].shape[:-2]) // packed)
                return packed * (each - self._target.per_operator) + self._target.per_operator
            case ops.Softmax():
                return _PASSES * moved
        return moved


class _Attempt:
    """A product with weights of attention in so many blocks of queries: its nodes, and those that it does without."""

    def __init__(self, blocks: _Blocks, node: Node, mixing: _Mixing, count: int) -> None:
        self._of = blocks
        self._b = Builder(Graph(constants=blocks.graph.constants))
        self.cuts = dict(blocks.cuts)
        self.replaced = {node}
        self._origin = node.origin
        self.nodes = self._b.graph.nodes
        # From the last block on: all keys, which a causal mask shows it, are then kept until the backward pass ends
        # with it, and the parts of them that other blocks take need not be.
        spans = _spans(len(mixing.seen), count, mixing.alike)
        pieces = [self._piece(node, mixing, rows) for rows in reversed(spans)][::-1]
        self.nodes.append(Node(ops.Concat(mixing.result), tuple(pieces), node.outputs, node.origin))

    def _piece(self, node: Node, mixing: _Mixing, rows: tuple[int, int]) -> Value:
        """Return the result of these queries."""
        contracted = np.flatnonzero(mixing.seen[slice(*rows)].any(axis=0))
        keys = (int(contracted[0]), int(contracted[-1]) + 1) if contracted.size else (0, 1)
        weights, values = node.inputs[mixing.weights], node.inputs[1 - mixing.weights]
        # The keys are the axis of the values that the product sums over, the last or the one before it.
        last = (node.op.adj_y, not node.op.adj_x)[mixing.weights]
        parts = [
            self._part(weights, {mixing.queries: rows, mixing.keys: keys}),
            self._part(values, {len(values.shape) - (1 if last else 2): keys}),
        ]
        with self._b.at(node.origin):
            return self._b(node.op, *(parts if mixing.weights == 0 else reversed(parts)))

    def _part(self, value: Value, cut: Cut) -> Value:
        """Return a part of a value, computed from parts of what it is made of, where that saves something."""
        if all(span == (0, value.shape[axis]) for axis, span in cut.items()):
            return value
        key = value, tuple(sorted(cut.items()))
        if key not in self.cuts:
            self.cuts[key] = self._computed(value, cut) or self._sliced(value, cut)
        return self.cuts[key]

    def _sliced(self, value: Value, cut: Cut) -> Value:
        spans = [cut.get(axis, (0, size)) for axis, size in enumerate(value.shape)]
        array = self._b.graph.constants.get(value)
        if array is not None and not is_described(array):
            return self._b.constant(array[tuple(slice(*span) for span in spans)], name=value.name)
        begin = tuple(start for start, _ in spans)
        with self._b.at(self._origin):
            return self._b(ops.Slice(begin, _shape(value.shape, cut)), value)

    def _computed(self, value: Value, cut: Cut) -> Value | None:
        """Return the part from parts of the operands; None where the value is better cut."""
        node = self._of.made_by.get(value)
        if node is None or len(cut) < 2 or self._of.readers[value] > 1:
            return None
        cuts = self._cuts_of_operands(node, cut)
        if cuts is None:
            return None
        self.replaced.add(node)
        op = node.op
        if isinstance(op, ops.Reshape | ops.BroadcastTo):
            op = replace(op, shape=_shape(value.shape, cut))
        parts = [self._part(x, c) for x, c in zip(node.inputs, cuts, strict=True)]
        with self._b.at(node.origin):
            return self._b(op, *parts)

    def _cuts_of_operands(self, node: Node, cut: Cut) -> list[Cut] | None:
        """Return what of its operands a node needs for a part of its result; None where that is not known."""
        x, rank = node.inputs[0], len(node.output.shape)
        match node.op:
            case Unary() | Binary() | ops.Select() | ops.BroadcastTo():
                return [_before_broadcast(v.shape, rank, cut) for v in node.inputs]
            case OverLastAxis() if rank - 1 not in cut and len(node.inputs) == 1 and x.shape == node.output.shape:
                return [cut]
            case ops.Softmax() if rank - 1 in cut and self._of.hides(node.output, cut):
                return [cut]
            case ops.Transpose(perm=perm):
                return [{perm[axis]: span for axis, span in cut.items()}]
            case ops.Reshape():
                found = [_before_reshape(x.shape, node.output.shape, axis, span) for axis, span in cut.items()]
                kept = dict(one for one in found if one is not None)
                return [kept] if len(kept) == len(cut) else None
            case ops.MatMul(adj_x=adj_x, adj_y=adj_y):
                return [
                    _before_product(node.inputs[0].shape, rank, cut, rank - 2, adj_x),
                    _before_product(node.inputs[1].shape, rank, cut, rank - 1, adj_y),
                ]
        return None


def _spans(size: int, count: int, alike: int = 1) -> list[tuple[int, int]]:
    """Return an axis in so many parts, of as equal sizes as can be, each of whole runs of so many places."""
    ends = [alike * (size // alike * k // count) for k in range(count + 1)]
    return list(pairwise(ends))


def _alike(seen: np.ndarray) -> int:
    """Return how many rows that follow each other see the same: heads of a token that are rows of one product."""
    (differ,) = (seen[1:] != seen[:-1]).any(axis=1).nonzero()
    return int(np.gcd.reduce([*(differ + 1), len(seen)])) if differ.size else 1


def _shape(shape: Shape, cut: Cut) -> Shape:
    return tuple(cut[axis][1] - cut[axis][0] if axis in cut else size for axis, size in enumerate(shape))


def _before_reshape(
    before: Shape, after: Shape, axis: int, span: tuple[int, int]
) -> tuple[int, tuple[int, int]] | None:
    """Return which part of which axis a part of an axis was before a reshape; None where it was of several.

    An axis may have been joined with those after it, or be cut off from them.
    """
    for place, size in enumerate(before):
        large, small = max(size, after[axis]), min(size, after[axis])
        if prod(before[:place]) != prod(after[:axis]) or size == 1 or large % small:
            continue
        if size >= after[axis]:
            return place, (span[0] * (large // small), span[1] * (large // small))
        if span[0] % (large // small) == span[1] % (large // small) == 0:
            return place, (span[0] // (large // small), span[1] // (large // small))
    return None


def _before_broadcast(shape: Shape, rank: int, cut: Cut) -> Cut:
    """Return what of an operand is repeated to a part of a result of this rank."""
    new = rank - len(shape)
    return {axis - new: span for axis, span in cut.items() if axis >= new and shape[axis - new] > 1}


def _before_product(shape: Shape, rank: int, cut: Cut, own: int, swapped: bool) -> Cut:
    """Return what of an operand of a matrix product a part of its result takes, whose axis `own` is the operand's."""
    new = rank - len(shape)
    batch = _before_broadcast(shape, rank, {axis: span for axis, span in cut.items() if axis < rank - 2})
    there = 2 * rank - 3 - own if swapped else own
    return {**batch, there - new: cut[own]} if own in cut else batch
