"""Fusion in an exported model: scales, shifts and biases in the dense layers and convolutions before them."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from converter.program.flatbuffer.schema import generated
from converter.runtime.export.plain_file import PlainFile

#: The axis of a filter that its output channels lie along.
_CHANNELS = {"CONV_2D": 0, "FULLY_CONNECTED": 0, "DEPTHWISE_CONV_2D": 3}
#: The versions with which FULLY_CONNECTED began to keep several axes, and to go without a bias.
_PLAIN, _SEVERAL_AXES, _NO_BIAS = 1, 5, 6


class _Following(NamedTuple):
    """What an operator does to each channel of the only one that it reads: `values` [channels] added or multiplied."""

    operator: Any
    kind: str
    values: np.ndarray


def absorb(file: PlainFile) -> None:
    """Products with constant matrices become dense layers, and filters and biases take in what follows by channel."""
    operators = file.graph.operators
    for operator in operators:
        _as_dense(file, operator)
    uses = Counter(int(i) for operator in operators for i in operator.inputs)
    uses.update(int(i) for i in file.graph.outputs)
    readers = {int(i): operator for operator in operators for i in operator.inputs}
    gone = set[int]()
    for operator in operators:
        while (then := _following(file, operator, uses, readers)) is not None:
            _take_in(file, operator, then)
            gone.add(id(then.operator))
    file.graph.operators = [operator for operator in operators if id(operator) not in gone]


def _as_dense(file: PlainFile, operator: Any) -> None:
    """Makes a product with a constant matrix a FULLY_CONNECTED without a bias."""
    if file.kind(operator) != "BATCH_MATMUL" or operator.builtinOptions.adjX:
        return
    index = int(operator.inputs[1])
    x, matrix = file.array(int(operator.inputs[0])), file.array(index)
    if x is not None or matrix is None or matrix.ndim != 2:
        return
    if not operator.builtinOptions.adjY:
        index = _constant(file, index, np.ascontiguousarray(matrix.T))
    several = len(file.graph.tensors[int(operator.outputs[0])].shape) > 2
    operator.inputs = np.array([operator.inputs[0], index], np.int32)
    operator.opcodeIndex = file.code("FULLY_CONNECTED", _NO_BIAS)
    operator.builtinOptionsType = generated.BuiltinOptions.FullyConnectedOptions
    operator.builtinOptions = generated.FullyConnectedOptionsT(keepNumDims=several)


def _following(file: PlainFile, operator: Any, uses: Counter[int], readers: dict[int, Any]) -> _Following | None:
    """Return the next operator, if it can be taken in."""
    result = int(operator.outputs[0])
    then, axis = readers.get(result), _CHANNELS.get(file.kind(operator))
    if axis is None or then is None or uses[result] != 1 or operator.builtinOptions.fusedActivationFunction:
        return None
    kind, index = file.kind(then), int(operator.inputs[1])
    filters = file.array(index)
    if kind not in ("ADD", "MUL") or filters is None or (kind == "MUL" and uses[index] != 1):
        return None
    if (bias := _bias(operator)) is not None and file.array(bias) is None:
        return None
    (other,) = [int(i) for i in then.inputs if int(i) != result]
    values = file.array(other)
    return _Following(then, kind, values) if values is not None and values.shape == (filters.shape[axis],) else None


def _bias(operator: Any) -> int | None:
    """Return the number of its bias."""
    return int(operator.inputs[2]) if len(operator.inputs) > 2 and operator.inputs[2] >= 0 else None


def _take_in(file: PlainFile, operator: Any, then: _Following) -> None:
    index, kind = int(operator.inputs[1]), file.kind(operator)
    old = None if (place := _bias(operator)) is None else file.array(place)
    inputs = [int(operator.inputs[0]), index]
    bias = then.values if old is None else old + then.values if then.kind == "ADD" else old * then.values
    if then.kind == "MUL":
        filters = file.array(index)
        assert filters is not None
        along = [-1 if axis == _CHANNELS[kind] else 1 for axis in range(filters.ndim)]
        file.constants[index] = filters * then.values.reshape(along)
    if old is not None or then.kind == "ADD":
        (other,) = [int(i) for i in then.operator.inputs if int(i) != int(operator.outputs[0])]
        inputs.append(_constant(file, other, bias))
    if kind == "FULLY_CONNECTED" and len(inputs) > 2:
        operator.opcodeIndex = file.code(kind, _SEVERAL_AXES if operator.builtinOptions.keepNumDims else _PLAIN)
    operator.inputs, operator.outputs = np.array(inputs, np.int32), then.operator.outputs
    operator.builtinOptions.fusedActivationFunction = then.operator.builtinOptions.fusedActivationFunction


def _constant(file: PlainFile, like: int, array: np.ndarray) -> int:
    """Adds a constant of the name of another; returns its number."""
    tensor = file.graph.tensors[like]
    made = generated.TensorT(name=tensor.name, type=tensor.type, shape=np.array(array.shape, np.int32))
    return file.add(made, array)
