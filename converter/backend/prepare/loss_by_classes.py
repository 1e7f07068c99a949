"""Cross entropy after a frozen head of many classes, some classes at a time: no logits are kept.

Forward and backward pass are one. Of the exponentials of the classes so far the largest logit, the sum, and the sum of
the rows of the matrix that they weigh are known; another part of the classes adds to these, scaled to the new largest
(Milakov and Gimelshein, arXiv 1805.02867). Behind the last, the cotangent of what enters the head is that sum, divided,
less the row of the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from converter.ir import FLOAT32, Builder, Graph, Node, TensorType, Value, ops, rows_at_once
from converter.ir.rewrite import Rewriter

#: Elements of the matrix that are multiplied at once, and of the logits, but for so many classes.
OF_MATRIX, OF_LOGITS, FEWEST_CLASSES = 1 << 20, 1 << 20, 128


class _Head(NamedTuple):
    """Logits [..., C] = x W * scales + biases, of constants.

    Attributes:
        x: [..., N].
        matrix: W', [C, N].
        blocks: scales of its blocks, [C, blocks], if it has some.
        scales, biases: one for each class, or for all.
    """

    x: Value
    matrix: np.ndarray
    blocks: np.ndarray | None = None
    scales: np.ndarray | None = None
    biases: np.ndarray | None = None


class _Sums(NamedTuple):
    """What is known of the classes so far: the largest logit, [R, 1], and by it the exponentials, and W of them.

    With biases also these, weighed likewise.
    """

    largest: Value
    total: Value
    weighed: Value
    biases: Value | None = None

    def log_total(self, b: Builder) -> Value:
        """Return log(sum exp(logits)), [R, 1]."""
        return b(ops.Add(), self.largest, b(ops.Log(), self.total))

    def mean_row(self, b: Builder) -> Value:
        """Return the mean of the rows of the matrix by the probabilities, [R, N]: the cotangent of x of `log_total`."""
        return b(ops.Div(), self.weighed, self.total)


class ByClasses:
    """Cross entropies in a graph, over the classes part by part; several of the same logits share one pass."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._makers = graph, graph.producers()
        self._known: dict[Value, _Sums] = {}

    def loss(self, b: Rewriter, node: Node) -> Value | None:
        """Return the loss of a cross entropy; None where the head is not of constants alone.

        Before: LabelCrossEntropy(x W, y).
        After:  log(sum exp(x W)) - (x W[y]), with its cotangent of x.
        Before: SoftmaxCrossEntropy(x W, Softmax(z W)).
        After:  log(sum exp(x W)) - x (Softmax(z W) W), likewise.
        """
        logits, targets = node.inputs
        if (head := _head(self._graph, logits, self._makers)) is None:
            return None
        if isinstance(node.op, ops.LabelCrossEntropy):
            return _of_labels(b, node, head, self._sums(b, logits, head))
        made = self._makers.get(targets)
        if made is None or not isinstance(made.op, ops.Softmax):
            return None
        (others,) = made.inputs
        other = _head(self._graph, others, self._makers)
        if other is None or not _are_alike(head, other):
            return None
        return _of_softmax(b, node, head, self._sums(b, logits, head), self._sums(b, others, other))

    def _sums(self, b: Rewriter, logits: Value, head: _Head) -> _Sums:
        """Return the sums over all classes."""
        if logits not in self._known:
            x, sums = _rows(b, head), None
            at_once = max(FEWEST_CLASSES, min(OF_MATRIX // x.shape[-1], OF_LOGITS // x.shape[0]))
            size = rows_at_once(len(head.matrix), -(-len(head.matrix) // at_once))
            for begin in range(0, len(head.matrix), size):
                sums = _with_part(b, x, _part(head, slice(begin, begin + size)), sums)
            assert sums is not None
            self._known[logits] = sums
        return self._known[logits]


def _of_labels(b: Rewriter, node: Node, head: _Head, sums: _Sums) -> Value:
    """Return the cross entropy of labels."""
    x, labels = _rows(b, head), node.inputs[1]
    y = b.reshape(labels, (labels.type.size,))
    known = b.reshape(b(ops.IsClass(len(head.matrix)), y), (labels.type.size, 1))
    of_label, row = _of_label(b, x, y, head)
    from_label = b(ops.Mul(), of_label, known) if node.op.everywhere else of_label
    loss, cotangent = b(ops.Sub(), sums.log_total(b), from_label), sums.mean_row(b)
    if node.op.everywhere:
        cotangent = b(ops.Sub(), cotangent, b(ops.Mul(), row, known))
    else:
        loss, cotangent = b(ops.Mul(), loss, known), b(ops.Mul(), b(ops.Sub(), cotangent, row), known)
    return _with_cotangent(b, node, x, cotangent, loss)


def _of_softmax(b: Rewriter, node: Node, head: _Head, sums: _Sums, of_targets: _Sums) -> Value:
    """Return the cross entropy of the softmax of other logits, after the same head."""
    x, row = _rows(b, head), of_targets.mean_row(b)
    logit = b(ops.Sum((-1,), keepdims=True), b(ops.Mul(), x, row))
    if of_targets.biases is not None:
        logit = b(ops.Add(), logit, b(ops.Div(), of_targets.biases, of_targets.total))
    loss = b(ops.Sub(), sums.log_total(b), logit)
    return _with_cotangent(b, node, x, b(ops.Sub(), sums.mean_row(b), row), loss)


def _with_cotangent(b: Rewriter, node: Node, x: Value, cotangent: Value, loss: Value) -> Value:
    given = ops.CustomGradient(1, 1, _backward(x.type, loss.type))
    return b.reshape(b(given, x, cotangent, loss), node.output.shape)


def _rows(b: Rewriter, head: _Head) -> Value:
    """Return what enters the head, [R, N]."""
    width = head.matrix.shape[1]
    return b.reshape(b.current(head.x), (head.x.type.size // width, width))


def _are_alike(one: _Head, other: _Head) -> bool:
    """Return whether two heads have the same numbers: constants of a graph are compared by where they lie."""
    pairs = zip(one[1:], other[1:], strict=True)
    return all(
        a is c
        or (a is not None and c is not None and a.shape == c.shape and (np.may_share_memory(a, c) or (a == c).all()))
        for a, c in pairs
    )


def _head(graph: Graph, value: Value, makers: Mapping[Value, Node]) -> _Head | None:
    """Return the head that makes logits, if it is of constants."""
    node = makers.get(value)
    match node.op if node is not None else None:
        case ops.CastMatMul(adj_y=adj_y):
            assert node is not None
            x, w, *scales = node.inputs
            stored, *blocks = (graph.constants.get(v) for v in (w, *scales))
            if stored is None or (blocks and not adj_y):  # blocks of several classes
                return None
            return _Head(x, stored if adj_y else stored.T, *blocks)
        case ops.Reshape():
            assert node is not None
            of = node.inputs[0]
            return _head(graph, of, makers) if of.shape[-1] == value.shape[-1] else None
        case ops.Add() | ops.Mul():
            assert node is not None
            known = [v for v in node.inputs if v in graph.constants and v.type.size in (1, value.shape[-1])]
            others = [v for v in node.inputs if v not in known]
            head = _head(graph, others[0], makers) if len(known) == len(others) == 1 else None
            if head is None or others[0].type.size != value.type.size:
                return None
            return _changed(head, node.op, np.broadcast_to(graph.constants[known[0]].reshape(-1), value.shape[-1:]))
    return None


def _changed(head: _Head, op: ops.Add | ops.Mul, by: np.ndarray) -> _Head:
    if isinstance(op, ops.Add):
        return head._replace(biases=by if head.biases is None else head.biases + by)
    scales = by if head.scales is None else head.scales * by
    return head._replace(scales=scales, biases=None if head.biases is None else head.biases * by)


def _part(head: _Head, classes: slice) -> _Head:
    some = [None if array is None else array[classes] for array in (head.blocks, head.scales, head.biases)]
    return _Head(head.x, head.matrix[classes], *some)


def _with_part(b: Rewriter, x: Value, part: _Head, before: _Sums | None) -> _Sums:
    """Return the sums with those of more classes."""
    matrix = [b.constant(array) for array in (part.matrix, part.blocks) if array is not None]
    logits = b(ops.CastMatMul(adj_y=True), x, *matrix)
    if part.scales is not None:
        logits = b(ops.Mul(), logits, part.scales)
    if part.biases is not None:
        logits = b(ops.Add(), logits, part.biases)
    largest = b(ops.Max((-1,), keepdims=True), logits)
    if before is not None:
        largest = b(ops.Maximum(), before.largest, largest)
    each = b(ops.Exp(), b(ops.Sub(), logits, largest))
    total = b(ops.Sum((-1,), keepdims=True), each)
    found = [total, b(ops.CastMatMul(), each if part.scales is None else b(ops.Mul(), each, part.scales), *matrix)]
    if part.biases is not None:
        found.append(b(ops.Sum((-1,), keepdims=True), b(ops.Mul(), each, part.biases)))
    if before is None:
        return _Sums(largest, *found)
    less = b(ops.Exp(), b(ops.Sub(), before.largest, largest))
    sofar = [value for value in before[1:] if value is not None]
    return _Sums(largest, *(b(ops.Add(), b(ops.Mul(), old, less), new) for old, new in zip(sofar, found, strict=True)))


def _of_label(b: Rewriter, x: Value, labels: Value, head: _Head) -> tuple[Value, Value]:
    """Return the logit of the label of each row, [R, 1], and the row of the matrix that makes it, [R, N]."""
    index = b(ops.Minimum(), b(ops.Maximum(), labels, 0), len(head.matrix) - 1)
    gather = ops.Gather() if head.matrix.dtype == FLOAT32 else ops.CastGather()
    row = b(gather, b.constant(head.matrix), index, *([] if head.blocks is None else [b.constant(head.blocks)]))
    if head.scales is not None:
        row = b(ops.Mul(), row, b(ops.Gather(), b.constant(np.ascontiguousarray(head.scales[:, None])), index))
    logit = b(ops.Sum((-1,), keepdims=True), b(ops.Mul(), x, row))
    if head.biases is not None:
        logit = b(ops.Add(), logit, b(ops.Gather(), b.constant(np.ascontiguousarray(head.biases[:, None])), index))
    return logit, row


def _backward(of_x: TensorType, of_loss: TensorType) -> Graph:
    """Return the derivative: the cotangent of x for a loss of 1, times that of the loss."""
    b = Builder()
    each, of = b.input("each", of_x), b.input("of", of_loss)
    b.graph.outputs = {"0": b(ops.Mul(), each, of)}
    return b.graph
