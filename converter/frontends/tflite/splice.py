"""Exported model of a file: the author's own, with trained weights and new layers in place of the old ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np

from converter.backend.emit.emit import ModelWriter, Subgraph
from converter.backend.lowering.state import with_own_results
from converter.frontends.tflite.graft import Graft
from converter.frontends.tflite.metadata import ENTRY as METADATA
from converter.frontends.tflite.reading.file import reading
from converter.ir import Graph
from converter.program.assembly import AssembledPart, pack
from converter.program.flatbuffer import schema
from converter.program.flatbuffer.associated import archive_of
from converter.program.flatbuffer.buffers import Buffers
from converter.program.flatbuffer.control_dependencies import ENTRY as CONTROL_DEPENDENCIES
from converter.program.flatbuffer.schema import generated
from converter.program.part_buffers import PartBuffers

#: Fields of options that number subgraphs, of operators that lowering makes.
_BODIES = {generated.WhileOptionsT: ("condSubgraphIndex", "bodySubgraphIndex")}
#: The version with which QUANTIZE began to make each type of integers.
_QUANTIZE = {generated.TensorType.INT16: 3, generated.TensorType.INT8: 2, generated.TensorType.UINT8: 1}


def assembly_of_graft(graft: Graft, suffix: Graph | None, program: Buffers) -> bytes:
    """Return the metadata entry of the file that a graft is when weights are known; see `assembly_of`.

    All that did not train is the file's own: operators, constants in their types, names, signatures, metadata and the
    files that are appended.

    Args:
        graft: what stays of the file.
        suffix: what is computed again, lowered and scheduled.
        program: the buffers of the program; constants that it lacks are added.

    Raises:
        UsageError: the file is damaged, in parts that only this reads.
    """
    with reading(graft.file.path):
        splice = _Splice(graft, PartBuffers(program))
        splice.put_weights()
        if suffix is not None:
            splice.put_suffix(suffix)
        splice.give_outputs()
        splice.leave_out_unused()
        parts, own = splice.written()
    archive = archive_of(graft.file.associated, sum(part.nbytes for part in parts))
    if archive:
        parts, own = [*parts, AssembledPart("own", len(archive))], own + archive
    return pack(parts, [], own)


class _Splice:
    """The tables of a file while they are changed."""

    def __init__(self, graft: Graft, layout: PartBuffers) -> None:
        self._graft, self._layout, self._source = graft, layout, graft.file.tables[0]
        self.model = generated.ModelT.InitFromObj(self._source)
        self.graph = self.model.subgraphs[graft.file.subgraph]
        self._given: dict[int, int] = {}  # tensors that stand in the place of outputs
        # Until it is known which are used, buffers of the file have negative numbers, and those of the layout others.
        for tensor in (tensor for graph in self.model.subgraphs for tensor in graph.tensors):
            tensor.buffer = -tensor.buffer

    def _buffer(self, tensor: Any) -> int:
        """Return the buffer of a tensor in the layout."""
        if tensor.buffer >= 0:
            return tensor.buffer
        stored = self._source.Buffers(-tensor.buffer)
        if not stored.DataLength():
            return 0
        data = stored.DataAsNumpy()
        if tensor.type == generated.TensorType.FLOAT16 and tensor.sparsity is None:
            return self._layout.add_half(data.view("<f2"))
        return self._layout.add(data)

    def put_weights(self) -> None:
        """Put what trained in the place of the constants that operators read."""
        made: dict[tuple[str, int], int] = {}
        for (operator, place), name in self._graft.weights.items():
            table = self.graph.operators[operator]
            operands = np.array(table.inputs, np.int32)
            number = int(operands[place])
            if (name, number) not in made:
                made[name, number] = self._weight(name, number)
            operands[place] = made[name, number]
            table.inputs = operands

    def _weight(self, name: str, number: int) -> int:
        tensor = copy(self.graph.tensors[number])
        tensor.type, tensor.quantization, tensor.sparsity = generated.TensorType.FLOAT32, None, None
        shape = tuple(int(n) for n in tensor.shape) if tensor.shape is not None else ()
        hole = np.broadcast_to(np.float32(0), shape)
        self._layout.expect(hole, AssembledPart("weight", hole.nbytes, name=name))
        tensor.buffer = self._layout.add(hole)
        return self._add(tensor)

    def _add(self, tensor: Any) -> int:
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def put_suffix(self, suffix: Graph) -> None:
        """Put the operators of a lowered graph after those of the file."""
        graph = with_own_results(suffix)
        graph.constants = dict(graph.constants)
        for value, parameter in graph.parameters.items():
            graph.constants[value] = hole = np.broadcast_to(value.dtype.type(0), value.shape)
            self._layout.expect(hole, AssembledPart("weight", value.type.nbytes, name=parameter.name))
        graph.parameters, graph.updates = {}, {}
        writer = ModelWriter([Subgraph("suffix", graph)], self._layout)
        builder = schema.roomy_builder(self._layout.nbytes)
        writer.write(builder, "", {})
        other = generated.ModelT.InitFromObj(
            generated.Model.GetRootAs(memoryview(builder.Bytes)[builder.Head() :].tobytes(), 0)
        )
        codes = [self._code(code) for code in other.operatorCodes]
        bodies = range(len(self.model.subgraphs), len(self.model.subgraphs) + len(other.subgraphs) - 1)
        self.model.subgraphs += other.subgraphs[1:]
        for operator in (operator for graph in other.subgraphs for operator in graph.operators):
            operator.opcodeIndex = codes[operator.opcodeIndex]
            for field in _BODIES.get(type(operator.builtinOptions), ()):
                setattr(operator.builtinOptions, field, bodies[getattr(operator.builtinOptions, field) - 1])
        self._join(other.subgraphs[0], other.signatureDefs[0])

    def _join(self, suffix: Any, signature: Any) -> None:
        """Put the first subgraph of another file after the file's, bound by the names of its signature."""
        numbers = {entry.tensorIndex: _number(entry.name) for entry in signature.inputs}
        for place, tensor in enumerate(suffix.tensors):
            if place not in numbers:
                numbers[place] = self._add(tensor)
        for operator in suffix.operators:
            operator.inputs = _renumbered(operator.inputs, numbers)
            operator.outputs = _renumbered(operator.outputs, numbers)
        self.graph.operators += suffix.operators
        for entry in signature.outputs:
            self._given[_number(entry.name)] = numbers[entry.tensorIndex]

    def _code(self, code: Any) -> int:
        """Return the number of an operator code, which is added where there is none."""
        # Files of old have the first field alone.
        said = [_said(code) for code in self.model.operatorCodes]
        wanted = _said(code)
        if wanted not in said:
            self.model.operatorCodes.append(code)
            return len(said)
        return said.index(wanted)

    def give_outputs(self) -> None:
        """Put what is computed again in the place of outputs, under their names."""
        for number, instead in self._given.items():
            old = self.graph.tensors[number]
            if number in self._graft.quantized:
                self._given[number] = self._quantized(old, instead)
            new = self.graph.tensors[self._given[number]]
            new.name = old.name
            if old.shapeSignature is not None and len(old.shapeSignature) == len(new.shape):
                # Which axes are open: the last one may be longer.
                open_axes = [was if was == -1 else now for was, now in zip(old.shapeSignature, new.shape, strict=True)]
                new.shapeSignature = np.array(open_axes, np.int32)
        given = {**self._given, **self._graft.moved}
        self.graph.outputs = np.array(
            [given.get(int(i), int(i)) for i in self.graph.outputs if int(i) not in self._graft.lost], np.int32
        )
        for signature in self._signatures():
            kept = [entry for entry in signature.outputs if entry.tensorIndex not in self._graft.lost]
            for entry in kept:
                entry.tensorIndex = given.get(entry.tensorIndex, entry.tensorIndex)
            signature.outputs = kept

    def _quantized(self, like: Any, number: int) -> int:
        """Return a tensor of the integers of another one that stand for what a tensor holds."""
        tensor = copy(like)
        tensor.shape, tensor.shapeSignature = self.graph.tensors[number].shape, None
        code = generated.BuiltinOperator.QUANTIZE
        operator = generated.OperatorT(
            opcodeIndex=self._code(generated.OperatorCodeT(code, None, _QUANTIZE[like.type], code)),
            inputs=np.array([number], np.int32),
            outputs=np.array([self._add(tensor)], np.int32),
        )
        self.graph.operators.append(operator)
        return int(operator.outputs[0])

    def _signatures(self) -> list[Any]:
        signatures = self.model.signatureDefs or []
        return [signature for signature in signatures if signature.subgraphIndex == self._graft.file.subgraph]

    def leave_out_unused(self) -> None:
        """Leave out operators that make nothing that is read, and tensors that no operator uses."""
        graph, wanted = self.graph, {int(i) for i in self.graph.outputs}
        kept = []
        for operator in reversed(graph.operators):
            made = {int(i) for i in operator.outputs} if operator.outputs is not None else set()
            if not made or not wanted.isdisjoint(made):
                wanted |= {int(i) for i in operator.inputs if i >= 0} if operator.inputs is not None else set()
                kept.append(operator)
        graph.operators = kept[::-1]
        used = wanted | {int(i) for o in kept for i in o.outputs if i >= 0} | {int(i) for i in graph.inputs}
        places = {old: new for new, old in enumerate(sorted(used))}
        graph.tensors = [graph.tensors[old] for old in places]
        for operator in graph.operators:
            operator.inputs = _renumbered(operator.inputs, places)
            operator.outputs = _renumbered(operator.outputs, places)
        graph.inputs, graph.outputs = _renumbered(graph.inputs, places), _renumbered(graph.outputs, places)
        for signature in self._signatures():
            for entry in (*signature.inputs, *signature.outputs):
                entry.tensorIndex = places[entry.tensorIndex]

    def written(self) -> tuple[list[AssembledPart], bytes]:
        """Return the file in parts, and the bytes of those that are no buffer."""
        model, layout = self.model, self._layout
        used = sorted({operator.opcodeIndex for graph in model.subgraphs for operator in graph.operators})
        for operator in (operator for graph in model.subgraphs for operator in graph.operators):
            operator.opcodeIndex = used.index(operator.opcodeIndex)
        entries = {}
        for entry in model.metadata or []:
            name = (entry.name or b"").decode(errors="replace")
            stored = self._source.Buffers(entry.buffer)
            # Operators have other numbers now.
            if name != CONTROL_DEPENDENCIES and stored.DataLength():
                entries[name] = layout.add(stored.DataAsNumpy())
        if own := self._graft.file.metadata:
            entries[METADATA] = layout.add(own)
        for tensor in (tensor for graph in model.subgraphs for tensor in graph.tensors):
            tensor.buffer = self._buffer(tensor)
        builder = schema.roomy_builder(layout.nbytes)

        def packed(tables: Iterable[Any]) -> int:
            return schema.offset_vector(builder, [table.Pack(builder) for table in tables])

        metadata = [schema.table(builder, "Metadata", Name=name, Buffer=buffer) for name, buffer in entries.items()]
        fields = {
            "Version": schema.VERSION,
            "OperatorCodes": packed(model.operatorCodes[i] for i in used),
            "Subgraphs": packed(model.subgraphs),
            "Description": (model.description or b"").decode(errors="replace"),
            "Buffers": schema.offset_vector(builder, layout.write(builder)),
            "Metadata": schema.offset_vector(builder, metadata),
            "SignatureDefs": packed(model.signatureDefs or []),
        }
        builder.Finish(schema.table(builder, "Model", **fields), file_identifier=schema.FILE_IDENTIFIER)
        return layout.cut(memoryview(builder.Bytes)[builder.Head() :])


def _said(code: Any) -> tuple[int, int, bytes | None]:
    return max(code.builtinCode, code.deprecatedBuiltinCode), code.version, code.customCode


def _number(name: str | bytes) -> int:
    """Return the number of the tensor that a graph calls so."""
    return int((name.decode() if isinstance(name, bytes) else name).removeprefix("t"))


def _renumbered(numbers: Any, places: Mapping[int, int]) -> np.ndarray:
    return np.array([places.get(int(i), -1) for i in (() if numbers is None else numbers)], np.int32)
