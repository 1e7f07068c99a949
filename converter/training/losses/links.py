"""Logits for a loss: found before the softmax or sigmoid that ends the model and that the loss applies itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from converter.ir import Builder, Graph, Node, Value, ops
from converter.ir.finite import Finiteness
from converter.support.errors import UsageError

#: What turns logits into probabilities.
Link = Literal["softmax", "sigmoid"]

_LOSSES: dict[Link, str] = {
    "softmax": "sparse_categorical_crossentropy, categorical_crossentropy",
    "sigmoid": "binary_crossentropy",
}


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
    made_by = graph.producers()
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
    extent = Finiteness(graph).extent(output)
    if extent.low >= 0 and extent.high <= 1:
        raise UsageError(
            f"the model's output holds probabilities (it lies between {extent.low:g} and {extent.high:g}), and the "
            f"loss takes the logits of a {link}. Let the model end in the {link} itself, which is then joined with the "
            "loss, or in the logits; or pass a loss of your own, a function (outputs, targets) -> per-example loss",
            page="losses",
        )
    return None


def _only_moves(node: Node) -> bool:
    """Return whether a link before it is the same link after it."""
    return node.op.moves_data and node.op.fill is None and len(node.inputs) == 1


def _keeps_rows(node: Node) -> bool:
    """Return whether the rows of the last axis stay whole and in order."""
    before, after = node.inputs[0].shape, node.output.shape
    if isinstance(node.op, ops.Transpose):
        return node.op.perm[-1] == len(before) - 1
    return bool(before) and before[-1:] == after[-1:]
