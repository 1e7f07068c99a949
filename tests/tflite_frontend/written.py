"""Files of a few operators, written with the schema's own classes: what no converter of ours has touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

_TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "float16": schema.TensorType.FLOAT16,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
    "bool": schema.TensorType.BOOL,
    "int8": schema.TensorType.INT8,
}
#: An operator: the builtin, operands and results by name (an empty one is left out), and options by their table.
Operator = tuple[str, Sequence[str], Sequence[str], tuple[str, Mapping[str, Any]] | None]


def file_of(
    tensors: Mapping[str, Any],
    operators: Sequence[Operator],
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    bodies: Sequence[tuple[Mapping[str, Any], Sequence[Operator], Sequence[str], Sequence[str]]] = (),
    variables: Sequence[str] = (),
) -> bytes:
    """Return a file.

    Args:
        tensors: constants as arrays, others as (shape, type).
        operators: in order.
        inputs: of the file.
        outputs: of the file.
        bodies: the same four of further subgraphs, which operators run.
        variables: tensors that the runtime keeps from call to call.
    """
    model = schema.ModelT()
    model.version, model.buffers, model.operatorCodes, model.subgraphs = 3, [schema.BufferT()], [], []
    for graph in [(tensors, operators, inputs, outputs), *bodies]:
        model.subgraphs.append(_subgraph(model, *graph, variables))
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _subgraph(
    model: Any,
    tensors: Mapping[str, Any],
    operators: Sequence[Operator],
    inputs: Sequence[str],
    outputs: Sequence[str],
    variables: Sequence[str],
) -> Any:
    graph, places = schema.SubGraphT(), {"": -1, **{name: i for i, name in enumerate(tensors)}}
    graph.tensors, graph.operators = [], []
    for name, given in tensors.items():
        tensor = schema.TensorT()
        tensor.name, tensor.isVariable = name, name in variables
        constant = isinstance(given, np.ndarray | np.generic)
        shape, dtype = (given.shape, given.dtype.name) if constant else given
        tensor.shape, tensor.type = list(shape), _TYPES[dtype]
        tensor.buffer = 0
        if constant:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(given).tobytes(), np.uint8)
            tensor.buffer = len(model.buffers)
            model.buffers.append(buffer)
        graph.tensors.append(tensor)
    for kind, operands, results, options in operators:
        operator = schema.OperatorT()
        operator.opcodeIndex = _code(model, kind)
        operator.inputs, operator.outputs = [places[n] for n in operands], [places[n] for n in results]
        if options is not None:
            table, fields = options
            said = getattr(schema, f"{table}T")()
            for field, value in fields.items():
                setattr(said, field, value)
            second = not hasattr(schema.BuiltinOptions, table)
            union = schema.BuiltinOptions2 if second else schema.BuiltinOptions
            if second:
                operator.builtinOptions2Type, operator.builtinOptions2 = getattr(union, table), said
            else:
                operator.builtinOptionsType, operator.builtinOptions = getattr(union, table), said
        graph.operators.append(operator)
    graph.inputs, graph.outputs = [places[n] for n in inputs], [places[n] for n in outputs]
    return graph


#: Of operators whose first version lacks what is used here.
_VERSIONS = {
    "FULLY_CONNECTED": 5,
    "TRANSPOSE_CONV": 3,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": 1,
    "GATHER": 5,
    "CONV_2D": 6,
    "BROADCAST_TO": 2,
}


def _code(model: Any, kind: str) -> int:
    builtin = getattr(schema.BuiltinOperator, kind)
    for number, code in enumerate(model.operatorCodes):
        if code.builtinCode == builtin:
            return number
    code = schema.OperatorCodeT()
    code.builtinCode, code.deprecatedBuiltinCode, code.version = builtin, min(builtin, 127), _VERSIONS.get(kind, 1)
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1
