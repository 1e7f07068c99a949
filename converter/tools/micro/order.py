"""Check of a signature's operators, as no interpreter of a microcontroller makes it: a damaged file stops the board."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from converter.program.flatbuffer import schema


def check_order(model: Any, graphs: Sequence[Any]) -> None:
    """Raise ValueError where a tensor is read before anything makes it, or made twice.

    Args:
        model: the file, which has the constants.
        graphs: a graph and those that it runs (`SubGraphT`).
    """
    for graph in graphs:
        there = {number for number, tensor in enumerate(graph.tensors) if _is_constant(model, tensor)}
        there |= {int(number) for number in graph.inputs}
        for operator in graph.operators:
            if strange := {int(number) for number in operator.inputs if number >= 0} - there:
                raise ValueError(f"tensors {sorted(strange)} are read before they are made")
            made = {int(number) for number in operator.outputs}
            if strange := made & there:
                raise ValueError(f"tensors {sorted(strange)} are made twice")
            there |= made
        if strange := {int(number) for number in graph.outputs} - there:
            raise ValueError(f"tensors {sorted(strange)} are results, and nothing makes them")


def _is_constant(model: Any, tensor: Any) -> bool:
    """Return whether a tensor is known as it is loaded; one of no elements, such as the shape of one number, is."""
    shape = () if tensor.shape is None else tuple(int(n) for n in tensor.shape)
    return 0 in shape or bool(schema.buffer_data(model._tab.Bytes, model.Buffers(tensor.buffer)).size)
