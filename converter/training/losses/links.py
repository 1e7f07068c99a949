"""Logits for a loss: what it reads where the model ends in the softmax or sigmoid that it applies itself."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import inf, isnan
from typing import Literal

import numpy as np

from converter.ir import Builder, Graph, Node, Value, ops
from converter.support.errors import UsageError

#: What turns logits into probabilities.
Link = Literal["softmax", "sigmoid"]

_LOSSES: dict[Link, str] = {
    "softmax": "sparse_categorical_crossentropy, categorical_crossentropy",
    "sigmoid": "binary_crossentropy",
}
#: How far below the output probabilities are looked for.
_DEPTH = 24


@dataclass(frozen=True)
class FoldedLink:
    """A softmax or sigmoid that the model ends in: the node, and what moves elements between it and the output."""

    node: Node
    moves: tuple[Node, ...]

    def logits(self, b: Builder) -> Value:
        """Return what stood in the output's place without it."""
        value = self.node.inputs[0]
        for move in self.moves:
            value = b(move.op, value)
        return value


def folded_link(graph: Graph, output: Value, link: Link) -> FoldedLink | None:
    """Return the link that `output` ends in; None where it holds logits already.

    Raises:
        UsageError: the output holds probabilities, but not by this link, or not by it last.
    """
    made_by = {value: node for node in graph.nodes for value in node.outputs}
    moves: list[Node] = []
    value = output
    while (node := made_by.get(value)) is not None:
        if node.op.link == link:
            return FoldedLink(node, tuple(reversed(moves)))
        if other := node.op.link:
            raise UsageError(
                f"the model ends in a {other} ({node.origin.layer or output.name}), and the loss takes the logits of a "
                f"{link}: use {_LOSSES[other]}, or take the {other} out of the model",
                page="losses",
            )
        if not (_only_moves(node) and (link == "sigmoid" or _keeps_rows(node))):
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


def _only_moves(node: Node) -> bool:
    """Return whether a link before it is the same link behind it."""
    return node.op.moves_data and node.op.fill is None and len(node.inputs) == 1


def _keeps_rows(node: Node) -> bool:
    """Return whether the rows of the last axis stay whole and in order."""
    before, after = node.inputs[0].shape, node.output.shape
    if isinstance(node.op, ops.Transpose):
        return node.op.perm[-1] == len(before) - 1
    return bool(before) and before[-1:] == after[-1:]


def _bounds(
    value: Value, graph: Graph, made_by: dict[Value, Node], known: dict[Value, tuple[float, float]], depth: int
) -> tuple[float, float]:
    """Return an interval that the elements lie in, by the arithmetic that is done on probabilities behind a link."""
    if value in known:
        return known[value]
    if value in graph.constants and graph.constants[value].size:
        array = graph.constants[value]
        return float(array.min()), float(array.max())
    node = made_by.get(value)
    if node is None or not depth:
        return -inf, inf
    low, high = node.op.bounds(*(v.type for v in node.inputs))
    if isinstance(node.op, ops.Binary | ops.Select | ops.Mean) or node.op.moves_data:
        operands = (v for v in node.inputs if v.dtype.kind == "f")
        ranges = [_bounds(v, graph, made_by, known, depth - 1) for v in operands]
        least, most = _combined(node, ranges)
        low, high = max(low, least), min(high, most)
    known[value] = low, high
    return low, high


def _combined(node: Node, ranges: list[tuple[float, float]]) -> tuple[float, float]:
    lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
    op = node.op
    if op.fill is not None:
        return min(op.fill, *lows), max(op.fill, *highs)
    if not isinstance(op, ops.Binary):
        return min(lows), max(highs)
    if op.clamps:
        return float(type(op).function(*lows)), float(type(op).function(*highs))
    if not op.ends_at_corners and not (isinstance(op, ops.Div) and not ranges[1][0] <= 0 <= ranges[1][1]):
        return -inf, inf
    with np.errstate(invalid="ignore"):  # what infinite ends leave open lies between the other corners
        corners = [float(type(op).function(*map(np.float64, ends))) for ends in product(*ranges)]
    known = [end for end in corners if not isnan(end)]
    return (min(known), max(known)) if known else (-inf, inf)
