"""Inputs that a graph makes int8 of before all else: the session does it as it fills them, and gives int8.

A row of float32 would take four times the RAM, and lie in the arena beside the integers that are made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.program.flatbuffer.schema import generated


@dataclass(frozen=True)
class Int8Scale:
    """What integers stand for: a number is `scale` times what one is above `zero_point`."""

    scale: float
    zero_point: int


def int8_input(model: Any, graph: Any, tensor: int) -> Int8Scale | None:
    """Return the integers that are made of an input; None where anything else reads it.

    Args:
        model: the file (`Model`), which has the operators' codes.
        graph: a subgraph of it (`SubGraphT`).
        tensor: the number of its input.
    """
    reader = _only_reader(graph, tensor)
    if reader is None or model.OperatorCodes(reader.opcodeIndex).BuiltinCode() != generated.BuiltinOperator.QUANTIZE:
        return None
    made = graph.tensors[reader.outputs[0]]
    if made.type != generated.TensorType.INT8 or graph.tensors[tensor].type != generated.TensorType.FLOAT32:
        return None
    return Int8Scale(float(made.quantization.scale[0]), int(made.quantization.zeroPoint[0]))


def take_int8(graph: Any, tensors: Sequence[int]) -> None:
    """Change a subgraph so that inputs are the integers that it made of them (`int8_input`).

    Before: x float32 -> QUANTIZE -> q int8 -> CONV_2D.   After: q int8 -> CONV_2D.
    """
    numbers = {}
    for tensor in tensors:
        reader = _only_reader(graph, tensor)
        graph.operators.remove(reader)
        numbers[tensor] = int(reader.outputs[0])
    graph.inputs = np.array([numbers.get(int(i), i) for i in graph.inputs], np.int32)
    left = [i for i in range(len(graph.tensors)) if i not in numbers]
    graph.tensors = [graph.tensors[i] for i in left]
    places = {old: new for new, old in enumerate(left)} | {-1: -1}
    graph.inputs, graph.outputs = (_renumbered(of, places) for of in (graph.inputs, graph.outputs))
    for operator in graph.operators:
        operator.inputs, operator.outputs = (_renumbered(of, places) for of in (operator.inputs, operator.outputs))


def _only_reader(graph: Any, tensor: int) -> Any:
    readers = [operator for operator in graph.operators if tensor in list(operator.inputs)]
    return readers[0] if len(readers) == 1 and tensor not in list(graph.outputs) else None


def _renumbered(tensors: Sequence[int], places: dict[int, int]) -> np.ndarray:
    return np.array([places[int(i)] for i in tensors], np.int32)
