"""The file's own operators in front of what trains: integers stay integers, and every bit is the original's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from converter.ir import Builder, Graph, Node, Origin, Shape, TensorType, Value, dependents, ops
from converter.ir.rewrite import Rewriter, eliminate_dead_code, rewrite
from converter.passes.frozen_prefix import crossing
from converter.program.flatbuffer.parts import part
from converter.support.errors import UnsupportedError, UnsupportedSite
from converter.tflite import builtins as tfl
from converter.tflite.emit.emit import Subgraph, emit
from converter.tflite.quantize.stock import StockRunner
from tflite_frontend.file import File, FileOperator, FileTensor, needed
from tflite_frontend.trial import try_out
from tflite_frontend.twins import twin_of

#: Operators that say the shape of their result in an operand: its place.
_SHAPED = {"BROADCAST_TO": 1, "FILL": 0, "RESHAPE": 1, "TRANSPOSE_CONV": 0}


@dataclass(frozen=True, eq=False)
class Carrier:
    """What is known of a file that was imported for some rows.

    Attributes:
        file: the file.
        rows: the batch.
        fed: names of the graph's inputs by tensor.
        shapes: of the tensors that were imported.
        constants: what is known of them.
        integers: names of parameters that are integers in the file.
    """

    file: File
    rows: int
    fed: Mapping[int, str]
    shapes: Mapping[int, Shape]
    constants: Mapping[int, np.ndarray] = field(repr=False)
    integers: frozenset[str] = frozenset()

    @property
    def is_quantized(self) -> bool:
        """Whether operators of the file compute on integers that stand for real numbers."""
        return any(self.file.tensors[i].is_quantized for operator in self.file.operators for i in operator.outputs)

    def carried(self, graph: Graph) -> tuple[Graph, int]:
        """Return a forward graph that begins with the file's own operators, and how many these are.

        Before: x -> f -> tensor -> g(W).   After: x -> the operators that make the tensor in the file -> g(W).

        Args:
            graph: what is frozen in constants, tensors of the file marked (`ops.Stored`).

        Raises:
            UnsupportedError: behind what trains there are operators that only the runtime knows.
            UsageError: the stock runtime does not run the operators for these rows.
        """
        border = self._border(graph)
        carrying = _Carrying(self, graph)
        bound = carrying.run({value: node.op.number for value, node in border.items()})
        after = carrying.b.graph
        count = len(carrying.carried)
        for node in graph.nodes:
            after.nodes.append(Node(node.op, tuple(bound.get(v, v) for v in node.inputs), node.outputs, node.origin))
        after.outputs = {name: bound.get(value, value) for name, value in graph.outputs.items()}
        return without_foreign(without_marks(eliminate_dead_code(after)), self.file.path), count

    def _border(self, graph: Graph) -> dict[Value, Node]:
        """Return the last marked tensors in front of all that trains, with their marks."""
        producers, fed = graph.producers(), dependents(graph, graph.inputs)
        border: dict[Value, Node] = {}
        pending, seen = crossing(graph), set[Value]()
        while pending:
            value = pending.pop()
            node = producers.get(value)
            if value in seen or value not in fed or node is None:
                continue
            seen.add(value)
            if isinstance(node.op, ops.Stored):
                border[value] = node
            else:
                pending += node.inputs
        return border


class _Carrying:
    """Builds the operators of a file in front of a graph."""

    def __init__(self, carrier: Carrier, graph: Graph) -> None:
        self._carrier, self._file = carrier, carrier.file
        self.b = Builder(Graph(list(graph.inputs), dict(graph.constants), dict(graph.parameters)))
        by_name = {value.name: value for value in graph.inputs}
        self._values = {number: by_name[name] for number, name in carrier.fed.items() if name in by_name}
        self.carried: list[FileOperator] = []

    def run(self, wanted: Mapping[Value, int]) -> dict[Value, Value]:
        """Return what stands for each value: what the file's tensor of that number holds, as real numbers.

        Raises:
            UsageError: the stock runtime does not run the operators for these rows.
        """
        for operator in needed(self._file, wanted.values()):
            if not all(i in self._carrier.constants for i in operator.outputs) or self._rounds(operator):
                self._carry(operator)
                self.carried.append(operator)
        if self.carried:
            self._try_out(list(dict.fromkeys(wanted.values())))
        made: dict[int, Value] = {}
        for value, number in wanted.items():
            if number not in made:
                stored = self._values[number]
                of = stored.type.quantization
                with self.b.at(self._origin(self._file.operators[self._maker(number)])):
                    made[number] = stored if of is None else self.b(ops.Real(of), stored)
                    if made[number].dtype != value.dtype:  # places, which are int32 behind the border
                        made[number] = self.b(ops.Cast(value.dtype), stored)
            assert made[number].shape == value.shape, f"{made[number]!r} is not of {value.shape}"
        return {value: made[number] for value, number in wanted.items()}

    def _try_out(self, wanted: Sequence[int]) -> None:
        """Run what was carried over, and the file's operators, in a process of their own."""
        model, subgraph = self._file.tables
        operators = [subgraph.Operators(operator.number) for operator in needed(self._file, wanted)]
        read = dict.fromkeys(i for operator in self.carried for i in operator.inputs if i in self._carrier.fed)
        inputs = {i: Value(self._values[i].type, f"input_{i}") for i in read}
        bound = {self._values[i]: value for i, value in inputs.items()}
        graph = Graph(list(inputs.values()), dict(self.b.graph.constants))
        for node in self.b.graph.nodes:
            graph.nodes.append(replace(node, inputs=tuple(bound.get(v, v) for v in node.inputs)))
        graph.outputs = {f"output_{i}": self._values[i] for i in wanted}
        largest = max(v.type.nbytes for node in graph.nodes for v in (*node.inputs, *node.outputs))
        original = part(model, subgraph, operators, wanted)
        carried = emit([Subgraph("run", graph)], {}, "carried over")
        try_out(self._file.path, original, carried, self._carrier.rows, largest)

    def _rounds(self, operator: FileOperator) -> bool:
        """Return whether what an operator makes of constants is left to the runtime: numbers, not places or sizes."""
        made = [self._file.tensors[i].dtype for i in operator.outputs]
        return operator.kind != "DENSIFY" and any(dtype is None or dtype.kind == "f" for dtype in made)

    def _maker(self, number: int) -> int:
        return next(i for i, operator in enumerate(self._file.operators) if number in operator.outputs)

    def _origin(self, operator: FileOperator) -> Origin:
        layer = self._file.layer(operator.outputs[0]) if operator.outputs else ""
        return Origin(layer, f"{Path(self._file.path).name}:{operator.number}")

    def _carry(self, operator: FileOperator) -> None:
        said = _for_rows(self._carrier, operator)
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
            self._carrier.rows,
            operator.is_custom,
            said.table,
            partial(_run_alone, tuple(v.type for v in values), known),
            twin_of(operator),
        )
        outputs = tuple(Value(t, self._file.tensors[i].name) for t, i in zip(types, operator.outputs, strict=True))
        self.b.append(Node(op, tuple(values), outputs, self._origin(operator)))
        self._values |= zip(operator.outputs, outputs, strict=True)

    def _operand(self, number: int, instead: np.ndarray | None) -> Value | None:
        if number < 0:
            return None
        if instead is not None:
            return self._constant(self._file.tensors[number], instead)
        if number not in self._values:
            tensor, array = self._file.tensors[number], self._file.tensors[number].array
            self._values[number] = self._constant(tensor, self._carrier.constants[number] if array is None else array)
        return self._values[number]

    def _constant(self, tensor: FileTensor, array: np.ndarray) -> Value:
        assert tensor.dtype is not None
        array = array.astype(tensor.dtype, copy=False)
        value = Value(TensorType(array.shape, array.dtype, tensor.quantization), tensor.name)
        self.b.graph.constants[value] = array
        return value

    def _type(self, number: int) -> TensorType:
        tensor = self._file.tensors[number]
        assert tensor.dtype is not None
        return TensorType(self._carrier.shapes.get(number, tensor.shape), tensor.dtype, tensor.quantization)


@dataclass(frozen=True)
class _Said:
    """What a file says of an operator, for so many rows: its table, and constants by their places among operands."""

    table: Any
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)


def _for_rows(carrier: Carrier, operator: FileOperator) -> _Said:
    """Return what a file says of an operator, the batch in its shapes written for the rows that there are."""
    shape = carrier.shapes.get(operator.outputs[0]) if operator.outputs else None
    tensors = carrier.file.tensors

    def known(place: int) -> np.ndarray | None:
        number = operator.inputs[place] if place < len(operator.inputs) else -1
        array = tensors[number].array if number >= 0 else None
        return carrier.constants.get(number) if array is None else array

    if carrier.rows == 1 or not shape:
        return _Said(operator.table)
    if operator.kind == "RESHAPE" and len(operator.inputs) < 2:
        table, options = copy(operator.table), copy(operator.table.builtinOptions)
        options.newShape, table.builtinOptions = np.array(shape, np.int32), options
        return _Said(table)
    place = _SHAPED.get(operator.kind)
    if place is not None and (array := known(place)) is not None and -1 not in array:
        return _Said(operator.table, {place: np.array(shape, np.int32)})
    changes: dict[int, np.ndarray] = {}
    if operator.kind in ("SLICE", "STRIDED_SLICE"):
        array, first = known(2 if operator.kind == "SLICE" else 1), known(1)
        if operator.kind == "STRIDED_SLICE":
            array, first = known(2), known(1)
        if array is not None and first is not None and shape[0] == carrier.rows and array.reshape(-1)[0] == 1:
            changed = array.copy()
            changed.reshape(-1)[0] = carrier.rows
            changes[2] = changed
    elif operator.kind in ("CONCATENATION", "PACK"):
        for place in range(len(operator.inputs)):
            array = known(place)
            if array is not None and array.ndim and array.shape[0] == 1 and shape[0] == carrier.rows:
                changes[place] = np.repeat(array, carrier.rows, axis=0)
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


def without_marks(graph: Graph) -> Graph:
    """Return a graph in which the bounds of the file's tensors are operations of their own."""

    def rule(b: Rewriter, node: Node) -> Value | None:
        if not isinstance(node.op, ops.Stored):
            return None
        x, low, high = node.inputs[0], node.op.low, node.op.high
        if b.producer(x, ops.Relu, ops.Relu6) is not None and low <= 0:
            low = -inf
        six = b.producer(x, ops.Relu6) is not None and high >= 6 * (1 - 2**-8)
        x = x if high == inf or six else b(ops.Minimum(), x, high)
        return x if low == -inf else b(ops.Maximum(), x, low)

    return rewrite(graph, rule)


def without_foreign(graph: Graph, path: str) -> Graph:
    """Return the graph. Raise UnsupportedError where operators are left that only the runtime knows."""
    advice = "train what stands behind it alone (update=, classes=), or cut the model before it (cut=)"
    sites = [
        UnsupportedSite(node.op.kind, node.origin.layer, node.origin.source, f"the operator {node.op.kind}", advice)
        for node in graph.nodes
        if isinstance(node.op, ops.Foreign)
    ]
    if sites:
        listed = "".join(f"\n  {site.reason}\n    {site.source}, layer {site.layer}" for site in sites)
        raise UnsupportedError(
            f"{path} cannot be trained so: only the runtime knows what these compute, and they stand behind or among "
            f"what trains:{listed}\n    what to do: {advice}",
            sites,
            page="tflite-files",
        )
    return graph
