"""Batch size of an exported model: the same for another number of rows."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from converter.runtime.export.plain_file import PlainFile
from converter.support.errors import UsageError
from converter.support.litert import Interpreter, OpResolverType


def rows_of(data: bytes) -> int:
    """Return the rows that a plain model takes as it is."""
    return int(Interpreter(model_content=data).get_input_details()[0]["shape"][0])


def is_resizable(data: bytes) -> bool:
    """Return whether the stock interpreter runs a plain model on other rows when its inputs are resized to them."""
    rows = rows_of(data)
    before = [detail["shape"] for detail in Interpreter(model_content=data).get_output_details()]
    changing = [place for place, shape in enumerate(before) if len(shape) and shape[0] == rows]

    def follows() -> bool:
        now = [detail["shape"] for detail in resized.get_output_details()]
        return all(now[place][0] == rows + 1 for place in changing)

    try:
        resized = _resized(data, rows + 1)
        if not follows():  # of a result whose shape is computed it is seen once it is there
            resized.invoke()
    except (RuntimeError, ValueError):
        return False
    return follows()


def with_rows(data: bytes, rows: int, why: str | None) -> bytes:
    """Return the plain model for so many rows and no other: no shape in it is computed any more.

    Args:
        data: the model.
        rows: how many.
        why: the reason where it stands for its own number of rows alone, as far as it is known.

    Raises:
        UsageError: it does.
    """
    own, file = rows_of(data), PlainFile(data)
    transposed = [operator for operator in file.graph.operators if file.kind(operator) == "TRANSPOSE_CONV"]
    if own == rows and all(file.array(int(operator.inputs[0])) is not None for operator in transposed):
        return data
    refusal = UsageError(
        f"the model takes {own} rows and no other number{f': {why}' if why else ''}. Leave the number out, or build "
        f"the program with batch={rows}",
        page="program-files",
    )
    if own not in (1, rows):
        raise refusal
    for operator in transposed:
        _name_rows(file, operator, rows // own)
    prepared = file.write()
    try:
        details = _resized(prepared, rows).get_tensor_details()
    except (RuntimeError, ValueError):
        raise refusal from None
    file = PlainFile(prepared)
    for detail in details:
        if detail["index"] < len(file.graph.tensors):
            file.graph.tensors[detail["index"]].shape = np.array(detail["shape"], np.int32)
    return file.write()


def _name_rows(file: PlainFile, operator: Any, times: int) -> None:
    """Writes so many times the rows into the shape of a result, which an operator is given as a constant from then on.

    What computed it is left out.
    """
    made = file.graph.tensors[int(operator.outputs[0])]
    tensor = copy(file.graph.tensors[int(operator.inputs[0])])
    tensor.shape, tensor.buffer = np.array([4], np.int32), 0
    shape = np.array([made.shape[0] * times, *made.shape[1:]], np.int32)
    operator.inputs = np.array([file.add(tensor, shape), *operator.inputs[1:]], np.int32)
    used = {int(i) for o in file.graph.operators for i in o.inputs} | {int(i) for i in file.graph.outputs}
    for other in reversed(file.graph.operators):
        if used.isdisjoint(map(int, other.outputs)):
            file.graph.operators.remove(other)
            used = {int(i) for o in file.graph.operators for i in o.inputs} | {int(i) for i in file.graph.outputs}


def _resized(data: bytes, rows: int) -> Any:
    """Return an interpreter with inputs of so many rows. Raises RuntimeError or ValueError where an operator cannot."""
    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=resolver)
    for detail in interpreter.get_input_details():
        interpreter.resize_tensor_input(detail["index"], [rows, *detail["shape"][1:]])
    interpreter.allocate_tensors()
    return interpreter
