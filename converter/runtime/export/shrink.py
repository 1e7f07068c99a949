"""Weight compression of an exported model: float16, or int8 with float32 activations."""

from __future__ import annotations

from copy import copy
from typing import Any, TypeGuard

import numpy as np

from converter.ir.scales import of_weight
from converter.program.flatbuffer import schema
from converter.program.flatbuffer.schema import generated
from converter.runtime.export.plain_file import PlainFile

#: Elements of the smallest weight that is worth it.
_LEAST = 1024
#: The version with which CONV_2D began to take float32 operands and int8 weights, a scale for each output channel.
_HYBRID_CONV = 5
#: The same for FULLY_CONNECTED with one scale, several dimensions kept. One for each channel is version 12, which only
#: LiteRT has: the exported model is to run anywhere.
_HYBRID_DENSE = 5
#: The version with which DEQUANTIZE began to take float16.
_FROM_FLOAT16 = 3


def with_float16(data: bytes) -> bytes:
    """Return the model with float16 weights after a DEQUANTIZE, which the runtime or a delegate unpacks at load.

    A weight that float16 cannot hold stays as it is, as does the bias of a kernel on int8 weights, which XNNPACK takes
    as a constant only.
    """
    file, unpacking = PlainFile(data), []
    graph = file.graph
    beside_int8 = {int(i) for operator in graph.operators if _has_int8(graph, operator) for i in operator.inputs}
    for index in sorted({int(i) for operator in graph.operators for i in operator.inputs if i >= 0} - beside_int8):
        weight = file.array(index)
        if not _is_worth_it(weight) or np.abs(weight).max() > np.finfo(np.float16).max:
            continue
        stored = copy(graph.tensors[index])
        stored.name, stored.type = f"{stored.name.decode()}/float16", generated.TensorType.FLOAT16
        number = file.add(stored, weight.astype(np.float16))
        file.constants.pop(index, None)
        graph.tensors[index].buffer = 0
        operator = generated.OperatorT(
            opcodeIndex=file.code("DEQUANTIZE", _FROM_FLOAT16),
            inputs=np.array([number], np.int32),
            outputs=np.array([index], np.int32),
        )
        unpacking.append(operator)
    graph.operators = [*unpacking, *graph.operators]
    return file.write()


def _has_int8(graph: Any, operator: Any) -> bool:
    """Return whether an operand is int8."""
    return any(graph.tensors[i].type == generated.TensorType.INT8 for i in operator.inputs if i >= 0)


def with_int8_weights(data: bytes) -> bytes:
    """Return the model with int8 weights in dense layers (of one scale) and convolutions (one an output channel).

    Their kernels find the range of each row of activations as they run (dynamic range). All else stays float32, as do
    depthwise convolutions, whose weights are few.
    """
    file = PlainFile(data)
    halves = _unpacked(file)
    made: dict[int, int] = {}  # by the weight
    for operator in file.graph.operators:
        kind = file.kind(operator)
        if kind not in ("FULLY_CONNECTED", "CONV_2D"):
            continue
        index = int(operator.inputs[1])
        weight = halves[index].astype(np.float32) if index in halves else file.array(index)
        if not _is_worth_it(weight):
            continue
        if index not in made:
            made[index] = _int8(file, index, weight, per_channel=kind == "CONV_2D")
        operator.inputs = np.array([operator.inputs[0], made[index], *operator.inputs[2:]], np.int32)
        operator.opcodeIndex = file.code(kind, _HYBRID_CONV if kind == "CONV_2D" else _HYBRID_DENSE)
    read = {int(i) for operator in file.graph.operators for i in operator.inputs}
    file.graph.operators = [o for o in file.graph.operators if not {*map(int, o.outputs)} <= halves.keys() - read]
    return file.write()


def _unpacked(file: PlainFile) -> dict[int, np.ndarray]:
    """Return the constants of float16 by the tensor that DEQUANTIZE makes of each."""
    found = {
        int(operator.outputs[0]): file.array(int(operator.inputs[0]))
        for operator in file.graph.operators
        if file.kind(operator) == "DEQUANTIZE"
    }
    return {index: array for index, array in found.items() if array is not None and array.dtype == np.float16}


def _is_worth_it(weight: np.ndarray | None) -> TypeGuard[np.ndarray]:
    return weight is not None and weight.dtype == np.float32 and weight.size >= _LEAST


def _int8(file: PlainFile, index: int, weight: np.ndarray, per_channel: bool) -> int:
    """Adds an int8 tensor [output channels, ...] for a weight; returns its number."""
    quantization, stored = of_weight(weight if per_channel else weight[np.newaxis], axis=0)
    stored = stored.reshape(weight.shape)
    scales = np.array(quantization.scales, np.float32)
    tensor = generated.TensorT(
        name=f"{file.graph.tensors[index].name.decode()}/int8",
        shape=np.array(weight.shape, np.int32),
        type=schema.tensor_type(stored.dtype),
        quantization=generated.QuantizationParametersT(scale=scales, zeroPoint=np.zeros(len(scales), np.int64)),
    )
    return file.add(tensor, stored)
