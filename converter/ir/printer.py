"""Text form of a graph, one node a line."""

from __future__ import annotations

from textwrap import indent

from converter.ir.graph import Graph, Value


def to_text(graph: Graph) -> str:
    """Readable listing: inputs, parameters, constants, nodes with types and origins and bodies, outputs, updates."""
    labels: dict[Value, str] = {}

    def label(value: Value) -> str:
        if value not in labels:
            labels[value] = f"%{len(labels)}"
        return labels[value]

    lines = [f"input {label(v)}: {v.type}  # {v.name}" for v in graph.inputs]
    lines += [f"parameter {label(v)}: {v.type}  # {p.name}" for v, p in graph.parameters.items()]
    for value, array in graph.constants.items():
        shown = f" = {array.tolist()}" if array.size <= 4 else ""
        lines.append(f"constant {label(value)}: {value.type}{shown}")
    for node in graph.nodes:
        results = ", ".join(f"{label(v)}: {v.type}" for v in node.outputs)
        lines.append(f"{results} = {node.op}({', '.join(map(label, node.inputs))})  # {node.origin}")
        for body in node.op.bodies():
            lines += ["  {", indent(to_text(body), "    "), "  }"]
    lines += [f"output {name} = {label(v)}" for name, v in graph.outputs.items()]
    lines += [f"update {label(p)} <- {label(v)}  # {graph.parameters[p].name}" for p, v in graph.updates.items()]
    return "\n".join(lines)
