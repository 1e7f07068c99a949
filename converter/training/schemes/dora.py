"""DoRA: the norm of each column of a weight trains separately from its direction (Liu et al., arXiv 2402.09353).

y = g (x W + s (x A) B) = g (x W) + s (x A) (g B), g = m / n, n the lengths of the columns of W + s A B. That is never
made: n^2 = |W|^2 + sum over the rank of B (2 s A' W + s^2 (A' A) B), a product of W with as many rows as the rank.
"""

from __future__ import annotations

from converter.ir import Graph, Node, Value, ops
from converter.ir.rewrite import Rewriter
from converter.program.merge import LEAST
from converter.training.schemes.channels import problem as contracted_both_ways
from converter.training.schemes.lora import Contraction

#: What the lengths are called, behind the name of the weight.
MAGNITUDE = "/lora_magnitude"


def problem(place: Contraction) -> str | None:
    """Return why columns of a weight have no lengths of their own, if so."""
    if len(place.b) > 2:
        return "several matrices in one, of which DoRA has no form"
    if any(use.scale is not None for use in place.uses.values()):
        return "multiplied by other numbers before it is used, of which DoRA has no form"
    if contracted_both_ways(place) is not None:
        return "used both ways round: its columns are the rows of another use"
    return None


def gains(b: Rewriter, node: Node, operand: int, scale: float, first: Value, second: Value, magnitude: Value) -> Value:
    """Return what the results of a weight with its adapter are multiplied by, one number for each output.

    No gradient flows through the lengths of the columns (section 4.3 of the paper; PEFT).

    Args:
        b: builds the graph.
        node: a contraction of the weight.
        operand: which operand of it the weight is.
        scale: what A B is multiplied by.
        first: A, [..., inputs, rank].
        second: B, [rank, outputs].
        magnitude: m, [outputs].
    """
    w, rank = node.inputs[operand], second.shape[0]
    if isinstance(node.op, ops.MatMul):
        outputs_first = node.op.adj_y if operand else not node.op.adj_x
        matrix = w
    else:
        outputs_first = True
        matrix = b.reshape(w, (w.shape[0], w.type.size // w.shape[0]))
    a = b.reshape(first, (first.type.size // rank, rank))
    rows = b.transpose(a, (1, 0))
    of_both = b(ops.MatMul(adj_y=outputs_first), rows, matrix)
    of_change = b(ops.MatMul(), b(ops.MatMul(), rows, a), second)
    added = b(ops.Add(), b(ops.Mul(), of_both, 2 * scale), b(ops.Mul(), of_change, scale * scale))
    own = b(ops.SquaredNorms(0 if outputs_first else 1, magnitude.name), matrix)
    squared = b(ops.Add(), own, b.sum(b(ops.Mul(), second, added), (0,)))
    length = b(ops.Sqrt(), b(ops.Maximum(), squared, LEAST))
    (still,) = b.node(ops.CustomGradient(arguments=0, residuals=0, backward=Graph()), length).outputs
    return b(ops.Div(), magnitude, still)


def with_gains(b: Rewriter, y: Value, second: Value, gain: Value, operand: int) -> tuple[Value, Value]:
    """Return the product y of a weight, and B, times the gain of each output.

    B rather than what it gives: the numbers of the adapter are few. Outputs lie along the last axis of y; before it
    where the weight comes first.
    """
    return b(ops.Mul(), y, gain if operand else b.reshape(gain, (*gain.shape, 1))), b(ops.Mul(), second, gain)
