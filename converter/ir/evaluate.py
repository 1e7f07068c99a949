"""NumPy evaluator: runs a graph of either level, op by op, by the ops' own reference meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from converter.ir.graph import Graph, Value


def evaluate_values(
    graph: Graph, inputs: Sequence[Any] | Mapping[str, Any], float_dtype: Any = np.float32, **state: np.ndarray
) -> dict[Value, np.ndarray]:
    """Return every value of the graph. `float_dtype=np.float64` computes all in double precision, for strict checks."""

    def widen(array: Any) -> np.ndarray:
        array = np.asarray(array)
        return array.astype(float_dtype) if np.issubdtype(array.dtype, np.floating) else array

    fed = [inputs[v.name] for v in graph.inputs] if isinstance(inputs, Mapping) else list(inputs)
    known: dict[Value, np.ndarray] = {}
    for value, array in zip(graph.inputs, fed, strict=True):
        known[value] = widen(np.asarray(array)).astype(float_dtype if value.dtype.kind == "f" else value.dtype)
        if known[value].shape != value.shape:
            raise ValueError(f"input {value.name} has shape {known[value].shape}, the graph wants {value.shape}")
    known |= {value: widen(array) for value, array in graph.constants.items()}
    known |= {value: widen(state.get(p.name, p.value)) for value, p in graph.parameters.items()}
    for node in graph.nodes:
        with np.errstate(all="ignore"):
            results = node.op.evaluate(*(known[v] for v in node.inputs))
        results = results if isinstance(results, tuple) else (results,)
        for value, array in zip(node.outputs, results, strict=True):
            array = np.asarray(array)
            known[value] = widen(array) if value.dtype.kind == "f" else array.astype(value.dtype)
            assert known[value].shape == value.shape, f"{node!r} evaluated to {array.shape}"
    return known


def evaluate(
    graph: Graph, inputs: Sequence[Any] | Mapping[str, Any], float_dtype: Any = np.float32, **state: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Runs the graph once.

    Args:
        graph: the program.
        inputs: arrays in order or by input name.
        float_dtype: precision of all floating point values.
        **state: values of parameters by name, in stored layout; initial values where absent.

    Returns:
        The outputs by name, and the parameters' next values by name.
    """
    known = evaluate_values(graph, inputs, float_dtype, **state)
    outputs = {name: known[value] for name, value in graph.outputs.items()}
    return outputs, {graph.parameters[p].name: known[value] for p, value in graph.updates.items()}


def evaluate_outputs(graph: Graph, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs in order, in the precision of the inputs."""
    double = any(np.asarray(array).dtype == np.float64 for array in inputs)
    known = evaluate_values(graph, inputs, np.float64 if double else np.float32)
    return [known[value] for value in graph.outputs.values()]
