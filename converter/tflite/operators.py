"""The operators of a finished file: what each is, and each as a program of its own."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import flatbuffers
import numpy as np

from converter.tflite import schema
from converter.tflite.emit_buffers import Buffers
from converter.tflite.schema import generated

_NAMES = {code: name for name, code in vars(generated.BuiltinOperator).items() if isinstance(code, int)}
#: Elements of the largest constant whose numbers, not only their count, decide what an operator does: axes, paddings.
_MOST_ARGUMENTS = 64


class OperatorFile:
    """The operators of a TFLite file. Reading a damaged one raises struct.error, IndexError, ValueError or KeyError."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.model = generated.Model.GetRootAs(data, 0)
        self._kinds = [kind_of(self.model.OperatorCodes(i)) for i in range(self.model.OperatorCodesLength())]

    def subgraphs(self) -> Iterator[tuple[str, list[FileOperator]]]:
        """Each subgraph with its operators, in the file's order."""
        for i in range(self.model.SubgraphsLength()):
            graph = self.model.Subgraphs(i)
            operators = (graph.Operators(j) for j in range(graph.OperatorsLength()))
            yield (
                (graph.Name() or f"subgraph {i}".encode()).decode(),
                [FileOperator(self._kinds[o.OpcodeIndex()], self.model, graph, o) for o in operators],
            )


@dataclass(frozen=True, eq=False)
class FileOperator:
    """One operator of a file.

    Attributes:
        kind: the builtin's name.
    """

    kind: str
    _model: Any = field(repr=False)
    _graph: Any = field(repr=False)
    _table: Any = field(repr=False)

    @cached_property
    def key(self) -> tuple:
        """Equal for operators that do the same work: kind, options, types, and which operands are constants."""
        operator = generated.OperatorT.InitFromObj(self._table)
        options = [operator.builtinOptions, operator.builtinOptions2]
        said = tuple(None if o is None else tuple(f"{k}={v}" for k, v in sorted(vars(o).items())) for o in options)
        operands = tuple((self._places(i), *self._described(i)) for i in self._tensors)
        return operator.opcodeIndex, said, operands

    def program(self) -> bytes:
        """A TFLite file that runs this operator alone, on its constants and on inputs of the types it has here."""
        buffers = Buffers()
        numbers = {index: number for number, index in enumerate(self._tensors)} | {-1: -1}
        graph = generated.SubGraphT()
        graph.tensors = [generated.TensorT.InitFromObj(self._graph.Tensors(index)) for index in self._tensors]
        operator = generated.OperatorT.InitFromObj(self._table)
        operator.inputs = np.array([numbers[i] for i in self._inputs], np.int32)
        operator.outputs = np.array([numbers[i] for i in self._outputs], np.int32)
        graph.operators = [operator]
        given = [i for i in self._tensors if i not in self._outputs and not self._is_constant(i)]
        graph.inputs = np.array([numbers[i] for i in given], np.int32)
        graph.outputs = np.array([numbers[i] for i in self._outputs], np.int32)
        graphs = with_bodies(self._model, graph)
        for tensor in (tensor for graph in graphs for tensor in graph.tensors):
            stored = self._model.Buffers(tensor.buffer)
            tensor.buffer = buffers.add(stored.DataAsNumpy()) if stored.DataLength() else 0
        builder = flatbuffers.Builder(buffers.nbytes + 65536)
        codes = range(self._model.OperatorCodesLength())
        model = schema.table(
            builder,
            "Model",
            Version=schema.VERSION,
            OperatorCodes=schema.offset_vector(
                builder,
                [generated.OperatorCodeT.InitFromObj(self._model.OperatorCodes(i)).Pack(builder) for i in codes],
            ),
            Subgraphs=schema.offset_vector(builder, [graph.Pack(builder) for graph in graphs]),
            Buffers=schema.offset_vector(builder, buffers.write(builder)),
        )
        builder.Finish(model, file_identifier=schema.FILE_IDENTIFIER)
        return bytes(builder.Output())

    @cached_property
    def _inputs(self) -> list[int]:
        return [self._table.Inputs(i) for i in range(self._table.InputsLength())]

    @cached_property
    def _outputs(self) -> list[int]:
        return [self._table.Outputs(i) for i in range(self._table.OutputsLength())]

    @cached_property
    def _tensors(self) -> list[int]:
        """The operator's tensors without repetition; -1 stands for an operand that is left out."""
        return [i for i in dict.fromkeys((*self._inputs, *self._outputs)) if i >= 0]

    def _places(self, index: int) -> tuple[int, ...]:
        return tuple(place for place, used in enumerate((*self._inputs, *self._outputs)) if used == index)

    def _constant(self, index: int) -> np.ndarray:
        """The bytes of a constant; none of what is made at run time."""
        buffer = self._model.Buffers(self._graph.Tensors(index).Buffer())
        return buffer.DataAsNumpy() if buffer.DataLength() else np.zeros(0, np.uint8)

    def _is_constant(self, index: int) -> bool:
        return bool(self._constant(index).size)

    def _described(self, index: int) -> tuple:
        tensor = self._graph.Tensors(index)
        shape = tuple(tensor.Shape(i) for i in range(tensor.ShapeLength()))
        data = self._constant(index)
        quantized = tensor.Quantization().ScaleLength() if tensor.Quantization() else 0
        content = data.tobytes() if 0 < data.size <= _MOST_ARGUMENTS * 4 else None
        return shape, tensor.Type(), quantized, bool(data.size), content


def kind_of(code: Any) -> str:
    """The name of the builtin that an OperatorCode stands for."""
    # Files of before 2020 know only the one-byte field; the larger of the two is the code.
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    custom = code.CustomCode()
    return custom.decode() if custom else _NAMES[number]


def with_bodies(model: Any, graph: Any) -> list[Any]:
    """The subgraph and those that its loops run, at any depth, as a file has them whose first subgraph it is."""
    graphs = [graph]
    for caller in graphs:  # grows as bodies are found
        for operator in caller.operators:
            options = operator.builtinOptions
            if isinstance(options, generated.WhileOptionsT):
                for part in ("condSubgraphIndex", "bodySubgraphIndex"):
                    graphs.append(generated.SubGraphT.InitFromObj(model.Subgraphs(getattr(options, part))))
                    setattr(options, part, len(graphs) - 1)
    return graphs
