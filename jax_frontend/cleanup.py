"""What a traced graph needs before others read it: nothing dead in it, and a layer on every node."""

from __future__ import annotations

from dataclasses import replace

from converter.ir import Graph, Node, Value, ops, reachable


def without_dead_code(graph: Graph) -> Graph:
    """Drops nodes and constants that no result depends on. Inputs and parameters stay: they are the model's."""
    needed = reachable(graph, graph.results())
    result = graph.copy()
    result.nodes = [node for node in graph.nodes if any(v in needed for v in node.outputs)]
    result.constants = {v: array for v, array in graph.constants.items() if v in needed}
    return result


def with_layers(graph: Graph) -> Graph:
    """Gives nodes outside of any named scope the layer of the parameters they read, else of what they continue.

    Plain JAX code has no scopes; the path of the parameter (`layers/0/w`) names its block just as well.
    """
    layers: dict[Value, str] = {
        value: parameter.name.rpartition("/")[0] or parameter.name for value, parameter in graph.parameters.items()
    }
    of_weights = set(layers)
    result = graph.copy()
    result.nodes = []
    for node in graph.nodes:
        if not node.origin.layer:
            read = [v for v in node.inputs if v in of_weights] or [v for v in node.inputs if v in layers]
            if read:
                node = Node(node.op, node.inputs, node.outputs, replace(node.origin, layer=layers[read[0]]))
        if node.origin.layer:
            layers |= dict.fromkeys(node.outputs, node.origin.layer)
        if isinstance(node.op, (ops.Reshape, ops.Transpose, ops.Reverse)) and node.inputs[0] in of_weights:
            of_weights.add(node.output)
        result.nodes.append(node)
    for node in result.nodes:
        for value in node.outputs:
            value.name = f"{node.origin.layer}/{node.op.name}" if node.origin.layer else node.op.name
    return result
