"""Rounding to float16: frozen weights become the nearest numbers of float16, and are float32 all the same."""

from __future__ import annotations

import numpy as np

from converter.backend.quantize.choose import Form, FrozenLayer
from converter.backend.quantize.store_as_float16 import LEAST
from converter.ir import FLOAT16, FLOAT32, Graph, Node, Value, dependents, fingerprint, ops
from converter.ir.described import described, is_described

#: What multiplies by a weight or reads rows of it, with the place of the weight and the builtin.
_READERS = {
    ops.Conv2D: (1, "CONV_2D"), ops.DepthwiseConv2D: (1, "DEPTHWISE_CONV_2D"),
    ops.MatMul: (1, "FULLY_CONNECTED"), ops.CastMatMul: (1, "FULLY_CONNECTED"), ops.Gather: (0, "GATHER"),
}  # fmt: skip


def rounded_to_float16(graph: Graph) -> tuple[Graph, tuple[FrozenLayer, ...]]:
    """Return a forward graph whose frozen weights are numbers of float16.

    What is computed is that of a model with these weights, forward and backward.

    Args:
        graph: what is frozen in constants; nothing of it folds any more.

    Returns:
        The graph, and what became of each frozen layer with weights.
    """
    after, layers = graph.copy(), list[FrozenLayer]()
    readers, activations = graph.consumers(), dependents(graph, graph.inputs)
    for value, array in graph.constants.items():
        reading = [node for node in readers.get(value, ()) if type(node.op) in _READERS]
        if not reading or value.dtype != FLOAT32 or value.type.rank < 2:
            continue
        why = _why_not(array, value, readers[value])
        if why is None:
            after.constants[value] = nearest(array)
        form: Form = "float16" if why is None else "float32"
        for node in reading:
            if isinstance(node.op, ops.MatMul) and activations.isdisjoint(node.inputs):
                continue  # of what trains, no layer
            layers.append(FrozenLayer(node.origin.layer, _READERS[type(node.op)][1], form, why or "weights"))
    return after, tuple(layers)


def _why_not(array: np.ndarray, value: Value, readers: list[Node]) -> str | None:
    """Return why a weight stays as it is, if so."""
    if (why := _stays(array)) is not None:
        return why
    for node in readers:
        place, _ = _READERS.get(type(node.op), (-1, ""))
        if [i for i, v in enumerate(node.inputs) if v is value] != [place]:
            return f"also read by {node.op.name}"
    return None


def _stays(array: np.ndarray) -> str | None:
    """Return why a weight of such numbers stays as it is, if so."""
    if array.size < LEAST:
        return "small"
    if not is_described(array) and np.abs(array).max() > np.finfo(FLOAT16).max:
        return "float16 ends at 65504"
    return None


def nearest(array: np.ndarray) -> np.ndarray:
    """Return a frozen weight rounded, or as it is where it stays so whatever reads it."""
    if _stays(array) is not None:
        return array
    if is_described(array):
        return described(array.shape, f"float16 of {fingerprint(array)}", of_float16=True)
    return array.astype(FLOAT16).astype(FLOAT32)
