"""Cut of a forward graph at the first trained layer: the part before it is computed once a sample, not once a step."""

from __future__ import annotations

from dataclasses import replace

from converter.ir import Builder, Graph, Value, dependents, ops
from converter.ir.rewrite import eliminate_dead_code

#: What moves the rows of one value to another axis.
_MOVES = (ops.Reshape, ops.Transpose, ops.BroadcastTo)


def has_frozen_prefix(graph: Graph) -> bool:
    """Return whether anything is computed before the first parameter takes part."""
    return not set(crossing(graph)) <= set(graph.inputs)


def cut_frozen_prefix(graph: Graph) -> tuple[Graph, Graph]:
    """Return the part of a model that no parameter takes part in, and the rest.

    Before: x -> f -> g(W) -> output.   After: x -> f -> `features`, and `features` -> g(W) -> output.

    Args:
        graph: a forward graph whose frozen weights are constants.

    Returns:
        The prefix, from the model's inputs to `features` (`features_0`, ... when several values cross the cut), and the
        rest with these as its inputs. What trains in part leaves its frozen half in the prefix. Of a single row the
        features have an axis for it too, which what crosses may lack.
    """
    trained, fed, crossed = _of_each_step(graph), dependents(graph, graph.inputs), crossing(graph)
    names = ["features"] if len(crossed) == 1 else [f"features_{i}" for i in range(len(crossed))]
    prefix = graph.copy()
    prefix.parameters, prefix.outputs = {}, {}
    kept, read = Builder(prefix), Builder()
    bound: dict[Value, Value] = {}
    for value, name in zip(crossed, names, strict=True):
        lacks_rows = graph.inputs[0].shape[0] == 1 and value.shape[:1] != (1,)
        given = kept.reshape(value, (1, *value.shape)) if lacks_rows else value
        prefix.outputs[name] = given
        bound[value] = read.reshape(read.input(name, given.type), value.shape)
    rest = graph.copy()
    rest.inputs = read.graph.inputs
    rest.nodes = [
        *read.graph.nodes,
        *(
            replace(node, inputs=tuple(bound.get(v, v) for v in node.inputs))
            for node in graph.nodes
            if node.outputs[0] in trained or node.outputs[0] not in fed
        ),
    ]
    rest.outputs = {name: bound.get(value, value) for name, value in graph.outputs.items()}
    return eliminate_dead_code(prefix), eliminate_dead_code(rest)


def crossing(graph: Graph) -> list[Value]:
    """Return what depends on the inputs, is always the same, and is read by what is not, or is an output."""
    trained, fed = _of_each_step(graph), dependents(graph, graph.inputs)
    read = [v for node in graph.nodes if node.outputs[0] in trained for v in node.inputs]
    return [v for v in dict.fromkeys([*read, *graph.outputs.values()]) if v in fed and v not in trained]


def _of_each_step(graph: Graph) -> set[Value]:
    """Return what changes, and what it reads of rows that were moved to another axis, as those of a mask are.

    A kept value has the batch as its first axis, so the move is left to the step. Of a single row each value has it.
    """
    found, rows = _changing(graph), graph.inputs[0].shape[:1]
    if rows == (1,):
        return found
    read = {value for node in graph.nodes if node.outputs[0] in found for value in node.inputs}
    for node in reversed(graph.nodes):
        value = node.outputs[0]
        if isinstance(node.op, _MOVES) and value in read - found and value.shape[:1] != rows:
            found.add(value)
            read.update(node.inputs)
    return found


def _changing(graph: Graph) -> set[Value]:
    """Return what a parameter takes part in, a dropout (its masks change), or a probe (no gradient before it)."""
    marks = (ops.Dropout, ops.InTraining, ops.CallKey, ops.Probe)
    marked = [node.output for node in graph.nodes if isinstance(node.op, marks)]
    return dependents(graph, [*graph.parameters, *marked])


def join(prefix: Graph, rest: Graph) -> Graph:
    """Return one graph again: the inputs of `rest` that are called like an output of `prefix` are these.

    Parameters of one name are one, with the update of `rest`. A graph that has no such inputs stays as it is.
    """
    bound = {value: prefix.outputs[value.name] for value in rest.inputs if value.name in prefix.outputs}
    if not bound:
        return rest
    names = rest.parameter_names()
    shared = {value: names[p.name] for value, p in prefix.parameters.items() if p.name in names}
    prefix_nodes = [replace(node, inputs=tuple(shared.get(v, v) for v in node.inputs)) for node in prefix.nodes]
    joined = Graph(
        [*prefix.inputs, *(v for v in rest.inputs if v not in bound)],
        prefix.constants | rest.constants,
        rest.parameters | {value: p for value, p in prefix.parameters.items() if value not in shared},
        [*prefix_nodes, *(replace(node, inputs=tuple(bound.get(v, v) for v in node.inputs)) for node in rest.nodes)],
    )
    joined.outputs = {name: bound.get(value, value) for name, value in rest.outputs.items()}
    joined.updates = {shared.get(parameter, parameter): value for parameter, value in prefix.updates.items()}
    joined.updates |= {parameter: bound.get(value, value) for parameter, value in rest.updates.items()}
    return eliminate_dead_code(joined)
