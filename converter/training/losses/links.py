"""What a loss from logits reads where the model ends in the softmax or sigmoid that the loss applies itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from converter.ir import Builder, Graph, Node, Value, ops
from converter.support.errors import UsageError

#: What turns logits into probabilities.
Link = Literal["softmax", "sigmoid"]

_OPS: dict[Link, tuple[type[ops.Softmax] | type[ops.LogSoftmax] | type[ops.Logistic], ...]] = {
    "softmax": (ops.Softmax, ops.LogSoftmax),
    "sigmoid": (ops.Logistic,),
}
_LOSSES: dict[Link, str] = {
    "softmax": "sparse_categorical_crossentropy, categorical_crossentropy",
    "sigmoid": "binary_crossentropy",
}
#: Only move elements: a link before them is the same link behind them, if each row stays whole where that matters.
_MOVES = (ops.Activity, ops.Reshape, ops.Transpose, ops.Slice, ops.BroadcastTo)
#: How far below the output probabilities are looked for.
_DEPTH = 24


@dataclass(frozen=True)
class FoldedLink:
    """A softmax or sigmoid that the model ends in: the node, and what moves elements between it and the output."""

    node: Node
    moves: tuple[Node, ...]

    def logits(self, b: Builder) -> Value:
        """What stood in the output's place without it."""
        value = self.node.inputs[0]
        for move in self.moves:
            value = b(move.op, value)
        return value


def folded_link(graph: Graph, output: Value, link: Link) -> FoldedLink | None:
    """The link that `output` ends in; None where it holds logits already.

    Raises:
        UsageError: the output holds probabilities, but not by this link, or not by it last.
    """
    made_by = {value: node for node in graph.nodes for value in node.outputs}
    moves: list[Node] = []
    value = output
    while (node := made_by.get(value)) is not None:
        if isinstance(node.op, _OPS[link]):
            return FoldedLink(node, tuple(reversed(moves)))
        other: Link = "sigmoid" if link == "softmax" else "softmax"
        if isinstance(node.op, _OPS[other]):
            raise UsageError(
                f"the model ends in a {other} ({node.origin.layer or output.name}), and the loss takes the logits of a "
                f"{link}: use {_LOSSES[other]}, or take the {other} out of the model",
                page="losses",
            )
        if not (isinstance(node.op, _MOVES) and (link == "sigmoid" or _keeps_rows(node))):
            break
        moves.append(node)
        value = node.inputs[0]
    low, high = _bounds(output, graph, made_by, {}, _DEPTH)
    if low >= 0 and high <= 1:
        raise UsageError(
            f"the model's output holds probabilities (it lies between {low:g} and {high:g}), and the loss takes the "
            f"logits of a {link}. Let the model end in the {link} itself, which is then joined with the loss, or in "
            "the logits; or pass a loss of your own, a function (outputs, targets) -> per-example loss",
            page="losses",
        )
    return None


def _keeps_rows(node: Node) -> bool:
    """Whether the rows of the last axis stay whole and in order."""
    before, after = node.inputs[0].shape, node.output.shape
    if isinstance(node.op, ops.Transpose):
        return node.op.perm[-1] == len(before) - 1
    return bool(before) and before[-1:] == after[-1:]


def _bounds(
    value: Value, graph: Graph, made_by: dict[Value, Node], known: dict[Value, tuple[float, float]], depth: int
) -> tuple[float, float]:
    """An interval that the elements lie in, by the arithmetic that is done on probabilities behind a link."""
    if value in known:
        return known[value]
    if value in graph.constants and graph.constants[value].size:
        array = graph.constants[value]
        return float(array.min()), float(array.max())
    node = made_by.get(value)
    if node is None or not depth:
        return -inf, inf
    if isinstance(node.op, ops.Softmax | ops.Logistic):
        return 0.0, 1.0
    if isinstance(node.op, ops.Relu6):
        return 0.0, 6.0
    low, high = -inf, inf
    if isinstance(node.op, (*_MOVES, ops.Concat, ops.Mean, ops.Add, ops.Mul, ops.Div, ops.Maximum, ops.Minimum)):
        ranges = [_bounds(v, graph, made_by, known, depth - 1) for v in node.inputs]
        low, high = _combined(node, ranges)
    known[value] = low, high
    return low, high


def _combined(node: Node, ranges: list[tuple[float, float]]) -> tuple[float, float]:
    lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
    match node.op:
        case ops.Add():
            return sum(lows), sum(highs)
        case ops.Maximum():
            return max(lows), max(highs)
        case ops.Minimum():
            return min(lows), min(highs)
        case ops.Mul() | ops.Div() if all(abs(end) < inf for ends in ranges for end in ends):
            (a, b), (c, d) = ranges
            if isinstance(node.op, ops.Div):
                if c <= 0 <= d:
                    return -inf, inf
                c, d = 1 / d, 1 / c
            corners = [x * y for x in (a, b) for y in (c, d)]
            return min(corners), max(corners)
        case ops.Mul() | ops.Div():
            return -inf, inf
    return min(lows), max(highs)
