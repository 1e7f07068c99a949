"""Operators of a finished file: what each is, and each as a program of its own."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from converter.program.flatbuffer.parts import constant_of, inputs_of, outputs_of, part
from converter.program.flatbuffer.schema import generated

_NAMES = {code: name for name, code in vars(generated.BuiltinOperator).items() if isinstance(code, int)}
#: Operators of the state, which mean something only among others of the same file.
STATE = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE")
#: Elements of the largest constant whose numbers, not only their count, decide what an operator does: axes, paddings.
_MOST_ARGUMENTS = 64


class OperatorFile:
    """The operators of a TFLite file. Reading a damaged one raises struct.error, IndexError, ValueError or KeyError."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.model = generated.Model.GetRootAs(data, 0)
        self._kinds = [kind_of(self.model.OperatorCodes(i)) for i in range(self.model.OperatorCodesLength())]

    def subgraphs(self) -> Iterator[tuple[str, list[FileOperator]]]:
        """Yield each subgraph with its operators, in the file's order."""
        for i in range(self.model.SubgraphsLength()):
            yield (self.model.Subgraphs(i).Name() or f"subgraph {i}".encode()).decode(), self.operators(i)

    def operators(self, subgraph: int) -> list[FileOperator]:
        """Return the operators of a subgraph in order."""
        graph = self.model.Subgraphs(subgraph)
        found, unpacking = list[FileOperator](), dict[int, Any]()
        for table in (graph.Operators(j) for j in range(graph.OperatorsLength())):
            kind = self._kinds[table.OpcodeIndex()]
            if kind == "DEQUANTIZE" and constant_of(self.model, graph, inputs_of(table)[0]).size:
                unpacking[outputs_of(table)[0]] = table
            unpacked = {i: unpacking[i] for i in inputs_of(table) if i in unpacking}
            found.append(FileOperator(kind, self.model, graph, table, unpacked))
        return found


@dataclass(frozen=True, eq=False)
class FileOperator:
    """One operator of a file.

    Attributes:
        kind: the builtin's name.
        table: the operator as the file has it.
        unpacked: operands that are known when the file is loaded, and the DEQUANTIZE that makes each of a constant.
    """

    kind: str
    _model: Any = field(repr=False)
    _graph: Any = field(repr=False)
    table: Any = field(repr=False)
    unpacked: Mapping[int, Any] = field(default_factory=dict, repr=False)

    @property
    def unpacks(self) -> bool:
        """Whether it is a DEQUANTIZE of a constant: what reads it has that done, and alone it is none."""
        return self.kind == "DEQUANTIZE" and bool(constant_of(self._model, self._graph, self.inputs[0]).size)

    @cached_property
    def key(self) -> tuple:
        """Equal for operators that do the same work: kind, options, types, and which operands are constants."""
        operator = generated.OperatorT.InitFromObj(self.table)
        options = [operator.builtinOptions, operator.builtinOptions2]
        said = tuple(None if o is None else tuple(f"{k}={v}" for k, v in sorted(vars(o).items())) for o in options)
        operands = tuple((self._places(i), *self._described(i)) for i in self._tensors)
        return operator.opcodeIndex, said, operands

    def program(self) -> bytes:
        """A TFLite file that runs this operator alone, on its constants and on inputs of the types it has here."""
        return part(self._model, self._graph, [*self.unpacked.values(), self.table], self.outputs)

    @cached_property
    def inputs(self) -> list[int]:
        """The numbers of its operands in the subgraph; -1 is one that is left out."""
        return inputs_of(self.table)

    @cached_property
    def outputs(self) -> list[int]:
        """The numbers of what it makes."""
        return outputs_of(self.table)

    @cached_property
    def _tensors(self) -> list[int]:
        """The operator's tensors without repetition; -1 stands for an operand that is left out."""
        return [i for i in dict.fromkeys((*self.inputs, *self.outputs)) if i >= 0]

    def _places(self, index: int) -> tuple[int, ...]:
        return tuple(place for place, used in enumerate((*self.inputs, *self.outputs)) if used == index)

    def _described(self, index: int) -> tuple:
        tensor = self._graph.Tensors(index)
        shape = tuple(tensor.Shape(i) for i in range(tensor.ShapeLength()))
        data = constant_of(self._model, self._graph, index)
        quantized = tensor.Quantization().ScaleLength() if tensor.Quantization() else 0
        content = data.tobytes() if 0 < data.size <= _MOST_ARGUMENTS * 4 else None
        return shape, tensor.Type(), quantized, bool(data.size) or index in self.unpacked, content


def kind_of(code: Any) -> str:
    """Return the name of the builtin that an OperatorCode stands for."""
    # Files of before 2020 know only the one-byte field; the larger of the two is the code.
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    custom = code.CustomCode()
    return custom.decode() if custom else _NAMES[number]
