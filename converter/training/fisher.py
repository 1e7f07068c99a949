"""Fisher information of input channels: how much a loss would change without each, by samples.

Of a channel c it is 1 / 2N sum_n (sum_d a_ndc g_ndc)^2 over N samples, where a is what the weight is multiplied with, g
the gradient of the sample's loss by it through this weight, and d its places (Theis et al., arXiv 1801.05787).
"""

from __future__ import annotations

from converter.ir import Builder, Graph, Node, Value, dependents, ops
from converter.ir.rewrite import rewrite
from converter.passes import eliminate_dead_code, merge_common_subexpressions, simplify, simplify_loops
from converter.passes.autodiff import differentiate
from converter.program.manifest import FISHER
from converter.support.errors import UsageError
from converter.training.by_row import by_row, rows_axis
from converter.training.losses import JointLoss, Loss, attach_loss
from converter.training.schemes.adapt import CHOICE


def without_probes(graph: Graph) -> Graph:
    """Return the graph as it is where no channels are weighed."""
    return rewrite(graph, lambda b, node: node.inputs[0] if isinstance(node.op, ops.Probe) else None)


def fisher(graph: Graph, loss: Loss | JointLoss) -> Graph:
    """Return the signature `fisher`: for each probed weight the sum over rows of (sum_d a_ndc g_ndc)^2, [channels].

    A row's loss counts as often as its `weight` says, so rows of weight 0 add nothing.

    Raises:
        UsageError: of what a weight is multiplied with it cannot be told which row of the batch it belongs to.
    """
    rows, of_rows = graph.inputs[0].shape[0], dependents(graph, graph.inputs)
    weighed = {node.op.weight for node in _probes(graph) if node.output in of_rows}
    for choice in (p.name.removesuffix(CHOICE) for p in graph.parameters.values() if p.kind == "choice"):
        if choice not in weighed:
            raise UsageError(
                f"{choice}: what it is multiplied with is the same for all samples, so they cannot weigh its channels: "
                "leave the signature 'fisher' out, and its first channels train",
                page="adapters",
            )
    axes = {node.output: _rows_axis(graph, node, rows) for node in _probes(graph)}
    scored = attach_loss(graph, loss, mean=False)
    scored.outputs = {"loss": scored.outputs["loss"]}
    scored = eliminate_dead_code(scored)
    probes = _probes(scored)
    # Behind a probe is nothing but its weight: the gradient there is the one through this weight.
    backward, gradients = differentiate(scored, scored.outputs["loss"], [node.output for node in probes])
    b, effects = Builder(backward), dict[str, Value]()
    for node in probes:
        with b.at(node.origin.in_phase("backward")):
            products = b(ops.Mul(), node.inputs[0], gradients[node.output])
            placed = by_row(b, products, axes[node.output], node.op.axis, rows)
            effect, weight = b(ops.Sum((1,)), placed), node.op.weight
            effects[weight] = b(ops.Add(), effects[weight], effect) if weight in effects else effect
    b.graph.outputs = {FISHER + name: b(ops.Sum((0,)), b(ops.Mul(), e, e)) for name, e in effects.items()}
    return merge_common_subexpressions(simplify(simplify_loops(eliminate_dead_code(b.graph))))


def _probes(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.op, ops.Probe)]


def _rows_axis(graph: Graph, node: Node, rows: int) -> int:
    """Return the axis along which what a weight is multiplied with has the rows of the batch, or their places.

    Raises:
        UsageError: there is none.
    """
    found = rows_axis(graph, node.inputs[0], node.op.axis, rows)
    if found is not None:
        return found
    raise UsageError(
        f"{node.op.weight}: what it is multiplied with is not row by row, so its channels cannot be weighed sample by "
        "sample: leave the signature 'fisher' out, and its first channels train",
        page="adapters",
    )
