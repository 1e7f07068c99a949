"""One array of several models that share their constants: of a model the first graph alone is run.

A flatbuffer is tables that refer to what stands after them, and where its first table stands is said by four bytes
that may lie anywhere before it. So the buffers of all models stand once, at the end, and each model has such four
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from converter.program.file import ProgramFile
from converter.program.flatbuffer import schema
from converter.program.flatbuffer.buffers import Buffers
from converter.program.flatbuffer.schema import generated
from converter.tools.micro.entries import Entry

_NAMES = {n: name for name, n in vars(generated.BuiltinOperator).items() if isinstance(n, int)}


@dataclass(frozen=True)
class Joined:
    """Models in one array of bytes.

    Attributes:
        data: begins at a multiple of 16 where it is used.
        starts: where the model of each entry begins.
        operators: the names of the builtins that any of them runs.
    """

    data: bytes
    starts: tuple[int, ...]
    operators: tuple[str, ...]


def joined(program: ProgramFile, entries: Sequence[Entry]) -> Joined:
    """Return the models of signatures, without names of tensors and what else only people read."""
    model = generated.Model.GetRootAs(program.data, 0)
    buffers, codes = Buffers(), list[int]()
    graphs = [[_stripped(model, graph, buffers, codes) for graph in entry.graphs] for entry in entries]
    builder = schema.roomy_builder(buffers.nbytes)
    stored = buffers.write(builder)
    known = [generated.OperatorCodeT.InitFromObj(model.OperatorCodes(code)).Pack(builder) for code in codes]
    roots, packed = list[int](), 0
    for parts in graphs:
        packed = schema.table(
            builder,
            "Model",
            Version=schema.VERSION,
            OperatorCodes=schema.offset_vector(builder, known),
            Subgraphs=schema.offset_vector(builder, [graph.Pack(builder) for graph in parts]),
            Buffers=schema.offset_vector(builder, stored),
        )
        builder.PrependUOffsetTRelative(packed)
        roots.append(builder.Offset())
    builder.Finish(packed, file_identifier=schema.FILE_IDENTIFIER)
    data = buffers.file(builder)
    names = {_NAMES[_builtin(model.OperatorCodes(code))] for code in codes}
    return Joined(data, tuple(len(data) - root for root in roots), tuple(sorted(names)))


def _stripped(model: Any, graph: Any, buffers: Buffers, codes: list[int]) -> Any:
    """Return a graph (`SubGraphT`) without names, its constants in `buffers` and its operators' codes in `codes`."""
    graph.name = None
    for tensor in graph.tensors:
        tensor.name = None
        data = schema.buffer_data(model._tab.Bytes, model.Buffers(tensor.buffer))
        tensor.buffer = buffers.add(data) if data.size else 0
    graph.operators = [copy(operator) for operator in graph.operators]
    for operator in graph.operators:
        if operator.opcodeIndex not in codes:
            codes.append(operator.opcodeIndex)
        operator.opcodeIndex = codes.index(operator.opcodeIndex)
    return graph


def _builtin(code: Any) -> int:
    return max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
