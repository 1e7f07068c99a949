"""Subgraph extraction: operators of a finished file as files of their own, on inputs of the types that they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from converter.program.flatbuffer import schema
from converter.program.flatbuffer.buffers import Buffers
from converter.program.flatbuffer.schema import generated

#: Fields of options that name subgraphs.
_BODIES: dict[type, tuple[str, ...]] = {
    generated.WhileOptionsT: ("condSubgraphIndex", "bodySubgraphIndex"),
    generated.IfOptionsT: ("thenSubgraphIndex", "elseSubgraphIndex"),
    generated.CallOnceOptionsT: ("initSubgraphIndex",),
    generated.StableHLOCompositeOptionsT: ("decompositionSubgraphIndex",),
}
#: The only signature of a part.
SIGNATURE = "part"


def part(model: Any, graph: Any, operators: Sequence[Any], outputs: Sequence[int], inputs: Sequence[int] = ()) -> bytes:
    """Return a TFLite file that runs operators of a subgraph.

    Args:
        model: the file.
        graph: a subgraph of it.
        operators: those that run, in this order.
        outputs: tensors that they make and that are wanted.
        inputs: tensors that are taken, used or not, besides those that the operators use and nothing makes.

    Returns:
        The file. Its signature `part` calls each input and output by the name that `tensor_name` gives.
    """
    buffers = Buffers()
    made = {index for operator in operators for index in outputs_of(operator)}
    used = [i for operator in operators for i in (*inputs_of(operator), *outputs_of(operator)) if i >= 0]
    tensors = list(dict.fromkeys((*used, *inputs)))
    numbers = {index: number for number, index in enumerate(tensors)} | {-1: -1}
    subgraph = generated.SubGraphT()
    subgraph.tensors = [generated.TensorT.InitFromObj(graph.Tensors(index)) for index in tensors]
    subgraph.operators = [_renumbered(operator, numbers) for operator in operators]
    taken = [i for i in tensors if i not in made and (i in inputs or not _is_constant(model, graph, i))]
    subgraph.inputs = np.array([numbers[i] for i in taken], np.int32)
    subgraph.outputs = np.array([numbers[i] for i in outputs], np.int32)
    graphs = with_bodies(model, subgraph)
    for tensor in (tensor for graph in graphs for tensor in graph.tensors):
        stored = model.Buffers(tensor.buffer)
        data = schema.buffer_data(model._tab.Bytes, stored)
        tensor.buffer = buffers.add(data) if data.size else 0
    builder = schema.roomy_builder(buffers.nbytes)
    signature = generated.SignatureDefT(signatureKey=SIGNATURE, subgraphIndex=0)
    signature.inputs = [generated.TensorMapT(tensor_name(i), numbers[i]) for i in taken]
    signature.outputs = [generated.TensorMapT(tensor_name(i), numbers[i]) for i in outputs]
    codes = range(model.OperatorCodesLength())
    packed = schema.table(
        builder,
        "Model",
        Version=schema.VERSION,
        OperatorCodes=schema.offset_vector(
            builder, [generated.OperatorCodeT.InitFromObj(model.OperatorCodes(i)).Pack(builder) for i in codes]
        ),
        Subgraphs=schema.offset_vector(builder, [graph.Pack(builder) for graph in graphs]),
        Buffers=schema.offset_vector(builder, buffers.write(builder)),
        SignatureDefs=schema.offset_vector(builder, [signature.Pack(builder)]),
    )
    builder.Finish(packed, file_identifier=schema.FILE_IDENTIFIER)
    return buffers.file(builder)


def tensor_name(index: int) -> str:
    """Return what the signature of a part calls a tensor of the file."""
    return f"t{index}"


def inputs_of(operator: Any) -> list[int]:
    """Return the numbers of an operator's operands; -1 is one that is left out."""
    return [operator.Inputs(i) for i in range(operator.InputsLength())]


def outputs_of(operator: Any) -> list[int]:
    """Return the numbers of what an operator makes."""
    return [operator.Outputs(i) for i in range(operator.OutputsLength())]


def constant_of(model: Any, graph: Any, index: int) -> np.ndarray:
    """Return the bytes of a constant; none of what is made at run time."""
    buffer = model.Buffers(graph.Tensors(index).Buffer())
    return schema.buffer_data(model._tab.Bytes, buffer)


def _is_constant(model: Any, graph: Any, index: int) -> bool:
    """Return whether a tensor that nothing makes is a constant, which may hold nothing: the shape of one number."""
    tensor = graph.Tensors(index)
    return bool(constant_of(model, graph, index).size) or 0 in [tensor.Shape(i) for i in range(tensor.ShapeLength())]


def with_bodies(model: Any, graph: Any) -> list[Any]:
    """Return the subgraph and those that its operators run, at any depth, as a file has them whose first it is."""
    graphs, numbers = [graph], dict[int, int]()
    for caller in graphs:  # grows as bodies are found
        for operator in caller.operators:
            for name, number in bodies_of(operator).items():
                if number not in numbers:
                    numbers[number] = len(graphs)
                    graphs.append(generated.SubGraphT.InitFromObj(model.Subgraphs(number)))
                setattr(options_of(operator), name, numbers[number])
    return graphs


def bodies_of(operator: Any) -> dict[str, int]:
    """Return which subgraphs an operator (`OperatorT`) runs, by the fields of its options."""
    options = options_of(operator)
    return {name: getattr(options, name) for name in _BODIES.get(type(options), ())}


def options_of(operator: Any) -> Any:
    """Return the options table of an operator (`OperatorT`); None where it has none."""
    return operator.builtinOptions if operator.builtinOptions is not None else operator.builtinOptions2


def _renumbered(operator: Any, numbers: Mapping[int, int]) -> Any:
    table = generated.OperatorT.InitFromObj(operator)
    table.inputs = np.array([numbers[i] for i in inputs_of(operator)], np.int32)
    table.outputs = np.array([numbers[i] for i in outputs_of(operator)], np.int32)
    return table
