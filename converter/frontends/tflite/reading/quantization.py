"""Quantization of a file's tensors, checked: how their integers represent real numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from converter.ir import Quantization
from converter.support.errors import UsageError


def quantization_of(name: str, said: Any, shape: Sequence[int], dtype: np.dtype | None) -> Quantization | None:
    """Return how integers stand for real numbers. Raise UsageError where what is said of it cannot be."""
    if said is None or said.ScaleLength() == 0:
        return None
    if shape and not 0 <= said.QuantizedDimension() < len(shape):  # the runtime refuses it, of whatever type
        wrong = f"scales along axis {said.QuantizedDimension()} of {list(shape)}"
        raise UsageError(f"the quantised tensor {name!r} has {wrong}, which is not read", page="tflite-files")
    if dtype is None or dtype.kind not in "iu":
        return None
    scales = np.array([said.Scale(i) for i in range(said.ScaleLength())], np.float32)
    zeros = {int(said.ZeroPoint(i)) for i in range(said.ZeroPointLength())} or {0}
    axis = int(said.QuantizedDimension()) if len(scales) > 1 else 0
    if dtype.itemsize > 2 and not scales.all():  # places and sizes, of which converters say so
        return None
    ends, wrong = np.iinfo(dtype), ""
    if said.DetailsType():
        wrong = "blocks with scales of their own"
    elif not (np.isfinite(scales) & (scales > 0)).all():
        wrong = "a scale that is no positive number"
    elif len(scales) > 1 and not (0 <= axis < len(shape) and shape[axis] == len(scales)):
        wrong = f"{len(scales)} scales along axis {axis} of {list(shape)}"
    elif said.ZeroPointLength() not in (0, 1, len(scales)) or len(zeros) > 1:
        wrong = "several zero points"
    elif not ends.min <= min(zeros) <= ends.max:
        wrong = f"the zero point {min(zeros)} of {dtype.name}"
    if wrong:
        raise UsageError(f"the quantised tensor {name!r} has {wrong}, which is not read", page="tflite-files")
    return Quantization(tuple(float(scale) for scale in scales), min(zeros), axis)
