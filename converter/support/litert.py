"""LiteRT's interpreter, which does not tell of itself unless it is asked to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import flatbuffers
from ai_edge_litert.interpreter import Interpreter as Stock
from ai_edge_litert.interpreter import OpResolverType

from converter.support import logs

__all__ = ["Interpreter", "OpResolverType"]


class Interpreter(Stock):
    """The stock interpreter; the first of a process does not say that it has made a delegate."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        _greeted()
        super().__init__(*arguments, **options)


@cache
def _greeted() -> None:
    """Lets LiteRT say what it says once a process, on the least of models."""
    with logs.without_chatter():
        Stock(model_content=_least_model()).allocate_tensors()


def _least_model() -> bytes:
    """Return a TFLite file of one RELU: LiteRT makes no delegate for less.

    The numbers are those of slots in its schema.
    """
    builder = flatbuffers.Builder()

    def vector(*numbers: int) -> int:
        builder.StartVector(4, len(numbers), 4)
        for number in reversed(numbers):
            builder.PrependInt32(number)
        return builder.EndVector()

    def tables(*offsets: int) -> int:
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()

    def table(parts: Mapping[int, int], numbers: Mapping[int, int] = MappingProxyType({})) -> int:
        builder.StartObject(5)
        for slot, offset in parts.items():
            builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        for slot, number in numbers.items():
            builder.PrependInt32Slot(slot, number, 0)
        return builder.EndObject()

    relu = table({}, {3: 19})
    operator = table({1: vector(0), 2: vector(1)})
    tensors = tables(*(table({0: vector(1)}) for _ in range(2)))
    subgraph = table({0: tensors, 1: vector(0), 2: vector(1), 3: tables(operator)})
    builder.Finish(table({1: tables(relu), 2: tables(subgraph), 4: tables(table({}))}, {0: 3}), b"TFL3")
    return bytes(builder.Output())
