"""Constant folding in an exported model: what only constants decide is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from converter.ir import ops
from converter.runtime.export.absorb import absorb
from converter.runtime.export.plain_file import PlainFile

_ARITHMETIC = {"ADD": ops.Add(), "SUB": ops.Sub(), "MUL": ops.Mul(), "DIV": ops.Div()}


def folded(data: bytes, absorbing: bool) -> bytes:
    """Return a plain model without the operators whose operands are constants: their results are constants too.

    Only arithmetic, changes of layout and matrix products are folded; any other operator stays where it is, but for
    what dense layers and convolutions take in (`absorb`), where that is asked for.
    """
    file, kept = PlainFile(data), []
    for operator in file.graph.operators:
        operands = [file.array(int(i)) for i in operator.inputs if i >= 0]
        known = [a for a in operands if a is not None]
        result = None
        if operands and len(known) == len(operands):
            result = _evaluate(file.kind(operator), operator.builtinOptions, known)
        if result is None:
            kept.append(operator)
            continue
        output = int(operator.outputs[0])
        file.constants[output] = result.astype(known[0].dtype).reshape(file.graph.tensors[output].shape)
    file.graph.operators = kept
    if absorbing:
        absorb(file)
    return file.write()


def _evaluate(kind: str, options: Any, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the result, as the semantic op has it, in some shape; None for an operator that is not folded."""
    if getattr(options, "fusedActivationFunction", 0):
        return None
    first, *others = operands
    match kind:
        case "RESHAPE":
            return first
        case "TRANSPOSE":
            return ops.Transpose(tuple(others[0].tolist())).evaluate(first)
        case "BATCH_MATMUL":
            return ops.MatMul(options.adjX, options.adjY).evaluate(first, others[0])
        case "FULLY_CONNECTED":
            product = ops.MatMul(adj_y=True).evaluate(first.reshape(-1, others[0].shape[1]), others[0])
            return product + others[1] if others[1:] else product
    return _ARITHMETIC[kind].evaluate(first, others[0]) if kind in _ARITHMETIC else None
