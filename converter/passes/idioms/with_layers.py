"""Layer names for every node of a model's graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from converter.ir import Graph, Node, Value, ops
from converter.ir.paths import layer_of_weight

#: No layers.
NONE: Mapping[Value, str] = MappingProxyType({})


def with_layers(graph: Graph, operands: Mapping[Value, str] = NONE, weights: Collection[Value] = ()) -> Graph:
    """Gives nodes outside of any named scope the layer of the parameters they read, else of what they continue.

    Plain JAX code has no scopes; the path of the parameter (`layers/0/w`) names its block just as well.

    Args:
        graph: of a model, or the body of a loop in it.
        operands: layers that inputs come from.
        weights: those of the inputs that are parameters.
    """
    named = {v: layer_of_weight(parameter.name) for v, parameter in graph.parameters.items()}
    layers: dict[Value, str] = {**operands, **named}
    of_weights = {*weights, *named}
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
        result.nodes.append(_with_layers_inside(node, layers, of_weights))
    for node in result.nodes:
        for value in node.outputs:
            value.name = f"{node.origin.layer}/{node.op.name}" if node.origin.layer else node.op.name
    return result


def _with_layers_inside(node: Node, layers: Mapping[Value, str], weights: Collection[Value]) -> Node:
    """Return the same for the bodies of a loop."""
    bodies = []
    for body in node.op.bodies():
        pairs = list(zip(body.inputs, node.inputs, strict=True))
        inner = {v: layers[operand] for v, operand in pairs if operand in layers}
        bodies.append(with_layers(body, inner, {v for v, operand in pairs if operand in weights}))
    return replace(node, op=node.op.with_bodies(*bodies)) if bodies else node
