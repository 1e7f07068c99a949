"""Constant folding in a finished subgraph: what only constants decide is computed once, here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_ARITHMETIC = {"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "DIV": np.divide}


def fold(
    graph: Any, kinds: Sequence[str], constants: dict[int, np.ndarray], stored: Callable[[int], np.ndarray | None]
) -> None:
    """Takes the operators out whose operands are constants, and adds their results to the constants.

    Only arithmetic, changes of layout and matrix products are folded; any other operator stays where it is.

    Args:
        graph: a subgraph, changed in place.
        kinds: the builtin of each operator code.
        constants: arrays by the number of the tensor; results join them.
        stored: the array of a tensor that the file holds, None for one that is computed.
    """

    def array(index: int) -> np.ndarray | None:
        found = constants.get(index)
        return stored(index) if found is None else found

    kept = []
    for operator in graph.operators:
        operands = [array(int(i)) for i in operator.inputs if i >= 0]
        known = [a for a in operands if a is not None]
        result = None
        if operands and len(known) == len(operands):
            result = _evaluate(kinds[operator.opcodeIndex], operator.builtinOptions, known)
        if result is None:
            kept.append(operator)
            continue
        output = int(operator.outputs[0])
        constants[output] = result.astype(np.float32).reshape(graph.tensors[output].shape)
    graph.operators = kept


def _evaluate(kind: str, options: Any, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    """The result in some shape; None for an operator that is not folded."""
    if getattr(options, "fusedActivationFunction", 0):
        return None
    first, *others = operands
    match kind:
        case "RESHAPE":
            return first
        case "TRANSPOSE":
            return np.transpose(first, others[0])
        case "BATCH_MATMUL":
            x = first.swapaxes(-1, -2) if options.adjX else first
            return np.matmul(x, others[0].swapaxes(-1, -2) if options.adjY else others[0])
        case "FULLY_CONNECTED":
            product = np.matmul(first.reshape(-1, others[0].shape[1]), others[0].T)
            return product + others[1] if others[1:] else product
    return _ARITHMETIC[kind](first, others[0]) if kind in _ARITHMETIC else None
