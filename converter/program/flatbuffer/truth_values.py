"""Booleans as numbers, for engines that take and give no others."""

from __future__ import annotations

from typing import Any

import flatbuffers

from converter.program.flatbuffer import schema
from converter.program.flatbuffer.schema import generated

_TYPE, _CODE = generated.TensorType, generated.BuiltinOperator.CAST


def with_numbers(program: bytes) -> bytes:
    """Return a part whose truth values come in and go out as int32, 0 and 1.

    See `converter.program.flatbuffer.parts`.
    """
    model = generated.ModelT.InitFromPackedBuf(program, 0)
    graph, signature = model.subgraphs[0], model.signatureDefs[0]

    def numbers(named: list[Any]) -> dict[int, int]:
        """By tensor of truth values, one of numbers, which the signature has in its place."""
        found: dict[int, int] = {}
        for entry in named:
            tensor = graph.tensors[entry.tensorIndex]
            if tensor.type == _TYPE.BOOL:
                shape = {"shape": tensor.shape, "shapeSignature": tensor.shapeSignature}
                graph.tensors.append(generated.TensorT(name=entry.name, type=_TYPE.INT32, **shape))
                found[entry.tensorIndex] = entry.tensorIndex = len(graph.tensors) - 1
        return found

    def cast(source: int, result: int) -> Any:
        options = generated.CastOptionsT(graph.tensors[source].type, graph.tensors[result].type)
        kind = generated.BuiltinOptions.CastOptions
        return generated.OperatorT(number, [source], [result], builtinOptionsType=kind, builtinOptions=options)

    taken, given = numbers(signature.inputs), numbers(signature.outputs)
    if not taken and not given:
        return program
    number = len(model.operatorCodes)
    model.operatorCodes.append(generated.OperatorCodeT(_CODE, builtinCode=_CODE, version=1))
    before = [cast(new, old) for old, new in taken.items()]
    graph.operators = [*before, *graph.operators, *(cast(old, new) for old, new in given.items())]
    graph.inputs = [taken.get(i, i) for i in graph.inputs]
    graph.outputs = [given.get(i, i) for i in graph.outputs]
    builder = flatbuffers.Builder(len(program) + 4096)
    builder.Finish(model.Pack(builder), file_identifier=schema.FILE_IDENTIFIER)
    return bytes(builder.Output())
