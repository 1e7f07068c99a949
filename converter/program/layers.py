"""Operators by layer of the user's model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from converter.ir import Origin
from converter.program.file import ProgramFile
from converter.program.flatbuffer.operators import FileOperator, OperatorFile
from converter.program.flatbuffer.parts import constant_of, part
from converter.program.flatbuffer.schema import generated
from converter.program.origins import read_origins
from converter.support.errors import UsageError

_DTYPES = {
    generated.TensorType.FLOAT32: np.float32,
    generated.TensorType.INT32: np.int32,
    generated.TensorType.BOOL: np.bool_,
}


class Place(NamedTuple):
    """An operator of a signature and where it comes from."""

    operator: FileOperator
    origin: Origin


class OperatorEntry:
    """A signature of a file.

    Attributes:
        name: of the signature.
        places: its operators in order.
        inputs: names by tensor.
        outputs: names by tensor.
        made: by tensor the number of the operator that makes it; none of what is known when the file is loaded.
    """

    def __init__(self, file: OperatorFile, definition: Any, origins: Sequence[Origin]) -> None:
        self.name = definition.SignatureKey().decode()
        self._model, self._graph = file.model, file.model.Subgraphs(definition.SubgraphIndex())
        operators = file.operators(definition.SubgraphIndex())
        if len(origins) != len(operators):
            raise UsageError("its operators are not those that it says they are: build it again", page="program-files")
        self.places = [Place(*pair) for pair in zip(operators, origins, strict=True)]
        self.inputs = {
            m.TensorIndex(): m.Name().decode() for m in map(definition.Inputs, range(definition.InputsLength()))
        }
        self.outputs = {
            m.TensorIndex(): m.Name().decode() for m in map(definition.Outputs, range(definition.OutputsLength()))
        }
        self.made = {
            index: number
            for number, place in enumerate(self.places)
            if not place.operator.unpacks
            for index in place.operator.outputs
        }

    def part(self, numbers: Iterable[int], outputs: Sequence[int]) -> bytes:
        """Return some of its operators as a file of their own."""
        operators = [self.places[n].operator for n in numbers]
        unpacking = {i: table for operator in operators for i, table in operator.unpacked.items()}
        tables = [operator.table for operator in operators if not operator.unpacks]
        return part(self._model, self._graph, [*unpacking.values(), *tables], outputs)

    def operands(self, number: int) -> list[int]:
        """Return what an operator reads that is no constant."""
        operator = self.places[number].operator
        read = [i for i in dict.fromkeys(operator.inputs) if i >= 0 and i not in operator.unpacked]
        return [i for i in read if not constant_of(self._model, self._graph, i).size]

    def read(self, number: int) -> list[int]:
        """Return what somebody reads of what an operator makes."""
        return [i for i in self.places[number].operator.outputs if i in self._read]

    @cached_property
    def _read(self) -> set[int]:
        return {i for place in self.places for i in place.operator.inputs} | set(self.outputs)

    def dtype(self, index: int) -> Any:
        """Return the element type of a tensor; None for one that no NumPy array holds."""
        return _DTYPES.get(self._tensor(index).Type())

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        tensor = self._tensor(index)
        return tuple(tensor.Shape(i) for i in range(tensor.ShapeLength()))

    def _tensor(self, index: int) -> Any:
        return self._graph.Tensors(index)


class Layers:
    """The signatures of a program."""

    def __init__(self, program: ProgramFile) -> None:
        self._file = OperatorFile(program.data)
        self._origins = read_origins(program)

    def entry(self, name: str) -> OperatorEntry:
        """Return a signature."""
        return next(entry for entry in self.entries if entry.name == name)

    @cached_property
    def entries(self) -> list[OperatorEntry]:
        """All signatures."""
        model = self._file.model
        definitions = (model.SignatureDefs(i) for i in range(model.SignatureDefsLength()))
        return [OperatorEntry(self._file, d, self._origins.get(d.SignatureKey().decode(), ())) for d in definitions]
