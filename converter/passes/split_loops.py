"""Loop splitting: a long loop as one of short ones, because the runtime copies all earlier results at each step."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from converter.ir import Builder, Graph, Node, Value, ops
from converter.ir.rewrite import Rewriter, map_bodies, rewrite

#: Steps of the shortest loop that is split.
SHORTEST = 32


def split_loops(graph: Graph) -> Graph:
    """Loops whose steps give something become loops of loops of about the square root of their steps.

    WHILE and DYNAMIC_UPDATE_SLICE each copy the whole stack of T rows at each of T steps. With the stack of a short
    loop added to that of the long one at once, T * T rows become 2 * T * sqrt(T).

    Before: Scan[T](body).   After: Scan[T / n](Scan[n](body)), and a loop of the steps that are left.
    """
    return rewrite(map_bodies(graph, split_loops), _split)


def _split(b: Rewriter, node: Node) -> tuple[Value, ...] | None:
    op = node.op
    if not isinstance(op, ops.Scan):
        return None
    if op.length < SHORTEST or len(node.outputs) == op.carried:
        return None
    short = _short_length(op.length)
    rows = node.inputs[op.fixed + op.carried :]
    fixed, carried = node.inputs[: op.fixed], node.inputs[op.fixed : op.fixed + op.carried]
    left, many = op.length % short, op.length // short
    whole = (0, op.length - left) if not op.reverse else (left, op.length)
    rest = (op.length - left, op.length) if not op.reverse else (0, left)
    parts: list[tuple[Value, ...]] = []
    chunks = [b.reshape(b.part(x, *whole), (many, short, *x.shape[1:])) for x in rows]
    made = b.node(_loop_of_loops(op, node, many, short), *fixed, *carried, *chunks).outputs
    carried = made[: op.carried]
    parts.append(tuple(b.reshape(v, (many * short, *v.shape[2:])) for v in made[op.carried :]))
    if left:
        made = b.node(replace(op, length=left), *fixed, *carried, *(b.part(x, *rest) for x in rows)).outputs
        carried = made[: op.carried]
        parts.append(made[op.carried :])
    columns = zip(*(reversed(parts) if op.reverse else parts), strict=True)
    return (*carried, *(column[0] if len(column) == 1 else b(ops.Concat(0), *column) for column in columns))


def _short_length(length: int) -> int:
    """Return the divisor next to the square root if there is one near it, else the root, with steps left over."""
    root = isqrt(length)
    near = [n for n in range(root // 2 + 1, 2 * root + 1) if not length % n]
    return min(near, key=lambda n: abs(n - root), default=root)


def _loop_of_loops(op: ops.Scan, node: Node, many: int, short: int) -> ops.Scan:
    b = Builder(Graph())
    rows = op.fixed + op.carried
    types = [v.type if k < rows else v.type.with_shape((short, *v.shape)) for k, v in enumerate(op.body.inputs)]
    inputs = [b.input(v.name, t) for v, t in zip(op.body.inputs, types, strict=True)]
    with b.at(node.origin):
        made = b.node(replace(op, length=short), *inputs).outputs
    b.graph.outputs = dict(zip(op.body.outputs, made, strict=True))
    return replace(op, body=b.graph, length=many)
