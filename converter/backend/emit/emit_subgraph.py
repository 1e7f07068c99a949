"""SubGraph table of one lowered graph: tensors, operators, and the signature that names inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import flatbuffers
import numpy as np

from converter.backend.builtins import Builtin, Carried, SubgraphName
from converter.ir import Graph, Node, Shape, TensorType, Value
from converter.program.flatbuffer import schema
from converter.program.flatbuffer.buffers import Buffers
from converter.program.flatbuffer.parts import bodies_of


class EmitError(AssertionError):
    """A lowered graph that no TFLite file can hold: a defect of the compiler, never of the user's model."""


class OperatorCodes:
    """The table of operators and their versions, shared by all subgraphs."""

    def __init__(self) -> None:
        self._indices: dict[tuple[str, int, bool], int] = {}

    def index(self, code: str, version: int, custom: bool = False) -> int:
        """Return the index of an entry, which is made if need be."""
        return self._indices.setdefault((code, version, custom), len(self._indices))

    def write(self, builder: flatbuffers.Builder) -> list[int]:
        """Write the entries in order; return their offsets."""
        return [self._entry(builder, *entry) for entry in self._indices]

    def _entry(self, builder: flatbuffers.Builder, name: str, version: int, custom: bool) -> int:
        code = schema.builtin_code("CUSTOM" if custom else name)
        # Runtimes older than 2.4 know only the one-byte field; 127 there means "see the other".
        fields = {"DeprecatedBuiltinCode": min(code, 127), "BuiltinCode": code, "Version": version}
        return schema.table(builder, "OperatorCode", **fields, **({"CustomCode": name} if custom else {}))


@dataclass(frozen=True)
class _Tensor:
    name: str
    type: TensorType
    buffer: int
    signature: Shape = ()


@dataclass(frozen=True)
class _Operator:
    node: Node
    op: Builtin
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class SubgraphWriter:
    """Numbers the tensors of a graph and adds its data to the buffers; then writes its tables.

    A graph has results of its own, and each once; but the body of a loop hands operands on.
    """

    def __init__(self, graph: Graph, buffers: Buffers, is_body: bool = False, numbered: Iterable[Value] = ()) -> None:
        """`numbered`: what nodes make, in the order in which it gets its numbers; before all that is not named."""
        if graph.parameters or graph.updates:
            raise EmitError("the graph still has parameters: state must be lowered to variables or inputs first")
        self._graph = graph
        self._buffers = buffers
        self._tensors: list[_Tensor] = []
        self._names: dict[str, int] = {}
        self._indices: dict[Value, int] = {}
        self._operands: dict[tuple, int] = {}
        self._made: set[Value] = set()
        # What another file has of rank 0 its operators take and make.
        carried = [node for node in graph.nodes if isinstance(node.op, Carried)]
        self._carried = {v for node in carried for v in (*node.inputs, *node.outputs)}
        self._open = {
            value: signature
            for node in carried
            for value, signature in zip(node.outputs, node.op.signatures, strict=False)
        }
        for value in graph.inputs:
            self._make(value)
        for value in numbered:
            self._define(value)
        self._operators = [self._operator(node) for node in graph.nodes]
        made = {value for node in graph.nodes for value in node.outputs}
        for name, value in graph.outputs.items():
            if not is_body and value not in made:
                raise EmitError(f"output {name} is {value!r}, which no operator makes: lowering must copy it")
        results = self._graph.outputs.values()
        self._results = [self._use(value) for value in (results if is_body else dict.fromkeys(results))]

    def write(
        self, builder: flatbuffers.Builder, name: str, codes: OperatorCodes, indices: Mapping[str | Graph, int]
    ) -> int:
        """Writes the SubGraph; `indices` are those of all subgraphs, for calls. Returns its offset."""
        return schema.table(
            builder,
            "SubGraph",
            Name=name,
            Tensors=schema.offset_vector(builder, [self._write_tensor(builder, t) for t in self._tensors]),
            Operators=schema.offset_vector(
                builder, [self._write_operator(builder, o, codes, indices) for o in self._operators]
            ),
            Inputs=[self._indices[v] for v in self._graph.inputs],
            Outputs=self._results,
        )

    def write_signature(self, builder: flatbuffers.Builder, name: str, index: int) -> int:
        """Writes the SignatureDef of this graph, which is subgraph `index`. Returns its offset."""
        inputs = {value.name: value for value in self._graph.inputs}
        if len(inputs) != len(self._graph.inputs):
            raise EmitError(f"{name}: two inputs share a name: {[v.name for v in self._graph.inputs]}")

        def names(values: Mapping[str, Value]) -> int:
            entries = [
                schema.table(builder, "TensorMap", Name=key, TensorIndex=self._indices[value])
                for key, value in values.items()
            ]
            return schema.offset_vector(builder, entries)

        return schema.table(
            builder,
            "SignatureDef",
            SignatureKey=name,
            SubgraphIndex=index,
            Inputs=names(inputs),
            Outputs=names(self._graph.outputs),
        )

    def _add(self, name: str, type: TensorType, buffer: int = 0, carried: bool = False, signature: Shape = ()) -> int:
        """Return a new tensor.

        Names are unique and start with what the value is called, which is the user's layer.
        """
        if type.rank == 0 and not carried:
            raise EmitError(f"{name} has rank 0, which crashes some runtimes: lowering must make it [1]")
        stem = name.replace(":", "_") or "tensor"  # ":" breaks Qualcomm's compiler
        unique, count = stem, self._names.get(stem, 0)
        while unique in self._names:
            unique, count = f"{stem}_{count + 1}", count + 1
        self._names[stem] = count
        self._names.setdefault(unique, 0)
        self._tensors.append(_Tensor(unique, type, buffer, signature))
        return len(self._tensors) - 1

    def _define(self, value: Value) -> int:
        if value not in self._indices:
            signature = self._open.get(value, ())
            self._indices[value] = self._add(
                value.name, value.type, carried=value in self._carried, signature=signature
            )
        return self._indices[value]

    def _make(self, value: Value) -> int:
        if value in self._made:
            raise EmitError(f"{value!r} is made twice")
        self._made.add(value)
        return self._define(value)

    def _use(self, value: Value) -> int:
        """Return the index of an operand; constants get their tensor at first use, so unused ones are left out."""
        if value in self._graph.constants and value not in self._indices:
            self._indices[value] = self._add(
                value.name, value.type, self._buffers.add(self._graph.constants[value]), value in self._carried
            )
            return self._indices[value]
        if value not in self._made and value not in self._graph.constants:
            raise EmitError(f"{value!r} is read before it is made")
        return self._indices[value]

    def _operand(self, array: np.ndarray, name: str) -> int:
        """Return the index of a constant that the operator itself brings; equal ones are one tensor."""
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._operands:
            self._operands[key] = self._add(name, TensorType(array.shape, array.dtype), self._buffers.add(array))
        return self._operands[key]

    def _operator(self, node: Node) -> _Operator:
        op = node.op
        if not isinstance(op, Builtin):
            raise EmitError(f"{node!r} is not lowered")
        inputs = tuple(self._use(v) for v in node.inputs)
        constants = tuple(self._operand(array, f"{op.name}/operand") for array in op.operands())
        return _Operator(node, op, op.assemble(inputs, constants), tuple(self._make(v) for v in node.outputs))

    def _write_tensor(self, builder: flatbuffers.Builder, tensor: _Tensor) -> int:
        return schema.table(
            builder,
            "Tensor",
            Name=tensor.name,
            Shape=tensor.type.shape,
            Type=tensor.type.dtype,
            Buffer=tensor.buffer,
            **({"ShapeSignature": tensor.signature} if tensor.signature else {}),
            **schema.quantization(builder, tensor.type.quantization),
        )

    def _write_operator(
        self,
        builder: flatbuffers.Builder,
        operator: _Operator,
        codes: OperatorCodes,
        indices: Mapping[str | Graph, int],
    ) -> int:
        op = operator.op
        types = tuple(v.type for v in operator.node.inputs), tuple(v.type for v in operator.node.outputs)
        if isinstance(op, Carried):
            runs = {key: indices[graph] for key, graph in zip(bodies_of(op.written), op.parts, strict=True)}
            custom, options = op.custom, schema.written_options(builder, op.written, runs)
        else:
            fields = {
                key: indices[field] if isinstance(field, SubgraphName | Graph) else field
                for key, field in op.options(*types).items()
            }
            custom, options = False, schema.options(builder, op.table, fields)
        return schema.table(
            builder,
            "Operator",
            OpcodeIndex=codes.index(op.code, op.version(*types), custom),
            Inputs=operator.inputs,
            Outputs=operator.outputs,
            **options,
        )
