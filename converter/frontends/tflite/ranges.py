"""Ranges of quantised results: where the author's integers end, and whether numbers beyond may reach that."""

from __future__ import annotations

from math import inf

import numpy as np

from converter.frontends.tflite.reading.file import File, FileOperator, FileTensor

#: Operators whose results are numbers of their operands, or means of them.
_WITHIN = frozenset(
    {"AVERAGE_POOL_2D", "CONCATENATION", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "MAX_POOL_2D", "MEAN", "PACK"}
    | {"PAD", "RESHAPE", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2", "SLICE", "SPACE_TO_DEPTH", "SPLIT"}
    | {"SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TRANSPOSE", "UNPACK", "REDUCE_MAX", "REDUCE_MIN", "MIRROR_PAD"}
)
#: Those whose results lie between bounds which their integers are made for.
_BOUNDED = frozenset({"LOGISTIC", "SOFTMAX", "LOG_SOFTMAX", "TANH", "L2_NORMALIZATION"})


def cuts_off(file: File, operator: FileOperator, number: int) -> bool:
    """Return whether numbers beyond the range of the quantised result may occur."""
    if operator.kind in _BOUNDED:
        return False
    result = file.tensors[number]
    operands = [t for i in operator.inputs if i >= 0 and (t := file.tensors[i]).dtype == result.dtype]
    if operator.kind == "QUANTIZE":
        operands = [file.tensors[operator.inputs[0]]]
    elif operator.kind not in _WITHIN:
        return True
    low, high = bounds(result)
    return not all(t.is_quantized and low <= bounds(t)[0] and bounds(t)[1] <= high for t in operands)


def holds_shares(tensor: FileTensor) -> bool:
    """Return whether a tensor, if it is quantised, has integers for what a softmax or sigmoid gives: 0 to nearly 1."""
    if tensor.quantization is None:
        return True
    low, high = bounds(tensor)
    return low <= 0 and high >= 1 - 2 * max(tensor.quantization.scales)


def bounds(tensor: FileTensor) -> tuple[float, float]:
    """Return the least and the largest number that the integers of a quantised tensor can stand for."""
    assert tensor.quantization is not None
    assert tensor.dtype is not None
    if tensor.quantization.per_channel:
        return -inf, inf
    ends = np.iinfo(tensor.dtype)
    low, high = tensor.quantization.real(np.array([ends.min, ends.max]))
    return float(low), float(high)
