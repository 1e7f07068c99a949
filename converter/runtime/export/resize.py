"""Batch size of an exported model: the same for another number of rows."""

from __future__ import annotations

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
    try:
        now = _resized(data, rows + 1).get_output_details()
    except (RuntimeError, ValueError):
        return False
    before = Interpreter(model_content=data).get_output_details()
    shapes = [(then["shape"], after["shape"]) for then, after in zip(before, now, strict=True)]
    return all(not len(then) or then[0] != rows or after[0] == rows + 1 for then, after in shapes)


def with_rows(data: bytes, rows: int, why: str | None) -> bytes:
    """Return the plain model for so many rows.

    Args:
        data: the model.
        rows: how many.
        why: the reason where it stands for its own number of rows alone, as far as it is known.

    Raises:
        UsageError: it does.
    """
    if (own := rows_of(data)) == rows:
        return data
    refusal = UsageError(
        f"the model takes {own} rows and no other number{f': {why}' if why else ''}. Leave the number out, or build "
        f"the program with batch={rows}",
        page="program-files",
    )
    if own != 1:
        raise refusal
    file = PlainFile(data)
    for operator in file.graph.operators:
        if file.kind(operator) == "TRANSPOSE_CONV":
            _name_rows(file, int(operator.inputs[0]), rows)
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


def _name_rows(file: PlainFile, index: int, rows: int) -> None:
    """Writes the rows into the shape of a result of one, which names it."""
    shape = file.array(index)
    if shape is not None:
        file.constants[index] = np.array([shape[0] * rows, *shape[1:]], np.int32)


def _resized(data: bytes, rows: int) -> Any:
    """Return an interpreter with inputs of so many rows. Raises RuntimeError or ValueError where an operator cannot."""
    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=resolver)
    for detail in interpreter.get_input_details():
        interpreter.resize_tensor_input(detail["index"], [rows, *detail["shape"][1:]])
    interpreter.allocate_tensors()
    return interpreter
