"""Puts an optimizer's update into a training graph, after the gradients."""

from __future__ import annotations

from converter.ir import Builder, Graph, Node, Origin, Parameter, TensorType, Value, View, ops
from converter.ir.paths import layer_of_weight
from converter.training.optim.program import GRADIENT, LOSS, PARAMETER, UPDATE, OptimizerProgram
from converter.training.optim.simplify import simplify


def apply_updates(
    graph: Graph,
    gradients: dict[Value, Value],
    program: OptimizerProgram,
    learning_rate: Value | None,
    loss: Value | None = None,
) -> Graph:
    """Return the graph with `updates` for every trained parameter and every slot: parameter + learning_rate * update.

    What the program does after its update comes last.

    Args:
        graph: holds the parameters and their gradients.
        gradients: for each trained parameter its gradient, of the same type.
        program: traced for exactly these parameters, by name.
        learning_rate: float32[1], an input of the graph; None where it multiplies the gradients already.
        loss: what the gradients are of, []; only a program that reads it needs it.

    Raises:
        ValueError: the program was traced for other parameters.
    """
    values = {graph.parameters[p].name: p for p in gradients}
    if set(values) != set(program.parameters):
        odd = sorted(set(values) ^ set(program.parameters))
        raise ValueError(f"the optimizer was traced for other parameters: {', '.join(odd)}")
    step = simplify(_step(program, learning_rate is not None))
    result = graph.copy()
    slots: dict[str, Value] = {}
    for name, array in program.slots.items():
        slot = Parameter(name, array, program.views.get(name, View()), kind="slot")
        slots[name] = Value(TensorType(slot.value.shape), name)
        result.parameters[slots[name]] = slot
    bound = dict(slots) if learning_rate is None else {"learning_rate": learning_rate, **slots}
    for name, value in values.items():
        bound |= {PARAMETER + name: value, GRADIENT + name: gradients[value]}
    if loss is not None:
        bound[LOSS] = loss
    b = Builder(result)
    step = _placed(step, {name: layer_of(graph, value) for name, value in values.items()})
    outputs = b.inline(step, [bound[v.name] for v in step.inputs])
    result.updates |= {values[name]: outputs[PARAMETER + name] for name in program.parameters}
    result.updates |= {slot: outputs[name] for name, slot in slots.items()}
    return result


def _step(program: OptimizerProgram, with_rate: bool) -> Graph:
    """Return the program, the input `learning_rate` too, with the parameters' next values in place of the updates."""
    b = Builder()
    inputs = [b.input(v.name, v.type) for v in program.graph.inputs]
    rate = b.reshape(b.input("learning_rate", TensorType((1,))), ()) if with_rate else b.constant(1.0)
    made = b.inline(program.graph, inputs)
    by_name = {v.name: v for v in inputs}
    for name in program.parameters:
        scaled = b(ops.Mul(), made[UPDATE + name], rate)
        b.graph.outputs[PARAMETER + name] = b(ops.Add(), by_name[PARAMETER + name], scaled)
    b.graph.outputs |= {name: made[name] for name in program.slots}
    if program.finish is not None:
        b.graph.outputs |= b.inline(program.finish, [b.graph.outputs[v.name] for v in program.finish.inputs])
    return b.graph


def layer_of(graph: Graph, parameter: Value) -> str:
    """Return the layer that reads the parameter, or the path it has in the model."""
    readers = (n.origin.layer for n in graph.nodes if parameter in n.inputs and n.origin.layer)
    return next(readers, layer_of_weight(graph.parameters[parameter].name))


def _placed(step: Graph, layers: dict[str, str]) -> Graph:
    """Return every node of the step in phase "update", in the layer of the only parameter it works for."""
    owners: dict[Value, frozenset[str]] = {}
    for value in step.inputs:
        prefix, _, name = value.name.partition("/")
        owners[value] = frozenset([name]) if prefix in ("gradient", "parameter") else frozenset()
    placed = step.copy()
    placed.nodes = []
    for node in step.nodes:
        owner = frozenset().union(*(owners.get(v, frozenset()) for v in node.inputs))
        owners |= dict.fromkeys(node.outputs, owner)
        layer = layers[next(iter(owner))] if len(owner) == 1 else "optimizer"
        origin = Origin(layer, "", "update")
        placed.nodes.append(Node(node.op, node.inputs, node.outputs, origin))
    return placed
