"""Operators of a file -> Graph: walks them in order, calls the import rule of each, and makes weights parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from math import inf
from pathlib import Path

import numpy as np

from converter.frontends.tflite.bodies import ImportedBodies
from converter.frontends.tflite.folding import CautiousBuilder
from converter.frontends.tflite.original import Carrier
from converter.frontends.tflite.ranges import bounds, cuts_off
from converter.frontends.tflite.reading.file import MAX_BYTES, File, FileOperator, FileTensor, needed
from converter.frontends.tflite.registry import Call, OneRowOnly, streams
from converter.frontends.tflite.rules import (
    activations,
    blocks,
    control,
    elementwise,
    indexing,
    movement,
    products,
    recurrent,
    reductions,
)
from converter.frontends.tflite.runtime_shapes import RuntimeShapes
from converter.frontends.tflite.weights import BY_CHANNEL, WEIGHTS, channel_name, kernel_without_bias, looks_learned
from converter.ir import FLOAT32, Graph, Origin, Parameter, TensorType, Value, ops
from converter.ir.op import ShapeError
from converter.program.flatbuffer.damage import DAMAGED
from converter.program.flatbuffer.operators import STATE
from converter.program.flatbuffer.parts import bodies_of
from converter.support.errors import NotImportable, UnsupportedError, UnsupportedSite, UsageError
from converter.support.notes import Note
from converter.support.registry import collect

RULES = collect(
    activations.rule,
    blocks.rule,
    control.rule,
    elementwise.rule,
    indexing.rule,
    movement.rule,
    products.rule,
    recurrent.rule,
    reductions.rule,
)

#: Operators that those come to which operators run, again for each step of a loop, at most.
_MOST_RUN = 1 << 16
_ADVICE = "Cut the model before it (cut=), or use a model without it."


class Importer:
    """Imports one file for one number of rows.

    Args:
        file: what is imported.
        rows: of the first axis of each input that is of one row, or open, in the file.
        shapes: of inputs by name, where the file leaves axes open or has others.
    """

    def __init__(self, file: File, rows: int, shapes: Mapping[str, Sequence[int]]) -> None:
        self.file, self.rows = file, rows
        self.b = CautiousBuilder()
        self._values: dict[int, Value] = {}
        self._fed: dict[int, Value] = {}  # the inputs
        self._wanted: Sequence[int] = ()  # what was asked for last
        self._parameters: dict[tuple[int, int], Value] = {}  # by the layer's weight and the tensor
        self._names: set[str] = set()
        self._learned: set[Value] = set()  # what a weight is part of
        self._integers: set[str] = set()  # parameters that are integers in the file
        #: Names of parameters by the operator that reads them, its number, and the place among its operands.
        self.uses: dict[tuple[int, int], str] = {}
        self._of_bodies: dict[int, dict[tuple[int, int], Value]] = {}  # parameters of subgraphs that operators run
        self._outer: Importer | None = None  # of the operator that runs what is imported
        self._ran_at, self._ran_by = "", -1  # the source of that, and its number in the file's own subgraph
        self.runs: dict[int, set[str]] = {}  # names of parameters of the subgraphs that an operator runs, by its number
        self._ran = [0]  # operators of subgraphs, each time that they are read
        self.notes: list[Note] = []
        self.taken: dict[Value, Value] = {}  # weights of the outer graph, as a graph of its own takes them
        for position, (name, number) in enumerate(file.inputs.items()):
            called = "x" if len(file.inputs) == 1 else f"x_{position}"
            fed = self.b.input(called, self._input_type(name, number, shapes.get(name)))
            of = fed.type.quantization
            self._fed[number] = fed
            self._values[number] = fed if of is None else self.b(ops.Real(of), fed)
        self._run_shapes = RuntimeShapes(file, rows, {number: fed.shape for number, fed in self._fed.items()})

    def run(self, wanted: Collection[int]) -> Graph:
        """Import what some tensors depend on; return the graph, without outputs.

        Raises:
            UnsupportedError: operators that cannot be imported; all are listed.
        """
        problems: list[UnsupportedSite] = []
        self._wanted = list(wanted)
        for operator in needed(self.file, wanted):
            if operator.outputs and all(i in self._values for i in operator.outputs):
                continue
            if problems and any(
                i >= 0 and i not in self._values and self.file.tensors[i].array is None for i in operator.inputs
            ):
                continue  # it only follows
            try:
                self._operator(operator)
            except NotImportable as problem:
                advice = problem.advice or self._advice()
                problems.append(
                    UnsupportedSite(operator.kind, self._layer(operator), self._source(operator), problem.what, advice)
                )
            except (ShapeError, *DAMAGED) as error:
                said = f"{operator.kind} as it stands there ({error})"
                problems.append(
                    UnsupportedSite(operator.kind, self._layer(operator), self._source(operator), said, self._advice())
                )
        if problems:
            listed = "".join(
                f"\n  {p.reason}\n    {p.source}, layer {p.layer}\n    what to do: {p.advice}" for p in problems
            )
            raise UnsupportedError(
                f"{self.file.path} cannot be trained as it is:{listed}", problems, page="tflite-files"
            )
        return self.b.graph

    def values(self) -> Mapping[int, Value]:
        """Return what stands for each tensor of the file that was read."""
        return dict(self._values)

    def _advice(self) -> str:
        return _ADVICE if self.rows == 1 else f"Train with batch=1, or micro_batch=1, if that does. {_ADVICE}"

    def inside(self, number: int, values: Sequence[Value], b: CautiousBuilder, operator: FileOperator) -> Importer:
        """Return an importer of a subgraph that an operator runs.

        Args:
            number: of the subgraph.
            values: what stands for its inputs, in the graph of `b`.
            b: the builder of this importer, or of a graph of its own.
            operator: the one that runs it.
        """
        body = self.file.body(number)
        if len(body.inputs) != len(values):
            raise ValueError(f"a subgraph of {len(body.inputs)} inputs for {len(values)} operands")
        inner = copy(self)
        inner.file, inner.b, inner._outer, inner._ran_at = self.file.within(body), b, self, self._source(operator)
        inner._ran_by = operator.number if self._outer is None else self._ran_by
        inner._values, inner._fed, inner.taken = dict(zip(body.inputs, values, strict=True)), {}, {}
        inner._parameters = self._of_bodies.setdefault(number, {})
        self._ran[0] += self.file.body(number).size
        if self._ran[0] > _MOST_RUN:
            raise NotImportable(f"{operator.kind} that comes to more than {_MOST_RUN} operators", "")
        return inner

    def results_of(self, number: int) -> list[Value]:
        """Return what the subgraph of this number gives, for which this importer was made."""
        outputs = self.file.body(number).outputs
        for operator in needed(self.file, outputs):
            self._operator(operator)
        return [self.value(i) for i in outputs]

    def value(self, number: int) -> Value:
        """Return what stands for a tensor of the file. Raise NotImportable for a constant that is not read here."""
        if number not in self._values:
            tensor = self.file.tensors[number]
            array = tensor.array
            if array is None and 0 in tensor.shape and tensor.dtype is not None:
                array = np.zeros(tensor.shape, tensor.dtype)  # the shape of one number
            if array is None:
                raise NotImportable(f"the tensor {tensor.name!r} of {tensor.kind}, which holds no numbers")
            if tensor.quantization is not None:
                array = tensor.quantization.real(array)
            self._values[number] = self.b.constant(array.astype(FLOAT32) if array.dtype.kind == "f" else array)
        return self._values[number]

    def parameter(self, name: str, array: np.ndarray) -> Value:
        """Return a new parameter of a name that no other has."""
        unique, count = name, 1
        while unique in self._names:
            count += 1
            unique = f"{name}_{count}"
        self._names.add(unique)
        value = Value(TensorType(array.shape, FLOAT32), unique)
        self._outermost().b.graph.parameters[value] = Parameter(unique, np.asarray(array, np.float32))
        return value

    def _outermost(self) -> Importer:
        return self if self._outer is None else self._outer._outermost()

    def _here(self, parameter: Value) -> Value:
        """Return what stands for a parameter: itself, or what a graph of its own takes in its place."""
        if self._outer is None:
            return parameter
        outside = self._outer._here(parameter)
        if self.b is self._outer.b:
            return outside
        if outside not in self.taken:
            self.taken[outside] = self.b.input(f"weight_{len(self.taken)}", outside.type)
            self._learned.add(self.taken[outside])
        return self.taken[outside]

    def _operator(self, operator: FileOperator) -> None:
        is_foreign = False
        with self.b.at(Origin(self._layer(operator), self._source(operator))):
            try:
                results = self._by_rule(operator)
            except OneRowOnly:
                raise
            except NotImportable as problem:
                results, is_foreign = self._foreign(operator, problem), True
            for number, value in zip(operator.outputs, results, strict=True):
                self._values[number] = self._marked(operator, number, value, is_foreign)

    def _by_rule(self, operator: FileOperator) -> list[Value]:
        """Return what an operator makes, by the rule of its kind."""
        rule = RULES.get(operator.kind)
        if rule is None:
            raise NotImportable(f"the operator {operator.kind}")
        operands = [self._operand(operator, place) for place in range(len(operator.inputs))]
        while operands and operands[-1] is None:
            operands.pop()
        if any(v is not None and v.dtype.kind == "c" for v in operands):
            raise NotImportable(f"{operator.kind} of complex numbers")
        given = [self.file.tensors[i].shape if i >= 0 else () for i in operator.inputs]
        types, bodies = [self.file.tensors[i] for i in operator.outputs], ImportedBodies(self, operator)
        call = Call(self.b, operator, types, self.rows, given, bodies)
        made = rule(call, *operands)
        if operator.kind in recurrent.WEIGHTS:
            self.notes.append(self._begins_anew(operator))
        results = [made] if isinstance(made, Value) else list(made)
        self._say_what_stays(operator, operands)
        if any(v in self._learned or v in self.b.graph.parameters for v in operands if v is not None):
            self._learned.update(results)
        return results

    def _say_what_stays(self, operator: FileOperator, operands: Sequence[Value | None]) -> None:
        """Note the constants that look like weights and are none here."""
        constants, parameters = self.b.graph.constants, self.b.graph.parameters
        meets = any(v in self._learned or v in parameters for v in operands if v is not None)
        for number, value in zip(operator.inputs, operands, strict=False):
            if value is not None and looks_learned(operator, constants.get(value), meets):
                name = self.file.tensors[number].name or f"tensor {number}"
                said = f"a constant of {operator.kind} that is not taken for a weight: no scheme trains it"
                self.notes.append(Note(name, "fixed", said))

    def _begins_anew(self, operator: FileOperator) -> Note:
        said = "of zeros in each row; the file goes on from the last call until the app resets its variables"
        if self._reads_integers(operator, self.file.tensors):
            said += ". In float32, near the file's numbers and not their bits: rows of a batch share no state"
        return Note(self._layer(operator), "begins with a state", said)

    def _foreign(self, operator: FileOperator, problem: NotImportable) -> list[Value]:
        """Return what an operator makes of which only the runtime knows what it computes.

        Raises:
            NotImportable: it keeps a state, has types that are not read here, or nothing that it reads is fed in.
        """
        read = [i for i in dict.fromkeys(operator.inputs) if i >= 0]
        self._check_stateless(operator, self.file.tensors, problem)
        if self._outer is not None:
            raise problem  # the operator that runs it is carried over whole
        read = [i for i in read if self.file.tensors[i].array is None and self.value(i) not in self.b.graph.constants]
        fed = [self.value(i) for i in read]
        if not fed or not operator.outputs:
            raise problem
        types = tuple(self._foreign_type(i, problem) for i in operator.outputs)
        made = self.b(ops.Foreign(operator.kind, operator.number, types), *fed)
        return [made] if isinstance(made, Value) else list(made)

    def _check_stateless(self, operator: FileOperator, tensors: Sequence[FileTensor], problem: NotImportable) -> None:
        """Raise NotImportable where an operator, or one of those that it runs, keeps a state or has unread types."""
        if operator.kind in STATE or any(tensors[i].is_variable for i in operator.inputs if i >= 0):
            raise NotImportable(*streams(operator.kind))
        for number in bodies_of(operator.table).values():
            body = self.file.body(number)
            for inner in body.operators:
                self._check_stateless(inner, body.tensors, problem)
            if any(body.tensors[i].dtype is None for o in body.operators for i in (*o.inputs, *o.outputs) if i >= 0):
                raise problem

    def _foreign_type(self, number: int, problem: NotImportable) -> TensorType:
        """Return the type of such a result, whose shape for one row the runtime says."""
        tensor = self.file.tensors[number]
        if tensor.dtype is None:
            raise problem
        shape = self._run_shapes.of(number, self._wanted, self._is_unknown)
        if 0 in shape:
            raise problem
        kind = FLOAT32 if tensor.is_quantized or tensor.dtype.kind == "f" else tensor.dtype
        shape = (shape[0] * self.rows, *shape[1:]) if shape else ()
        return TensorType(shape, np.dtype(np.int32) if kind.kind in "iu" else kind)

    def _is_unknown(self, operator: FileOperator) -> bool:
        """Return whether an operator has no rule, or none for complex numbers."""
        types = [self.file.tensors[i].dtype for i in (*operator.inputs, *operator.outputs) if i >= 0]
        return operator.kind not in RULES or any(dtype is not None and dtype.kind == "c" for dtype in types)

    def _marked(self, operator: FileOperator, number: int, value: Value, is_foreign: bool) -> Value:
        """Return what an operator on integers makes, so marked that the file's own operator may stand there."""
        tensor = self.file.tensors[number]
        if value.type.nbytes > MAX_BYTES:
            raise NotImportable(f"{operator.kind} that makes {value.type.nbytes} bytes, more than any phone loads")
        if value in self.b.graph.constants:
            return value
        if tensor.is_quantized:
            low, high = bounds(tensor) if cuts_off(self.file, operator, number) else (-inf, inf)
            return self.b(ops.Stored(number if self._outer is None else ops.INSIDE, low, high), value)
        # Where weights alone are quantised the kernel rounds on its way.
        rounds = operator.kind != "DEQUANTIZE" and self._reads_integers(operator, self.file.tensors)
        return self.b(ops.Stored(number), value) if self._outer is None and (is_foreign or rounds) else value

    def _reads_integers(self, operator: FileOperator, tensors: Sequence[FileTensor]) -> bool:
        """Return whether an operator, or one of those that it runs, reads integers that stand for numbers."""
        bodies = [self.file.body(number) for number in bodies_of(operator.table).values()]
        return any(i >= 0 and tensors[i].is_quantized for i in operator.inputs) or any(
            self._reads_integers(inner, body.tensors) for body in bodies for inner in body.operators
        )

    def _operand(self, operator: FileOperator, place: int) -> Value | None:
        number = operator.inputs[place]
        if number < 0 or (operator.kind in recurrent.WEIGHTS and self.file.tensors[number].is_variable):
            return None
        called = WEIGHTS.get(operator.kind, {}).get(place) or self._by_channel(operator, place)
        if called is None:
            return self.value(number)
        # Converters keep one tensor for all biases that are zero: a bias is shared where the layer is.
        of = number if operator.kind in ("BATCH_MATMUL", *BY_CHANNEL) else operator.inputs[1]
        of = operator.outputs[0] if operator.kind in recurrent.WEIGHTS else of
        if called == "bias" and self._outer is not None and operator.kind == "ADD":  # operands are called arg9, arg10
            of = kernel_without_bias(self.file, operator, place) or of
        if (of, number) not in self._parameters:
            value = self.value(number)
            array = self.b.graph.constants.get(value)
            if array is None or value.dtype != FLOAT32:
                return value
            self._parameters[of, number] = self.parameter(f"{self.file.layer(of)}/{called}", array)
            if self.file.tensors[number].is_quantized:
                self._integers.add(self._parameters[of, number].name)
        name = self._parameters[of, number].name
        if self._outer is None:
            self.uses[operator.number, place] = name
        else:
            self.runs.setdefault(self._ran_by, set()).add(name)
        return self._here(self._parameters[of, number])

    def _by_channel(self, operator: FileOperator, place: int) -> str | None:
        """Return what an operand is called that is a weight by what it stands after; None for what is none."""
        if operator.kind not in BY_CHANNEL or len(operator.inputs) != 2:
            return None
        computed = self._values.get(operator.inputs[1 - place])
        width = None if computed is None else computed.shape
        array = self._constant(operator.inputs[place])
        return channel_name(self.file, operator, place, array, width, computed in self._learned)

    def _constant(self, number: int) -> np.ndarray | None:
        """Return what a tensor holds: a constant of the file, also one that a subgraph is given or that is unpacked."""
        if (array := self.file.tensors[number].array) is not None:
            return array
        value = self._values.get(number)
        return None if value is None else self.b.graph.constants.get(value)

    def _input_type(self, name: str, number: int, shape: Sequence[int] | None) -> TensorType:
        tensor = self.file.tensors[number]
        said = [int(n) for n in shape] if shape is not None else list(tensor.signature)
        if tensor.dtype is None or (tensor.dtype.kind not in "fi" and not tensor.is_quantized):
            raise UnsupportedError(
                f"{self.file.path}: the input {name!r} is {tensor.kind}: give the model with float32 or integer inputs",
                page="tflite-files",
            )
        if not said or any(n < 1 for n in said[1:]):
            raise UsageError(
                f"{self.file.path}: the input {name!r} has open axes, {said}: say its shape for one row, "
                f"shapes={{{name!r}: (1, ...)}}",
                page="tflite-files",
            )
        shape = (self.rows if said[0] in (1, -1) else said[0], *said[1:])
        if tensor.quantization is not None:
            return TensorType(shape, tensor.dtype, tensor.quantization)
        return TensorType(shape, FLOAT32 if tensor.dtype.kind == "f" else np.dtype(np.int32))

    def _layer(self, operator: FileOperator) -> str:
        return self.file.layer(operator.outputs[0]) if operator.outputs else ""

    def _source(self, operator: FileOperator) -> str:
        return self._ran_at or f"{Path(self.file.path).name}:{operator.number}"

    def carrier(self) -> Carrier:
        """Return what carries the file's own operators over, for these rows."""
        fed = {number: value.name for number, value in self._fed.items()}
        constants = {n: self.b.graph.constants[v] for n, v in self._values.items() if v in self.b.graph.constants}
        shapes = {number: value.shape for number, value in self._values.items()}
        return Carrier(self.file, self.rows, fed, shapes, constants, frozenset(self._integers))
