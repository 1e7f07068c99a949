"""Dead code elimination after a trace."""

from __future__ import annotations

from converter.ir import Graph, reachable


def without_dead_code(graph: Graph) -> Graph:
    """Drops nodes and constants that no result depends on. Inputs and parameters stay: they are the model's."""
    needed = reachable(graph, graph.results())
    result = graph.copy()
    result.nodes = [node for node in graph.nodes if any(v in needed for v in node.outputs)]
    result.constants = {v: array for v, array in graph.constants.items() if v in needed}
    return result
