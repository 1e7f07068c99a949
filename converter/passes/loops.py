"""Loop simplification and loop-invariant code motion."""

from __future__ import annotations

from dataclasses import replace

from converter.ir import Graph, Node, Value, ops
from converter.ir.rewrite import Rewriter, eliminate_dead_code, map_bodies, rewrite
from converter.passes.common_subexpressions import merge_common_subexpressions
from converter.passes.fold_constants import fold_constants
from converter.passes.simplify import simplify

LOOPS = (ops.Scan, ops.While)


def simplify_loops(graph: Graph) -> Graph:
    """Closes the bodies over what is fixed, and simplifies them."""
    return map_bodies(rewrite(close_over(graph), _last_row), _simplified)


def _simplified(body: Graph) -> Graph:
    return merge_common_subexpressions(simplify(fold_constants(simplify_loops(eliminate_dead_code(body)))))


def close_over(graph: Graph) -> Graph:
    """Return what a loop hands on as it is becomes an operand that every step reads.

    A constant operand goes into the body.

    Before: Scan(body(w, carry, row), W, x0, xs) with W frozen.   After: Scan(body(carry, row), x0, xs), W in the body.
    """

    def rule(b: Rewriter, node: Node) -> tuple[Value, ...] | None:
        if not isinstance(node.op, LOOPS):
            return None
        closed = _with_constants(b, _with_invariants(node))
        if closed is node:
            return None
        if closed.outputs:
            b.append(closed)
        handed_on = dict(zip(_carried_results(node), _carried_operands(node), strict=True))
        return tuple(v if v in closed.outputs else handed_on[v] for v in node.outputs)

    return rewrite(graph, rule)


def _last_row(b: Rewriter, node: Node) -> Value | None:
    """Return the last row of a stack of what the steps hand on as well is what the last step hands on.

    Before: Slice[last](Scan(...).given).   After: Scan(...).carried; nobody needs the stack, which layers often make.
    """
    loop = b.producer(node.inputs[0], ops.Scan) if isinstance(node.op, ops.Slice) else None
    if loop is None or node.inputs[0] not in loop.outputs[loop.op.carried :]:
        return None
    stack, made = node.inputs[0], list(loop.op.body.outputs.values())
    given = made[loop.outputs.index(stack)]
    last = 0 if loop.op.reverse else loop.op.length - 1
    if (node.op.begin[0], node.op.size[0]) != (last, 1) or given not in made[: loop.op.carried]:
        return None
    row = b.reshape(loop.outputs[made.index(given)], (1, *stack.shape[1:]))
    return b(replace(node.op, begin=(0, *node.op.begin[1:])), row)


def _carried_operands(node: Node) -> tuple[Value, ...]:
    return node.inputs[node.op.fixed : node.op.fixed + node.op.carried]


def _carried_results(node: Node) -> tuple[Value, ...]:
    return node.outputs[: node.op.carried]


def _with_invariants(node: Node) -> Node:
    """Return the node with values that no step changes among the operands that every step reads."""
    op, (*others, body) = node.op, node.op.bodies()
    made = list(body.outputs.items())
    same = [k for k in range(op.carried) if made[k][1] is body.inputs[op.fixed + k]]
    if not same:
        return node
    first = [*range(op.fixed), *(op.fixed + k for k in same)]
    order = [*first, *(k for k in range(len(node.inputs)) if k not in first)]
    graphs = [_with_inputs(graph, [graph.inputs[k] for k in order]) for graph in (*others, body)]
    graphs[-1].outputs = dict(made[k] for k in range(len(made)) if k not in same)
    smaller = op.with_bodies(*graphs)
    if isinstance(op, ops.Scan):
        smaller = replace(smaller, carried=op.carried - len(same))
    outputs = tuple(v for k, v in enumerate(node.outputs) if k not in same)
    return Node(smaller, tuple(node.inputs[k] for k in order), outputs, node.origin)


def _with_constants(b: Rewriter, node: Node) -> Node:
    """Return the node with constants in place of the operands that every step reads and that are known."""
    known = {k: array for k in range(node.op.fixed) if (array := b.array(node.inputs[k])) is not None}
    if not known:
        return node
    left = [k for k in range(len(node.inputs)) if k not in known]
    graphs = []
    for graph in node.op.bodies():
        closed = _with_inputs(graph, [graph.inputs[k] for k in left])
        closed.constants |= {graph.inputs[k]: array for k, array in known.items()}
        graphs.append(closed)
    return replace(node, op=node.op.with_bodies(*graphs), inputs=tuple(node.inputs[k] for k in left))


def _with_inputs(graph: Graph, inputs: list[Value]) -> Graph:
    after = graph.copy()
    after.inputs = inputs
    return after
