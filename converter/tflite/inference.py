"""A signature of a finished file as a plain model: what it reads of the state becomes constants."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import flatbuffers
import numpy as np

from converter.errors import UsageError
from converter.tflite import schema
from converter.tflite.emit_buffers import Buffers
from converter.tflite.fold import fold
from converter.tflite.operators import kind_of, with_bodies
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
    model, definition = _found(data, signature)
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
    return _finished(model, graph, definition, codes, constants, description)


def model_with_constants(
    data: bytes | mmap.mmap, signature: str, subgraph: str, values: Sequence[np.ndarray], description: str
) -> bytes:
    """The bytes of a `.tflite` with the inputs and outputs of a signature, computed by another subgraph of the file.

    Args:
        data: a program.
        signature: whose names the inputs and outputs have.
        subgraph: which takes the inputs of the signature that are no state, and then `values`.
        values: they become constants.
        description: free text for people.

    Raises:
        UsageError: there is no such subgraph, or it takes and gives something else.
    """
    model, definition = _found(data, signature)
    found = next((s for s in _each(model, "Subgraphs") if s.Name() == subgraph.encode()), None)
    before = generated.SubGraphT.InitFromObj(model.Subgraphs(definition.subgraphIndex))
    if found is None or (found.OutputsLength(), found.InputsLength() >= len(values)) != (len(before.outputs), True):
        raise UsageError(f"its subgraph {subgraph!r} is missing or damaged: build it again")
    graph = generated.SubGraphT.InitFromObj(found)
    count = len(graph.inputs) - len(values)
    places = dict(zip(before.outputs, graph.outputs, strict=True))
    for entry in definition.outputs:
        entry.tensorIndex = places[entry.tensorIndex]
    definition.inputs = definition.inputs[:count]
    for entry, index in zip(definition.inputs, graph.inputs, strict=False):
        entry.tensorIndex = index
    constants = dict(zip(map(int, graph.inputs[count:]), values, strict=True))
    graph.inputs = graph.inputs[:count]
    codes = [generated.OperatorCodeT.InitFromObj(code) for code in _each(model, "OperatorCodes")]
    fold(graph, [kind_of(code) for code in _each(model, "OperatorCodes")], constants, partial(_stored, model, graph))
    return _finished(model, graph, definition, codes, constants, description)


def _stored(model: Any, graph: Any, index: int) -> np.ndarray | None:
    """The numbers of a tensor that the file holds."""
    tensor = graph.tensors[index]
    stored = model.Buffers(tensor.buffer)
    dtype = {generated.TensorType.FLOAT32: "<f4", generated.TensorType.INT32: "<i4"}.get(tensor.type)
    if not stored.DataLength() or dtype is None:
        return None
    return stored.DataAsNumpy().view(dtype).reshape(tensor.shape)


def _found(data: bytes | mmap.mmap, signature: str) -> tuple[Any, Any]:
    """The model and the definition of a signature."""
    model = generated.Model.GetRootAs(data, 0)
    found = next(s for s in _each(model, "SignatureDefs") if s.SignatureKey().decode() == signature)
    return model, generated.SignatureDefT.InitFromObj(found)


def _finished(
    model: Any, graph: Any, definition: Any, codes: list[Any], constants: Mapping[int, np.ndarray], description: str
) -> bytes:
    places = _renumber(graph)
    for entry in (*definition.inputs, *definition.outputs):
        entry.tensorIndex = places[entry.tensorIndex]
    definition.subgraphIndex = 0
    kept = {places[i]: a for i, a in constants.items() if i in places}
    return _write(model, with_bodies(model, graph), definition, codes, kept, description)


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
    model: Any,
    graphs: Sequence[Any],
    definition: Any,
    codes: list[Any],
    constants: Mapping[int, np.ndarray],
    description: str,
) -> bytes:
    """The file; `constants` are tensors of the first graph."""
    buffers = Buffers()
    for graph in graphs:
        for i, tensor in enumerate(graph.tensors):
            stored = model.Buffers(tensor.buffer)
            known = constants.get(i) if graph is graphs[0] else None
            data = stored.DataAsNumpy() if known is None and stored.DataLength() else known
            tensor.buffer = 0 if data is None else buffers.add(data)
    operators = [operator for graph in graphs for operator in graph.operators]
    used = sorted({operator.opcodeIndex for operator in operators})
    for operator in operators:
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
        Subgraphs=schema.offset_vector(builder, [graph.Pack(builder) for graph in graphs]),
        Buffers=offsets,
        SignatureDefs=schema.offset_vector(builder, [definition.Pack(builder)]),
    )
    builder.Finish(written, file_identifier=schema.FILE_IDENTIFIER)
    return bytes(builder.Output())


def _each(table: Any, field: str) -> Iterable[Any]:
    return (getattr(table, field)(i) for i in range(getattr(table, f"{field}Length")()))


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
