"""File layout of an exported inference model: as any other, with holes for what others hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.emit.emit import ModelWriter, Subgraph
from converter.backend.lowering.state import with_own_results
from converter.driver.plain.decided import decided
from converter.ir import Graph, Node, TensorType, Value
from converter.program.assembly import AssembledPart, pack
from converter.program.flatbuffer import schema
from converter.program.flatbuffer.buffers import Buffers
from converter.program.part_buffers import PartBuffers

#: Operators that the delegate runs only on constant filters and biases, with other kernels than the runtime's own.
_CHOOSY = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV")


def assembly_of(name: str, graph: Graph, description: str, program: Buffers) -> bytes:
    """Return the metadata entry of the model that a lowered graph is when its parameters are constants.

    What the parameters decide by plain arithmetic is computed at export (`decided`). A filter or bias that depends on
    the state goes through a RESHAPE, so that it is no constant for the delegate either, which would choose another
    kernel than the session's, whose last bits differ. Of a graph with merged weights, which rounds anyway, all are
    constants.

    Args:
        name: of its only signature.
        graph: lowered and scheduled; its parameters are called as the tensors of the state, or as what is merged.
        description: free text for people.
        program: the buffers of the program; constants that it lacks are added.
    """
    plain, values, known = decided(graph, program.add)
    layout = PartBuffers(program)
    parts = {value: AssembledPart("known", value.type.nbytes, number=place) for value, place in values.items()}
    for value, parameter in plain.parameters.items():
        source: Literal["merged", "state"] = "merged" if parameter.kind == "merged" else "state"
        parts[value] = AssembledPart(source, value.type.nbytes, name=parameter.name)
    if not any(parameter.kind == "merged" for parameter in graph.parameters.values()):
        plain, parts = _keeping_from_delegate(plain, parts)
    for value, part in parts.items():
        plain.constants[value] = hole = np.broadcast_to(value.dtype.type(0), value.shape)
        layout.expect(hole, part)
    plain.parameters, plain.updates = {}, {}
    model = ModelWriter([Subgraph(name, with_own_results(plain))], layout)
    builder = schema.roomy_builder(layout.nbytes)
    model.write(builder, description, {})
    parts_of_file, own = layout.cut(memoryview(builder.Bytes)[builder.Head() :])
    return pack(parts_of_file, known, own)


def _keeping_from_delegate(
    graph: Graph, parts: Mapping[Value, AssembledPart]
) -> tuple[Graph, dict[Value, AssembledPart]]:
    """Of the filter and bias of each such operator the first one that is a part becomes the result of a RESHAPE."""
    choosy = [node for node in graph.nodes if isinstance(node.op, tfl.Builtin) and node.op.code in _CHOOSY]
    firsts = [next((value for value in _weights(node) if value in parts), None) for node in choosy]
    flat = {v: Value(TensorType((v.type.size,), v.dtype), v.name) for v in firsts if v is not None}
    after = graph.copy()
    after.nodes = [*(Node(tfl.Reshape(v.shape), (stored,), (v,)) for v, stored in flat.items()), *graph.nodes]
    return after, {flat.get(value, value): part for value, part in parts.items()}


def _weights(node: Node) -> list[Value]:
    """Filter and bias: all but the data, which may be a part too, as a trained image is."""
    data = 1 if isinstance(node.op, tfl.TransposeConv) else 0
    return [value for place, value in enumerate(node.inputs) if place != data]
