"""Weights of a file: which constants of an operator are learned numbers, and what each is called."""

from __future__ import annotations

import numpy as np

from converter.frontends.tflite.reading.file import File, FileOperator
from converter.frontends.tflite.rules import recurrent
from converter.ir import Shape

#: Operands that are weights, by builtin: what each is called behind its layer.
WEIGHTS: dict[str, dict[int, str]] = {
    "CONV_2D": {1: "kernel", 2: "bias"},
    "DEPTHWISE_CONV_2D": {1: "kernel", 2: "bias"},
    "FULLY_CONNECTED": {1: "kernel", 2: "bias"},
    "TRANSPOSE_CONV": {1: "kernel", 3: "bias"},
    "Convolution2DTransposeBias": {1: "kernel", 2: "bias"},
    "BATCH_MATMUL": {0: "kernel", 1: "kernel"},
    "PRELU": {1: "alpha"},
    **recurrent.WEIGHTS,
}
#: What a number for each channel is called that is added or multiplied behind a layer with weights: a bias, or what a
#: normalization learned. In front of all weights it is what the author's input is made of, and stays.
BY_CHANNEL = {"ADD": "bias", "SUB": "bias", "MUL": "scale", "DIV": "scale"}
#: Operators that look up rows of a table.
_TABLES = ("GATHER", "EMBEDDING_LOOKUP")
#: Numbers of a constant that may have been learned, at least.
_LIKE_WEIGHTS = 4


def channel_name(
    file: File, operator: FileOperator, place: int, array: np.ndarray | None, width: Shape | None, is_learned: bool
) -> str | None:
    """Return what an operand is called that is a weight by what it stands after; None for what is none.

    Args:
        file: as the operator sees it.
        operator: any.
        place: of the operand.
        array: what it holds; None where it is computed.
        width: the shape of the other operand; None where that is not computed.
        is_learned: whether a weight is part of that.
    """
    if operator.kind not in BY_CHANNEL or len(operator.inputs) != 2 or array is None or not width:
        return None
    tensor = file.tensors[operator.inputs[place]]
    if array.size < 2 and (not array.ndim or kernel_without_bias(file, operator, place) is None):
        return None
    # What a layer normalization learned meets one number of a row: the inverse of its deviation.
    widths = (width[-1], array.size if operator.kind == "MUL" and width[-1] == 1 else 0)
    is_weight = array.dtype.kind == "f" or tensor.is_quantized
    if not is_weight or array.shape[-1:] != (array.size,) or array.size not in widths:
        return None
    return BY_CHANNEL[operator.kind] if is_learned else None


def kernel_without_bias(file: File, operator: FileOperator, place: int) -> int | None:
    """Return the kernel of a layer to whose result an operator adds what the layer lacks: a bias. None for no such."""
    number = operator.inputs[1 - place]
    maker = next((o for o in file.operators if number in o.outputs), None)
    of = {} if maker is None else WEIGHTS.get(maker.kind, {})
    if operator.kind != "ADD" or maker is None or "kernel" not in of.values():
        return None
    biases = [place for place, called in of.items() if called == "bias" and place < len(maker.inputs)]
    return maker.inputs[1] if all(maker.inputs[place] < 0 for place in biases) else None


def looks_learned(operator: FileOperator, array: np.ndarray | None, meets_learned: bool) -> bool:
    """Return whether a constant operand that is no weight looks like one: a table, or numbers that meet what is."""
    if array is None or array.dtype.kind != "f" or array.size < _LIKE_WEIGHTS:
        return False
    return operator.kind in _TABLES or (meets_learned and operator.kind in (*BY_CHANNEL, "BATCH_MATMUL"))
