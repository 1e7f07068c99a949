"""Weight layout of dense layers: [inputs, outputs] or [outputs, inputs]."""

from __future__ import annotations

from converter.backend.lowering.context import Lowering
from converter.backend.lowering.lower import RULES, lower
from converter.backend.targets import Target
from converter.ir import Graph, TensorType, dependents, ops

#: Of what a product costs as it is: so much less is not within the error of a table.
_CLEARLY = 0.9


def better_transposed(graph: Graph, target: Target) -> set[str]:
    """Return the names of the trained matrices that are better kept as [outputs, inputs], by the target's table.

    A few rows meet such a matrix where it lies. A gradient that goes on below would meet it the other way round, so
    these are of first trained layers only. A matrix that trains in part stays as it is: its view ends with the cut.

    Args:
        graph: semantic; its parameters are what trains.
        target: where it will run.
    """
    readers, after = graph.consumers(), dependents(graph, graph.parameters)
    names = set()
    for w, parameter in graph.parameters.items():
        nodes = readers.get(w, [])
        if (
            parameter.view.is_cut
            or len(nodes) != 1
            or nodes[0].op != ops.MatMul()
            or nodes[0].inputs[1] is not w
            or not target.is_cpu
        ):
            continue
        x = nodes[0].inputs[0]
        if len(x.shape) == len(w.shape) == 2 and x not in after:
            transposed = w.type.with_shape(w.shape[::-1])
            kept = _cost(ops.MatMul(), x.type, w.type, target)
            if _cost(ops.MatMul(adj_y=True), x.type, transposed, target) < _CLEARLY * kept:
                names.add(parameter.name)
    return names


def _cost(op: ops.MatMul, x: TensorType, w: TensorType, target: Target) -> float:
    c = Lowering(target, lower)
    RULES[type(op)](c, op, c.input("x", x), c.input("w", w))
    return c.choices[-1].cost
