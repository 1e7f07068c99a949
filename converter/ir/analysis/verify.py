"""IR verifier, run after every stage in tests."""

from __future__ import annotations

from converter.ir.graph import Graph


class VerifyError(AssertionError):
    """A stage produced a malformed graph: a defect of the compiler, never of the user's model."""


def verify(graph: Graph, after: str = "") -> Graph:
    """Checks single assignment, topological order, types and names. Returns the graph. Raises VerifyError."""

    def fail(text: str) -> None:
        raise VerifyError(f"{text}{f' (after {after})' if after else ''}")

    defined = [*graph.inputs, *graph.constants, *graph.parameters]
    known = set(defined)
    if len(known) != len(defined):
        fail("a value is both input, constant or parameter")
    for value, array in graph.constants.items():
        if array.shape != value.shape or array.dtype != value.dtype:
            fail(f"constant {value} holds {array.dtype}{list(array.shape)}")
    for value, parameter in graph.parameters.items():
        stored = parameter.value
        # What a kernel reads of a scalar has one axis, and the parameter keeps the user's shape.
        if (stored.shape != value.shape and (stored.shape, value.shape) != ((), (1,))) or stored.dtype != value.dtype:
            fail(f"parameter {parameter.name} is declared {value.type} and stores {stored.dtype}{list(stored.shape)}")
    for node in graph.nodes:
        for value in node.inputs:
            if value not in known:
                fail(f"{node!r} reads {value!r} before it is made")
        for body in node.op.bodies():
            verify(body, after)
        types = node.op.infer(*(v.type for v in node.inputs))
        types = types if isinstance(types, tuple) else (types,)
        if types != tuple(v.type for v in node.outputs):
            fail(f"{node!r} should produce {', '.join(map(str, types))}")
        for value in node.outputs:
            if value in known:
                fail(f"{value!r} is made twice")
            known.add(value)
    for name, value in graph.outputs.items():
        if value not in known:
            fail(f"output {name} is never made")
    for target, value in graph.updates.items():
        if target not in graph.parameters:
            fail(f"update of {target!r}, which is no parameter")
        if value not in known:
            fail(f"the new value of {graph.parameters[target].name} is never made")
        if value.type != target.type:
            fail(f"{graph.parameters[target].name}: {target.type} is updated with {value.type}")
    graph.parameter_names()
    return graph
