"""State lowering: the variables of a scheduled graph's parameters, read, written, and accumulators cleared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from converter.backend import builtins as tfl
from converter.ir import INT8, Graph, Node, Origin, Parameter, TensorType, Value
from converter.ir.described import is_uniform
from converter.ir.types import FLOAT32, NOWHERE, RESOURCE

UINT8 = np.dtype(np.uint8)
#: Of the operators that set, clear and acknowledge state.
_STATE = NOWHERE.in_phase("update")
#: Name of the subgraph that gives the variables their built values.
INITIAL = "initial_state"


def with_variables(graph: Graph, clears: bool = False) -> Graph:
    """Return parameters as resource variables, shared by name among the signatures of a program.

    At its end the graph `clears` the accumulators for the next step.

    One VAR_HANDLE a variable and one READ_VARIABLE a use (a read with two consumers is copied inside XNNPACK); a new
    value is assigned right after it is made and read again by whoever needs it after that. An uninitialised variable
    reads as garbage, so every subgraph first calls the initial state once.
    """
    export = _Export(graph)
    for node in graph.nodes:
        export.add(node)
    after = export.finish()
    if clears:  # an optimizer may leave a weight as it is, whatever its gradient
        accumulators = {v: p for v, p in _kept_and_accumulators(graph)[1].items() if v in export.handles}
        _assign_initial(after, export.handles, accumulators)
    return after


class _Export:
    def __init__(self, graph: Graph) -> None:
        self.before = graph
        self.after = Graph(list(graph.inputs), dict(graph.constants), {}, [], dict(graph.outputs), {})
        touched = {v for n in graph.nodes for v in n.inputs} | set(graph.outputs.values()) | set(graph.updates)
        used = [v for v in graph.parameters if v in touched]
        if used:
            self.after.nodes.append(Node(tfl.CallOnce(INITIAL), (), (), _STATE))
        self.handles = {v: self._handle(v) for v in used}
        self.readers_left = {v: len(nodes) for v, nodes in graph.consumers().items()}
        self.targets: dict[Value, list[Value]] = {}
        #: parameter -> the one whose value it takes over; such a copy is one more reader of that value.
        self.copies: dict[Value, Value] = {}
        for parameter, new in graph.updates.items():
            self.targets.setdefault(new, []).append(parameter)
            if new in self.handles and new is not parameter:
                self.copies[parameter] = new
                self.readers_left[new] = self.readers_left.get(new, 0) + 1
        self.pending: dict[Value, Value] = {}  # parameter -> new value that waits for readers of the old one
        self.assigned: dict[Value, Value] = {}  # new value -> the parameter that holds it
        self.copy()

    def _handle(self, parameter: Value) -> Value:
        handle = Value(TensorType((1,), RESOURCE), f"{parameter.name}/handle")
        name = self.before.parameters[parameter].name
        self.after.nodes.append(Node(tfl.VarHandle(name), (), (handle,), _STATE))
        return handle

    def read(self, parameter: Value, origin: Origin) -> Value:
        value = Value(parameter.type, f"{parameter.name}/read")
        self.after.nodes.append(Node(tfl.ReadVariable(parameter.type), (self.handles[parameter],), (value,), origin))
        return value

    def add(self, node: Node) -> None:
        held = [self.assigned.get(value, value) for value in node.inputs]
        if any(parameter in self.handles for parameter in held):
            pairs = zip(held, node.inputs, strict=True)
            inputs = tuple(self.read(p, node.origin) if p in self.handles else value for p, value in pairs)
            self.after.nodes.append(replace(node, inputs=inputs))
        else:
            self.after.nodes.append(node)
        for value in dict.fromkeys(node.inputs):
            self.readers_left[value] -= 1
        for value in node.outputs:
            for parameter in self.targets.get(value, ()):
                self.pending[parameter] = value
        self.copy()
        for parameter, value in list(self.pending.items()):
            if not self.readers_left.get(parameter, 0):
                self.assign(parameter, value, node.origin)

    def copy(self) -> None:
        """Parameters whose old value nobody needs any more take over that of another, while that is the old one."""
        while ready := [p for p in self.copies if not self.readers_left.get(p, 0)]:
            for parameter in ready:
                source = self.copies.pop(parameter)
                self._set(parameter, self.read(source, _STATE), _STATE)
                self.readers_left[source] -= 1

    def assign(self, parameter: Value, value: Value, origin: Origin) -> None:
        del self.pending[parameter]
        self._set(parameter, value, origin)
        self.assigned.setdefault(value, parameter)

    def _product(self, value: Value) -> Value:
        """Return the value times 1: a tensor of its own, where a read may be the variable's."""
        one, product = Value(TensorType((1,)), "one"), Value(value.type, value.name)
        self.after.constants[one] = np.ones(1, np.float32)
        self.after.nodes.append(Node(tfl.Mul(), (value, one), (product,), _STATE))
        return product

    def _set(self, parameter: Value, value: Value, origin: Origin) -> None:
        self.after.nodes.append(Node(tfl.AssignVariable(), (self.handles[parameter], value), (), origin))

    def finish(self) -> Graph:
        # What is left are values that change places: all are taken before any is given.
        taken = {parameter: self._product(self.read(source, _STATE)) for parameter, source in self.copies.items()}
        for parameter, value in taken.items():
            self._set(parameter, value, _STATE)
        for parameter, value in self.before.updates.items():
            if value in self.before.constants or value in self.before.inputs:
                self._set(parameter, value, _STATE)
        for name, value in self.after.outputs.items():
            if value in self.handles:
                self.after.outputs[name] = self.read(value, NOWHERE)
        return self.after


def with_state_as_arguments(graph: Graph) -> Graph:
    """Make parameters inputs of the signature and their new values outputs of the same name: for GPUs and NPUs."""
    after = graph.copy()
    names = {v: p.name for v, p in graph.parameters.items()}
    after.parameters = {}
    renamed = {v: Value(v.type, name) for v, name in names.items()}
    after.inputs = [*graph.inputs, *renamed.values()]
    after.nodes = [replace(n, inputs=tuple(renamed.get(v, v) for v in n.inputs)) for n in graph.nodes]
    after.outputs = {k: renamed.get(v, v) for k, v in graph.outputs.items()}
    after.outputs |= {names[p]: renamed.get(v, v) for p, v in graph.updates.items()}
    after.updates = {}
    return after


def with_own_state_as_arguments(graph: Graph) -> Graph:
    """Return the same for signatures that share a step: each takes what it reads, and gives what it changes."""
    own = graph.copy()
    own.updates = {parameter: new for parameter, new in graph.updates.items() if new is not parameter}
    read = {v for node in graph.nodes for v in node.inputs} | {*graph.outputs.values(), *own.updates.values()}
    after = with_state_as_arguments(own)
    # An optimizer may leave a weight as it is, whatever gradient is handed to it.
    given = {v for v, p in graph.parameters.items() if p.kind == "accumulator" and v not in graph.updates}
    unread = {p.name for v, p in graph.parameters.items() if v not in read | given}
    after.inputs = [v for v in after.inputs if v.name not in unread]
    return after


#: The exports whose state is passed in and out, by the manifest's word for them.
AS_ARGUMENTS: dict[str, Callable[[Graph], Graph]] = {
    "stateless": with_state_as_arguments,
    "split": with_own_state_as_arguments,
}


def initial_states(graph: Graph) -> tuple[Graph, Graph]:
    """Return the signature `initialize(tick) -> done`, every parameter back to what was built, and the initial state.

    That has neither inputs nor outputs and does the same. Both run one subgraph: of thousands of tensors the runtime
    would else keep megabytes of operators twice.
    """
    body = _assigning(graph.parameters, Graph())
    loop = tfl.one_step(body, _STATE)

    def running(after: Graph) -> Graph:
        counter = Value(tfl.COUNTER, "counter")
        after.constants[counter] = np.zeros(1, np.int32)
        after.nodes.append(Node(loop, (counter,), (Value(tfl.COUNTER, "counted"),), _STATE))
        return after

    tick = Value(TensorType((1,), FLOAT32), "tick")
    return with_done(running(Graph([tick])), tick), running(Graph())


def save(graph: Graph) -> Graph:
    """Return the signature `save(tick) -> every state tensor`. Java refuses to call a signature without inputs."""
    kept, _ = _kept_and_accumulators(graph)
    reading = Graph([Value(TensorType((1,), FLOAT32), "tick")], {}, kept)
    reading.outputs = {p.name: v for v, p in kept.items()}
    after = _Export(reading).finish()
    for name, value in after.outputs.items():
        if value.dtype == INT8:
            after.outputs[name] = passed = Value(_passed(value.type), name)
            after.nodes.append(Node(tfl.Bitcast(UINT8), (value,), (passed,), _STATE))
    return after


def restore(graph: Graph) -> Graph:
    """Return the signature `restore(every state tensor) -> done`; it clears the accumulators."""
    kept, accumulators = _kept_and_accumulators(graph)
    given = {v: Value(_passed(v.type), p.name) for v, p in kept.items()}
    writing = Graph(list(given.values()), {}, kept, [], {}, dict(given))
    for value in (v for v in kept if v.dtype == INT8):
        writing.updates[value] = Value(value.type, value.name)
        writing.nodes.append(Node(tfl.Bitcast(INT8), (given[value],), (writing.updates[value],), _STATE))
    export = _Export(writing)
    for node in writing.nodes:
        export.add(node)
    after = _assigning(accumulators, export.finish())
    smallest = min((v for v in given.values() if v.dtype == FLOAT32), key=lambda v: v.type.size)
    return with_done(after, smallest)


def _passed(type: TensorType) -> TensorType:
    """Return the type in which a state tensor comes and goes: int8 as uint8 of the same bits, as LiteRT.js has none."""
    return TensorType(type.shape, UINT8) if type.dtype == INT8 else type


def _kept_and_accumulators(graph: Graph) -> tuple[dict[Value, Parameter], dict[Value, Parameter]]:
    """Return the parameters that outlive a step, and those that are zero between two."""
    kept = {v: p for v, p in graph.parameters.items() if p.kind != "accumulator"}
    return kept, {v: p for v, p in graph.parameters.items() if v not in kept}


def _assigning(parameters: Mapping[Value, Parameter], after: Graph) -> Graph:
    """Adds assignments of the built values of parameters."""
    handles = {v: Value(TensorType((1,), RESOURCE), f"{v.name}/handle") for v in parameters}
    after.nodes += [Node(tfl.VarHandle(p.name), (), (handles[v],), _STATE) for v, p in parameters.items()]
    _assign_initial(after, handles, parameters)
    return after


def _assign_initial(after: Graph, handles: Mapping[Value, Value], parameters: Mapping[Value, Parameter]) -> None:
    """Adds assignments of the built values of parameters, those of one number and shape one after the other."""
    uniform: dict[tuple[TensorType, bytes], list[Value]] = {}
    for value, parameter in parameters.items():
        array = parameter.value.reshape(value.shape)
        if is_uniform(array):
            uniform.setdefault((value.type, array.flat[:1].tobytes()), []).append(value)
        else:
            initial = Value(value.type, f"{value.name}/initial")
            after.constants[initial] = array
            after.nodes.append(Node(tfl.AssignVariable(), (handles[value], initial), (), _STATE))
    for values in uniform.values():  # the slots of an optimizer begin at zero: no need to carry all of it
        initial = _filled(after, values[0], parameters[values[0]].value.reshape(values[0].shape))
        after.nodes += [Node(tfl.AssignVariable(), (handles[v], initial), (), _STATE) for v in values]


def _filled(after: Graph, value: Value, array: np.ndarray) -> Value:
    """Return what one number fills, as all of an array."""
    one = Value(value.type.with_shape((1,) * array.ndim), f"{value.name}/element")
    after.constants[one] = array.flat[:1].reshape(one.shape)
    # The delegate runs PAD, and has no partition for each tensor then.
    by_padding = not array.flat[0] and array.ndim <= 5
    grow = tfl.Pad(tuple((0, d - 1) for d in value.shape)) if by_padding else tfl.BroadcastTo(value.shape)
    initial = Value(value.type, f"{value.name}/initial")
    after.nodes.append(Node(grow, (one,), (initial,), _STATE))
    return initial


def with_done(after: Graph, value: Value) -> Graph:
    """Adds an output `done` [1], zero, made from some value: a signature must return something."""
    first = Value(TensorType((1,), FLOAT32), "first")
    done = Value(TensorType((1,), FLOAT32), "done")
    flat = Value(TensorType((value.type.size,), FLOAT32), "flat")
    zero = Value(TensorType((1,), FLOAT32), "zero")
    after.constants[zero] = FLOAT32.type(0).reshape(1)
    after.nodes.append(Node(tfl.Reshape(flat.shape), (value,), (flat,), _STATE))
    after.nodes.append(Node(tfl.Slice((0,), (1,)), (flat,), (first,), _STATE))
    after.nodes.append(Node(tfl.Mul(), (first, zero), (done,), _STATE))
    after.outputs["done"] = done
    return after


def with_own_results(graph: Graph) -> Graph:
    """Return outputs that no operator makes, or that have a second name, are copied.

    A signature has as many results as its subgraph, each some operator's.
    """
    free = {value for node in graph.nodes for value in node.outputs}
    after = graph.copy()
    for name, value in graph.outputs.items():
        if value in free:
            free.remove(value)
        else:
            after.outputs[name] = Value(value.type, name)
            after.nodes.append(Node(tfl.Reshape(value.shape), (value,), (after.outputs[name],)))
    return after
