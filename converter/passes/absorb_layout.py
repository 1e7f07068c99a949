"""Weight layout: stores each weight as its consumers read it."""

from __future__ import annotations

from collections.abc import Container

from converter.ir import Graph, Node, Parameter, Value, ops
from converter.ir.op import Op
from converter.ir.rewrite import Rewriter, eliminate_dead_code, rewrite


def absorb_layout(graph: Graph, only: Container[str] | None = None) -> Graph:
    """Moves a transpose or reshape that is the only way a parameter is read into the parameter's view.

    Before: Conv2D(x, Transpose[3,0,1,2](kernel HWIO)).   After: Conv2D(x, kernel), stored OHWI, shown HWIO.
    Repeats until no parameter, or none of `only` these names, is read through a single layout change. What the graph
    updates, or a training step will (statistics), is left as it is stored.
    """
    while True:
        moved = _absorb_once(graph, only)
        if moved is graph:
            return graph
        graph = moved


def _absorb_once(graph: Graph, only: Container[str] | None) -> Graph:
    readers = graph.consumers()
    stored: dict[Value, Value] = {}  # output of the layout change -> the parameter as it is stored from now on
    parameters: dict[Value, Parameter] = {}
    results = set(graph.results())
    for value, parameter in graph.parameters.items():
        changes = {_step(node.op) for node in readers.get(value, [])}
        step = changes.pop() if len(changes) == 1 and (only is None or parameter.name in only) else None
        if step is None or value in results or value in graph.updates or parameter.kind == "statistic":
            parameters[value] = parameter
            continue
        nodes = readers[value]
        new = Value(nodes[0].output.type, value.name)
        parameters[new] = parameter.viewed(step)
        stored |= dict.fromkeys((node.output for node in nodes), new)
    if not stored:
        return graph
    absorbed = graph.copy()
    absorbed.parameters = parameters

    def use_stored(b: Rewriter, node: Node) -> Value | None:
        return stored.get(node.outputs[0])

    return eliminate_dead_code(rewrite(absorbed, use_stored))


def _step(op: Op) -> tuple | None:
    match op:
        case ops.Transpose(perm=perm):
            return ("transpose", perm)
        case ops.Reshape(shape=shape):
            return ("reshape", shape)
    return None
