"""File layout of an exported inference model: as any other, with holes for what others hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import flatbuffers
import numpy as np

from converter.driver.plain.decided import decided
from converter.ir import Graph, Node, TensorType, Value, stored_bytes
from converter.program.assembly import AssembledPart, pack
from converter.program.flatbuffer import schema
from converter.program.flatbuffer.buffers import Buffers
from converter.tflite import builtins as tfl
from converter.tflite.emit.emit import ModelWriter, Subgraph
from converter.tflite.lowering.state import with_own_results

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
    layout = Layout(program)
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


class Layout(Buffers):
    """The buffers of a plain model: for each the part that it is, and no data."""

    def __init__(self, program: Buffers) -> None:
        super().__init__()
        self._program = program
        self._parts: list[AssembledPart] = []
        self._numbers: dict[int, int] = {}  # by the number in the program
        self._holes: dict[int, tuple[np.ndarray, AssembledPart]] = {}  # by the identity of the array, which is kept

    def expect(self, hole: np.ndarray, part: AssembledPart) -> None:
        """What the array stands for that `add` will be given: a buffer of its own, never shared with an equal one."""
        self._holes[id(hole)] = hole, part

    def add(self, data: bytes | np.ndarray) -> int:
        if (hole := self._holes.get(id(data))) is not None:
            return self._append(hole[1])
        number = self._program.add(data)
        if number not in self._numbers:
            nbytes = stored_bytes(data.size, data.dtype) if isinstance(data, np.ndarray) else len(data)
            self._numbers[number] = self._append(AssembledPart("buffer", nbytes, number=number))
        return self._numbers[number]

    def add_half(self, array: np.ndarray) -> int:
        """Return the index of the buffer that holds float16 numbers, which the program may hold as float32."""
        if self._program.find(array) is not None:
            return self.add(array)
        number = self._program.find(array.astype("<f4"))
        if number is None or not array.size:
            return self.add(array.view(np.uint8))
        if -number not in self._numbers:
            self._numbers[-number] = self._append(AssembledPart("half", array.nbytes, number=number))
        return self._numbers[-number]

    def _append(self, part: AssembledPart) -> int:
        self._parts.append(part)
        self.nbytes += part.nbytes + 2 * schema.ALIGNMENT
        return len(self._parts)

    def write(self, builder: flatbuffers.Builder) -> list[int]:
        self._rooms = [schema.aligned_space(builder, part.nbytes) for part in self._parts]
        return [schema.table(builder, "Buffer"), *(schema.table(builder, "Buffer", Data=v) for v in self._rooms)]

    def cut(self, file: memoryview) -> tuple[list[AssembledPart], bytes]:
        """Return the file in parts, and the bytes of those that are no buffer."""
        parts, own, end = list[AssembledPart](), list[memoryview](), 0
        # A vector begins with its length; its place counts from the end of the file.
        places = [(len(file) - vector + 4, part) for vector, part in zip(self._rooms, self._parts, strict=True)]
        for start, part in sorted(places, key=lambda place: place[0]):
            own.append(file[end:start])
            parts += [AssembledPart("own", start - end), part]
            end = start + part.nbytes
        own.append(file[end:])
        return [*parts, AssembledPart("own", len(file) - end)], b"".join(own)
