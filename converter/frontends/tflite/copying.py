"""Operators of a file, carried over one by one into a graph of the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.emit.emit import Subgraph, emit
from converter.backend.quantize.stock import StockRunner
from converter.frontends.tflite.reading.file import File, FileOperator, FileTensor, needed
from converter.frontends.tflite.rules.movement import moves_batch
from converter.frontends.tflite.trial import try_out
from converter.frontends.tflite.twins import twin_of
from converter.ir import FLOAT32, INT4, INT32, Builder, Graph, Node, Origin, Shape, TensorType, Value, ops
from converter.program.flatbuffer.parts import bodies_of, part
from converter.program.flatbuffer.schema import generated, tensor_type

#: Operators that say the shape of their result in an operand: its place.
_SHAPED = {"BROADCAST_TO": 1, "FILL": 0, "RESHAPE": 1, "TRANSPOSE_CONV": 0}


class Copying:
    """Copies operators of one subgraph into a graph.

    Args:
        file: the file.
        rows: of the program.
        tensors: of the subgraph.
        b: the builder of the graph.
        values: what stands for tensors that are given.
        shapes: of tensors for the rows of the program, where they are not those of the file.
        constants: what is known of tensors that operators make.
    """

    def __init__(
        self,
        file: File,
        rows: int,
        tensors: Sequence[FileTensor],
        b: Builder,
        values: dict[int, Value],
        shapes: Mapping[int, Shape],
        constants: Mapping[int, np.ndarray],
    ) -> None:
        self.file, self.rows, self.tensors, self.b = file, rows, tensors, b
        self.values, self.shapes, self.constants = values, shapes, constants

    def copy(self, operator: FileOperator) -> None:
        """Append an operator, with its options, constants and the subgraphs that it runs."""
        if self._moves_batch(operator):
            self._transpose(operator)
            return
        said = _for_rows(self, operator)
        operands = [self._operand(number, said.constants.get(place)) for place, number in enumerate(operator.inputs)]
        values = list(dict.fromkeys(v for v in operands if v is not None))
        types = tuple(self._type(number) for number in operator.outputs)
        known = {i: self.b.graph.constants[v] for i, v in enumerate(values) if v in self.b.graph.constants}
        op = tfl.Carried(
            operator.kind,
            operator.number,
            operator.version,
            _text(operator),
            types,
            tuple(-1 if v is None else values.index(v) for v in operands),
            self.rows,
            operator.is_custom,
            said.table,
            partial(_run_alone, tuple(v.type for v in values), known),
            twin_of(operator),
            tuple(self._body(number) for number in bodies_of(operator.table).values()),
            tuple(t.signature if -1 in t.signature else () for t in map(self.tensors.__getitem__, operator.outputs)),
        )
        outputs = tuple(Value(t, self.tensors[i].name) for t, i in zip(types, operator.outputs, strict=True))
        self.b.append(Node(op, tuple(values), outputs, self.origin(operator)))
        self.values |= zip(operator.outputs, outputs, strict=True)

    def _moves_batch(self, operator: FileOperator) -> bool:
        x, y = operator.inputs[:1], operator.outputs
        if operator.kind != "RESHAPE" or not x or x[0] not in self.shapes:
            return False
        given, said = (self.tensors[i].shape for i in (x[0], y[0]))
        return moves_batch(given, said, self.shapes[x[0]], self.rows)

    def _transpose(self, operator: FileOperator) -> None:
        """Append for a reshape that turns one row and its steps what does that of several rows."""
        (number,), x = operator.outputs, self.result(operator.inputs[0])
        perm = np.array([1, 0, *range(2, x.type.rank)], np.int32)
        by = Value(TensorType(perm.shape, perm.dtype), f"{x.name}_axes")
        self.b.graph.constants[by] = perm
        made = self._type(number)
        op = self.added("TRANSPOSE", "rows and steps", (x, by), made)
        self.values[number] = Value(made, self.tensors[number].name)
        self.b.append(Node(op, (x, by), (self.values[number],), self.origin(operator)))

    def added(
        self, kind: str, said: str, operands: Sequence[Value], made: TensorType, table: Any = None
    ) -> tfl.Carried:
        """Return an operator that the file lacks, of one result, for constants among its operands."""
        known = {i: self.b.graph.constants[v] for i, v in enumerate(operands) if v in self.b.graph.constants}
        table = generated.OperatorT() if table is None else table
        run = partial(_run_alone, tuple(v.type for v in operands), known)
        version = 4 if made.quantization is not None else 1
        places = tuple(range(len(operands)))
        return tfl.Carried(kind, -1, version, said, (made,), places, self.rows, written=table, run=run)

    def result(self, number: int) -> Value:
        """Return what stands for a tensor."""
        value = self._operand(number, None)
        assert value is not None
        return value

    def _body(self, number: int) -> Graph:
        """Return a subgraph as a graph of the same operators; the runtime fits its shapes to what it is given."""
        body, b = self.file.body(number), Builder(Graph())
        types = [self._type_in_file(body.tensors[i]) for i in body.inputs]
        inputs = {i: b.input(f"operand_{k}", t) for k, (i, t) in enumerate(zip(body.inputs, types, strict=True))}
        inner = Copying(self.file, self.rows, body.tensors, b, dict(inputs), {}, {})
        for operator in body.operators:
            inner.copy(operator)
        b.graph.outputs = {f"result_{k}": inner.result(i) for k, i in enumerate(body.outputs)}
        return b.graph

    def origin(self, operator: FileOperator) -> Origin:
        """Return where an operator comes from."""
        layer = self.file.layer_of(self.tensors[operator.outputs[0]]) if operator.outputs else ""
        return Origin(layer, f"{Path(self.file.path).name}:{operator.number}")

    def _operand(self, number: int, instead: np.ndarray | None) -> Value | None:
        if number < 0:
            return None
        if instead is not None:
            return self._constant(self.tensors[number], instead)
        if number not in self.values:
            tensor, array = self.tensors[number], self.tensors[number].array
            self.values[number] = self._constant(tensor, self.constants[number] if array is None else array)
        return self.values[number]

    def _constant(self, tensor: FileTensor, array: np.ndarray) -> Value:
        array = array.astype(self._type_in_file(tensor).dtype, copy=False)
        value = Value(TensorType(array.shape, array.dtype, tensor.quantization), tensor.name)
        self.b.graph.constants[value] = array
        return value

    def _type(self, number: int) -> TensorType:
        of = self._type_in_file(self.tensors[number])
        return of.with_shape(self.shapes.get(number, of.shape))

    def _type_in_file(self, tensor: FileTensor) -> TensorType:
        assert tensor.dtype is not None
        return TensorType(tensor.shape, INT4 if tensor.kind == "INT4" else tensor.dtype, tensor.quantization)


class Carrying:
    """Builds the operators of a file before a graph.

    Args:
        file: the file.
        rows: of the program.
        graph: what is frozen in constants.
        fed: names of its inputs by tensor.
        shapes: of the tensors that were imported.
        constants: what is known of them.
    """

    def __init__(
        self,
        file: File,
        rows: int,
        graph: Graph,
        fed: Mapping[int, str],
        shapes: Mapping[int, Shape],
        constants: Mapping[int, np.ndarray],
    ) -> None:
        self._file, self._rows, self._constants = file, rows, constants
        self.b = Builder(Graph(list(graph.inputs), dict(graph.constants), dict(graph.parameters)))
        by_name = {value.name: value for value in graph.inputs}
        self._fed = {number: by_name[name] for number, name in fed.items() if name in by_name}
        self._copying = Copying(file, rows, file.tensors, self.b, dict(self._fed), shapes, constants)
        self.carried: list[FileOperator] = []

    def run(self, wanted: Mapping[Value, int]) -> dict[Value, Value]:
        """Return what stands for each value: what the file's tensor of that number holds, as real numbers.

        Raises:
            UsageError: the stock runtime does not run the operators for these rows.
        """
        for operator in needed(self._file, wanted.values()):
            if not all(i in self._constants for i in operator.outputs) or self._rounds(operator):
                self.carried.append(operator)
        self._convert_fed()
        for operator in self.carried:
            self._copying.copy(operator)
        if self.carried:
            self._try_out(list(dict.fromkeys(wanted.values())))
        made: dict[int, Value] = {}
        for value, number in wanted.items():
            if number not in made:
                stored = self._copying.values[number]
                of = stored.type.quantization
                with self.b.at(self._copying.origin(self._file.operators[self._maker(number)])):
                    made[number] = stored if of is None else self.b(ops.Real(of), stored)
                    if made[number].dtype != value.dtype:  # places, which are int32 behind the border
                        made[number] = self.b(ops.Cast(value.dtype), stored)
            assert made[number].shape == value.shape, f"{made[number]!r} is not of {value.shape}"
        return {value: made[number] for value, number in wanted.items()}

    def _convert_fed(self) -> None:
        """Convert inputs that the program takes as float32 or int32 to the type that the file's operators read."""
        read = {i for operator in self.carried for i in operator.inputs}
        for number in read & self._fed.keys():
            fed, tensor = self._fed[number], self._file.tensors[number]
            if tensor.dtype is None or tensor.dtype == fed.dtype or fed.dtype not in (FLOAT32, INT32):
                continue
            types, options = (fed.dtype, tensor.dtype), generated.CastOptionsT()
            options.inDataType, options.outDataType = map(tensor_type, types)
            table = generated.OperatorT(builtinOptionsType=generated.BuiltinOptions.CastOptions, builtinOptions=options)
            made = TensorType(fed.shape, tensor.dtype)
            op = self._copying.added("CAST", f"to {tensor.dtype.name}", (fed,), made, table)
            self._copying.values[number] = Value(made, f"{fed.name}_{tensor.dtype.name}")
            self.b.append(Node(op, (fed,), (self._copying.values[number],)))

    def _try_out(self, wanted: Sequence[int]) -> None:
        """Run what was carried over, and the file's operators, in a process of their own."""
        model, subgraph = self._file.tables
        operators = [subgraph.Operators(operator.number) for operator in needed(self._file, wanted)]
        read = dict.fromkeys(i for operator in self.carried for i in operator.inputs if i in self._fed)
        inputs = {i: Value(self._fed[i].type, f"input_{i}") for i in read}
        bound = {self._fed[i]: value for i, value in inputs.items()}
        graph = Graph(list(inputs.values()), dict(self.b.graph.constants))
        for node in self.b.graph.nodes:
            graph.nodes.append(replace(node, inputs=tuple(bound.get(v, v) for v in node.inputs)))
        graph.outputs = {f"output_{i}": self._copying.values[i] for i in wanted}
        original = part(model, subgraph, operators, wanted)
        carried = emit([Subgraph("run", graph)], {}, "carried over")
        try_out(self._file.path, original, carried, self._rows)

    def _rounds(self, operator: FileOperator) -> bool:
        """Return whether what an operator makes of constants is left to the runtime: numbers, not places or sizes."""
        made = [self._file.tensors[i].dtype for i in operator.outputs]
        return operator.kind != "DENSIFY" and any(dtype is None or dtype.kind == "f" for dtype in made)

    def _maker(self, number: int) -> int:
        return next(i for i, operator in enumerate(self._file.operators) if number in operator.outputs)


@dataclass(frozen=True)
class _Said:
    """What a file says of an operator, for so many rows: its table, and constants by their places among operands."""

    table: Any
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)


def _for_rows(copying: Copying, operator: FileOperator) -> _Said:
    """Return what a file says of an operator, the batch in its shapes written for the rows that there are."""
    shape = copying.shapes.get(operator.outputs[0]) if operator.outputs else None
    rows = copying.rows

    def known(place: int) -> np.ndarray | None:
        number = operator.inputs[place] if place < len(operator.inputs) else -1
        array = copying.tensors[number].array if number >= 0 else None
        return copying.constants.get(number) if array is None else array

    if rows == 1 or not shape:
        return _Said(operator.table)
    if operator.kind == "RESHAPE" and len(operator.inputs) < 2:
        table, options = copy(operator.table), copy(operator.table.builtinOptions)
        options.newShape, table.builtinOptions = np.array(shape, np.int32), options
        return _Said(table)
    place = _SHAPED.get(operator.kind)
    if place is not None and known(place) is not None:
        return _Said(operator.table, {place: np.array(shape, np.int32)})
    changes: dict[int, np.ndarray] = {}
    if operator.kind in ("SLICE", "STRIDED_SLICE"):
        array = known(2)
        if array is not None and known(1) is not None and shape[0] == rows and array.reshape(-1)[0] == 1:
            changed = array.copy()
            changed.reshape(-1)[0] = rows
            changes[2] = changed
    elif operator.kind in ("CONCATENATION", "PACK"):
        for place in range(len(operator.inputs)):
            array = known(place)
            if array is not None and array.ndim and array.shape[0] == 1 and shape[0] == rows:
                changes[place] = np.repeat(array, rows, axis=0)
    return _Said(operator.table, changes)


def _text(operator: FileOperator) -> str:
    """Return an operator's options as text."""
    return ", ".join(f"{key}={_plain(value)}" for key, value in sorted(operator.options.items()))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _run_alone(
    types: Sequence[TensorType], known: Mapping[int, np.ndarray], op: tfl.Carried, arrays: Iterable[np.ndarray]
) -> Any:
    """Return what the stock interpreter makes of one operator's operands."""
    values = [Value(t, f"operand_{i}") for i, t in enumerate(types)]
    made = tuple(Value(t, f"result_{i}") for i, t in enumerate(op.types))
    graph = Graph([v for i, v in enumerate(values) if i not in known], {values[i]: a for i, a in known.items()})
    graph.nodes, graph.outputs = [Node(op, tuple(values), made)], {v.name: v for v in made}
    fed = {v.name: a.astype(v.dtype) for i, (v, a) in enumerate(zip(values, arrays, strict=True)) if i not in known}
    results = StockRunner(graph)(fed)
    return tuple(results[v.name] for v in made) if len(made) > 1 else results[made[0].name]
