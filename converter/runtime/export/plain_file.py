"""Editor of an exported model's file: parses, changes and reassembles it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from converter.program.flatbuffer import schema
from converter.program.flatbuffer.associated import archive_of, associated_files
from converter.program.flatbuffer.buffers import Buffers
from converter.program.flatbuffer.control_dependencies import ENTRY as CONTROL_DEPENDENCIES
from converter.program.flatbuffer.operators import kind_of
from converter.program.flatbuffer.parts import with_bodies
from converter.program.flatbuffer.schema import generated

#: Element types whose numbers are looked at.
_DTYPES = {
    generated.TensorType.FLOAT32: "<f4",
    generated.TensorType.FLOAT16: "<f2",
    generated.TensorType.INT32: "<i4",
}


class PlainFile:
    """A `.tflite` of which one subgraph runs: that of its only signature, else the first.

    Attributes:
        graph: its subgraph, in the classes of the schema; `write` numbers its tensors again and leaves out what no
            operator uses.
        constants: arrays that take the place of what is stored, by the number of the tensor in `graph`.
    """

    def __init__(self, data: bytes) -> None:
        self._model = generated.Model.GetRootAs(data, 0)
        signed = self._model.SignatureDefsLength() > 0
        self._definition = generated.SignatureDefT.InitFromObj(self._model.SignatureDefs(0)) if signed else None
        self._associated = associated_files(data)
        self._codes = [generated.OperatorCodeT.InitFromObj(code) for code in _each(self._model, "OperatorCodes")]
        self._kinds = [kind_of(code) for code in _each(self._model, "OperatorCodes")]
        subgraph = self._definition.subgraphIndex if self._definition is not None else 0
        self.graph = generated.SubGraphT.InitFromObj(self._model.Subgraphs(subgraph))
        self.constants: dict[int, np.ndarray] = {}

    def kind(self, operator: Any) -> str:
        """Return the builtin that an operator of the graph is."""
        return self._kinds[operator.opcodeIndex]

    def code(self, kind: str, version: int) -> int:
        """Return the number of an operator code, which is made if need be."""
        for number, code in enumerate(self._codes):
            if (self._kinds[number], code.version) == (kind, version):
                return number
        builtin = schema.builtin_code(kind)
        self._codes.append(generated.OperatorCodeT(min(builtin, 127), None, version, builtin))
        self._kinds.append(kind)
        return len(self._codes) - 1

    def add(self, tensor: Any, array: np.ndarray) -> int:
        """Adds a constant to the graph; returns its number."""
        self.graph.tensors.append(tensor)
        number = len(self.graph.tensors) - 1
        self.constants[number] = array
        return number

    def array(self, index: int) -> np.ndarray | None:
        """Return the numbers of a constant of the graph; None for what is computed, and integers of 8 and 16 bits."""
        if index in self.constants:
            return self.constants[index]
        tensor = self.graph.tensors[index]
        stored, dtype = self._model.Buffers(tensor.buffer), _DTYPES.get(tensor.type)
        if not stored.DataLength() or dtype is None:
            return None
        return stored.DataAsNumpy().view(dtype).reshape(tensor.shape)

    def write(self) -> bytes:
        """Return the file."""
        places = self._renumber()
        constants = {places[i]: a for i, a in self.constants.items() if i in places}
        graphs = with_bodies(self._model, self.graph)
        buffers = Buffers()
        for graph in graphs:
            for i, tensor in enumerate(graph.tensors):
                stored = self._model.Buffers(tensor.buffer)
                known = constants.get(i) if graph is self.graph else None
                data = stored.DataAsNumpy() if known is None and stored.DataLength() else known
                tensor.buffer = 0 if data is None else buffers.add(data)
        entries = {}
        for entry in _each(self._model, "Metadata"):
            stored = self._model.Buffers(entry.Buffer())
            # Operators have other numbers now.
            if entry.Name() != CONTROL_DEPENDENCIES.encode() and stored.DataLength():
                entries[entry.Name().decode()] = buffers.add_entry(stored.DataAsNumpy())
        codes = self._used_codes(graphs)
        builder = schema.roomy_builder(buffers.nbytes)
        kept = [code.Pack(builder) for code in codes]
        offsets = schema.offset_vector(builder, buffers.write(builder))
        metadata = [schema.table(builder, "Metadata", Name=name, Buffer=buffer) for name, buffer in entries.items()]
        signatures = [] if self._definition is None else [self._definition.Pack(builder)]
        written = schema.table(
            builder,
            "Model",
            Version=schema.VERSION,
            Description=(self._model.Description() or b"").decode(errors="replace"),
            OperatorCodes=schema.offset_vector(builder, kept),
            Subgraphs=schema.offset_vector(builder, [graph.Pack(builder) for graph in graphs]),
            Buffers=offsets,
            Metadata=schema.offset_vector(builder, metadata),
            SignatureDefs=schema.offset_vector(builder, signatures),
        )
        builder.Finish(written, file_identifier=schema.FILE_IDENTIFIER)
        data = buffers.file(builder)
        return data + archive_of(self._associated, len(data))

    def _used_codes(self, graphs: Sequence[Any]) -> list[Any]:
        """Return the operator codes that are still used, and operators numbered after them."""
        operators = [operator for graph in graphs for operator in graph.operators]
        used = sorted({operator.opcodeIndex for operator in operators})
        for operator in operators:
            operator.opcodeIndex = used.index(operator.opcodeIndex)
        return [self._codes[i] for i in used]

    def _renumber(self) -> dict[int, int]:
        """Leaves out tensors that nobody uses any more; returns the new numbers by the old ones."""
        graph = self.graph
        used = {int(i) for o in graph.operators for i in (*o.inputs, *o.outputs)} | {*graph.inputs, *graph.outputs}
        places = {old: new for new, old in enumerate(sorted(used - {-1}))}
        graph.tensors = [graph.tensors[old] for old in places]
        for operator in graph.operators:
            operator.inputs = _renumbered(operator.inputs, places)
            operator.outputs = _renumbered(operator.outputs, places)
        graph.inputs, graph.outputs = _renumbered(graph.inputs, places), _renumbered(graph.outputs, places)
        if self._definition is not None:
            for entry in (*self._definition.inputs, *self._definition.outputs):
                entry.tensorIndex = places[entry.tensorIndex]
            self._definition.subgraphIndex = 0
        return places


def _renumbered(indices: Iterable[int], places: Mapping[int, int]) -> np.ndarray:
    return np.array([places.get(i, -1) for i in indices], np.int32)


def _each(table: Any, field: str) -> Iterable[Any]:
    return (getattr(table, field)(i) for i in range(getattr(table, f"{field}Length")()))
