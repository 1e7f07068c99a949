"""`blocks`: a step that holds one block of the model at a time.

Which computes its forward pass again is the scheduler's work (`converter.backend.schedule.segments`).
"""

from __future__ import annotations

from converter.backend.prepare.hidden_in_parts import hidden_in_parts
from converter.backend.prepare.loss_in_parts import loss_in_parts
from converter.driver.compilation import Compilation
from converter.ir import FLOAT32, Graph, Node, Value, known_result, ops
from converter.ir.rewrite import Rewriter, rewrite

#: Elements of the smallest constant matrix that is not kept as the kernels want it.
LEAST = 1 << 13


def contracted_as_stored(c: Compilation, graph: Graph) -> Graph:
    """Return a graph whose constant matrices are read from the file at each product, if memory is what counts.

    Before: MatMul(x, W).    After: CastMatMul(x, W'), W' [outputs, inputs] as FULLY_CONNECTED of `infer` reads it, too.

    Else the runtime keeps each as its kernels want it, once for the forward pass, once more where that is computed
    again, and once for the backward pass.
    """
    if not (
        c.request.recompute and c.target.is_cpu and c.target.is_newest
    ):  # of others it is not known that they keep no copy
        return graph

    stored: dict[Value, Value] = {}

    def contracted(b: Rewriter, node: Node) -> Value | None:
        if not isinstance(node.op, ops.MatMul) or node.op.adj_x or not _is_large_matrix(graph, node.inputs[1]):
            return None
        x, w = node.inputs
        if not node.op.adj_y and w not in stored:
            turn = ops.Transpose((1, 0))
            array = known_result(turn, turn.infer(w.type), graph.constants[w])
            stored[w] = b.constant(array, name=w.name)
        return b(ops.CastMatMul(adj_y=True), x, w if node.op.adj_y else stored[w])

    return rewrite(graph, contracted)


def with_few_inner_features(c: Compilation, graph: Graph) -> Graph:
    """Return a graph whose wide feed-forward parts are there some inner features at a time, if memory counts."""
    return hidden_in_parts(graph) if c.request.recompute and c.target.is_cpu else graph


def with_few_logits(c: Compilation, with_loss: Graph) -> Graph:
    """Return a graph with its loss that makes the logits of many classes a few rows at a time, if memory counts."""
    return loss_in_parts(with_loss) if c.request.recompute and c.target.is_cpu else with_loss


def _is_large_matrix(graph: Graph, value: Value) -> bool:
    return value in graph.constants and value.type.rank == 2 and value.dtype == FLOAT32 and value.type.size >= LEAST
