"""Cross entropy of many classes, a few rows at a time: the logits of all tokens are never there at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from converter.backend.prepare.loss_by_classes import ByClasses
from converter.ir import Graph, Node, Value, ops
from converter.ir.rewrite import Rewriter, rewrite

#: Bytes of logits at once, but for so many rows: each part reads, or unpacks, the whole matrix.
MOST, FEWEST_ROWS = 4 << 20, 32


def loss_in_parts(graph: Graph) -> Graph:
    """Return a graph with its loss in which large logits are made a few rows at a time.

    Before: LabelCrossEntropy(x W, y).
    After:  Concat(LabelCrossEntropy(x[0:n] W, y[0:n]), LabelCrossEntropy(x[n:2n] W, y[n:2n]), ...).

    Where the head is frozen the classes are taken part by part, too, and it is read once (`loss_by_classes`). Targets
    that are the softmax of other logits are made a few rows at a time, too.

    Between x and the logits may be biases, scales and adapters. The cotangent of each part needs no other part, so a
    step takes them one after the other, forward and backward.
    """
    makers, by_classes = graph.producers(), ByClasses(graph)

    def in_parts(b: Rewriter, node: Node) -> Value | None:
        if not isinstance(node.op, ops.LabelCrossEntropy | ops.SoftmaxCrossEntropy):
            return None
        logits, targets = node.inputs
        if logits.type.nbytes <= MOST:
            return None
        if (loss := by_classes.loss(b, node)) is not None:
            return loss
        if not _goes_row_by_row(logits, logits, makers):
            return None
        rows, losses = logits.type.size // logits.shape[-1], []
        size = max(rows * MOST // logits.type.nbytes, FEWEST_ROWS)
        targets_of = _targets(b, targets, logits, rows, makers)
        for begin in range(0, rows, size):
            part = slice(begin, min(begin + size, rows))
            losses.append(b(node.op, _rows_of(b, logits, rows, part, makers), targets_of(part)))
        return b.reshape(b(ops.Concat(0), *losses), node.output.shape)

    return rewrite(graph, in_parts)


def _targets(
    b: Rewriter, targets: Value, logits: Value, rows: int, makers: Mapping[Value, Node]
) -> Callable[[slice], Value]:
    """Return what gives the targets of some rows."""
    made = makers.get(targets)
    if made is not None and isinstance(made.op, ops.Softmax) and _goes_row_by_row(made.inputs[0], logits, makers):
        return lambda part: b(made.op, _rows_of(b, made.inputs[0], rows, part, makers))
    flat = b.reshape(targets, (rows, *targets.shape[logits.type.rank - 1 :]))
    return lambda part: b.part(flat, part.start, part.stop)


def _goes_row_by_row(value: Value, logits: Value, makers: Mapping[Value, Node]) -> bool:
    """Return whether a value as large as the logits is made row by row of what is smaller."""
    node = makers.get(value)
    match node.op if node is not None else None:
        case ops.MatMul(adj_x=False) | ops.CastMatMul():
            assert node is not None
            return node.inputs[1].type.rank == 2 and node.inputs[0].type.size < logits.type.size
        case ops.Add() | ops.Sub() | ops.Mul():
            assert node is not None
            return all(
                _is_row(v, logits.shape[-1]) or (v.shape == value.shape and _goes_row_by_row(v, logits, makers))
                for v in node.inputs
            )
        case ops.Reshape():
            assert node is not None
            of = node.inputs[0]
            return of.shape[-1] == logits.shape[-1] and _goes_row_by_row(of, logits, makers)
    return False


def _is_row(value: Value, width: int) -> bool:
    """Return whether it is the same for all rows."""
    return value.type.size == 1 or (value.type.size == width and value.shape[-1] == width)


def _rows_of(b: Rewriter, value: Value, rows: int, part: slice, makers: Mapping[Value, Node]) -> Value:
    """Return some of so many rows of a value that goes row by row, [n, C]."""
    node = makers[value]
    with b.at(node.origin):
        match node.op:
            case ops.Reshape():
                return _rows_of(b, node.inputs[0], rows, part, makers)
            case ops.MatMul() | ops.CastMatMul():
                x, *w = node.inputs
                return b(node.op, b.part(b.reshape(b.current(x), (rows, x.shape[-1])), part.start, part.stop), *w)
        width = value.shape[-1]
        operands = [
            b.reshape(v, v.shape[-1:]) if _is_row(v, width) else _rows_of(b, v, rows, part, makers) for v in node.inputs
        ]
        return b(node.op, *operands)
