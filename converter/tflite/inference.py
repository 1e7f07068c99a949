"""A signature of a finished file as a plain model: what it reads of the state becomes constants."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import flatbuffers
import numpy as np

from converter.tflite import schema
from converter.tflite.emit_buffers import Buffers
from converter.tflite.operators import kind_of
from converter.tflite.schema import generated

#: Operators that the delegate runs only on constant filters and biases, with other kernels than the runtime's own.
_CHOOSY = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV")


def plain_model(
    data: bytes | mmap.mmap, signature: str, state: Mapping[str, np.ndarray], exact: bool, description: str
) -> bytes:
    """The bytes of a `.tflite` with this signature alone, the same operators on the same numbers.

    Args:
        data: a program.
        signature: which has no effect on the state.
        state: the state's tensors by name, of which the signature may read some; as variables or as inputs.
        exact: a filter that was no constant goes through a RESHAPE, so that it is none for the delegate either, which
            would choose another kernel, whose last bits differ.
        description: free text for people.
    """
    model = generated.Model.GetRootAs(data, 0)
    found = next(s for s in _each(model, "SignatureDefs") if s.SignatureKey().decode() == signature)
    definition = generated.SignatureDefT.InitFromObj(found)
    graph = generated.SubGraphT.InitFromObj(model.Subgraphs(definition.subgraphIndex))
    codes = [generated.OperatorCodeT.InitFromObj(code) for code in _each(model, "OperatorCodes")]
    kinds = [kind_of(code) for code in _each(model, "OperatorCodes")]
    constants = _read(graph, kinds, state)
    for entry in [entry for entry in definition.inputs if _text(entry.name) in state]:
        constants[entry.tensorIndex] = state[_text(entry.name)]
        definition.inputs.remove(entry)
    graph.inputs = np.array([i for i in graph.inputs if i not in constants], np.int32)
    _drop(graph, kinds, {"VAR_HANDLE", "READ_VARIABLE", "CALL_ONCE"})
    if exact:
        _keep_from_delegate(graph, kinds, constants, codes)
    places = _renumber(graph)
    for entry in (*definition.inputs, *definition.outputs):
        entry.tensorIndex = places[entry.tensorIndex]
    definition.subgraphIndex = 0
    return _write(model, graph, definition, codes, {places[i]: a for i, a in constants.items()}, description)


def _read(graph: Any, kinds: Sequence[str], state: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
    """Tensors that hold what was read of a variable."""
    handles, constants = {}, {}
    for operator in graph.operators:
        if kinds[operator.opcodeIndex] == "VAR_HANDLE":
            handles[operator.outputs[0]] = _text(operator.builtinOptions.sharedName)
        elif kinds[operator.opcodeIndex] == "READ_VARIABLE":
            constants[operator.outputs[0]] = state[handles[operator.inputs[0]]]
    return constants


def _drop(graph: Any, kinds: Sequence[str], unwanted: set[str]) -> None:
    graph.operators = [operator for operator in graph.operators if kinds[operator.opcodeIndex] not in unwanted]


def _keep_from_delegate(graph: Any, kinds: Sequence[str], constants: dict[int, np.ndarray], codes: list[Any]) -> None:
    """Filters and biases of the state become results of a RESHAPE."""
    readers = [o for o in graph.operators if kinds[o.opcodeIndex] in _CHOOSY]
    kept = dict.fromkeys(int(i) for o in readers for i in o.inputs if i in constants)
    if not kept:
        return
    reshape = schema.builtin_code("RESHAPE")
    codes.append(generated.OperatorCodeT(deprecatedBuiltinCode=reshape, builtinCode=reshape, version=1))
    operators = []
    for index in kept:
        stored = copy(graph.tensors[index])
        stored.name, stored.shape = f"{_text(stored.name)}/stored", np.array([constants[index].size], np.int32)
        options = generated.ReshapeOptionsT(newShape=graph.tensors[index].shape)
        number = len(graph.tensors)
        graph.tensors.append(stored)
        constants[number] = constants.pop(index)
        operator = generated.OperatorT(
            opcodeIndex=len(codes) - 1,
            inputs=np.array([number], np.int32),
            outputs=np.array([index], np.int32),
            builtinOptionsType=generated.BuiltinOptions.ReshapeOptions,
            builtinOptions=options,
        )
        operators.append(operator)
    graph.operators = [*operators, *graph.operators]


def _renumber(graph: Any) -> dict[int, int]:
    """Leaves out tensors that nobody uses any more; returns the new numbers by the old ones."""
    used = {int(i) for o in graph.operators for i in (*o.inputs, *o.outputs)} | {*graph.inputs, *graph.outputs}
    places = {old: new for new, old in enumerate(sorted(used - {-1}))}
    graph.tensors = [graph.tensors[old] for old in places]
    for operator in graph.operators:
        operator.inputs = _renumbered(operator.inputs, places)
        operator.outputs = _renumbered(operator.outputs, places)
    graph.inputs, graph.outputs = _renumbered(graph.inputs, places), _renumbered(graph.outputs, places)
    return places


def _renumbered(indices: Iterable[int], places: Mapping[int, int]) -> np.ndarray:
    return np.array([places.get(i, -1) for i in indices], np.int32)


def _write(
    model: Any, graph: Any, definition: Any, codes: list[Any], constants: Mapping[int, np.ndarray], description: str
) -> bytes:
    buffers = Buffers()
    for i, tensor in enumerate(graph.tensors):
        stored = model.Buffers(tensor.buffer)
        data = constants[i] if i in constants else stored.DataAsNumpy() if stored.DataLength() else None
        tensor.buffer = 0 if data is None else buffers.add(data)
    used = sorted({operator.opcodeIndex for operator in graph.operators})
    for operator in graph.operators:
        operator.opcodeIndex = used.index(operator.opcodeIndex)
    builder = flatbuffers.Builder(buffers.nbytes + 65536)
    kept = [codes[i].Pack(builder) for i in used]
    offsets = schema.offset_vector(builder, buffers.write(builder))
    written = schema.table(
        builder,
        "Model",
        Version=schema.VERSION,
        Description=description,
        OperatorCodes=schema.offset_vector(builder, kept),
        Subgraphs=schema.offset_vector(builder, [graph.Pack(builder)]),
        Buffers=offsets,
        SignatureDefs=schema.offset_vector(builder, [definition.Pack(builder)]),
    )
    builder.Finish(written, file_identifier=schema.FILE_IDENTIFIER)
    return bytes(builder.Output())


def _each(table: Any, field: str) -> Iterable[Any]:
    return (getattr(table, field)(i) for i in range(getattr(table, f"{field}Length")()))


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
