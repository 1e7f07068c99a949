"""Shapes of what only the stock runtime computes, which says them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil

from converter.frontends.tflite.reading.file import File, FileOperator, needed
from converter.frontends.tflite.trial import shapes_of
from converter.ir import Shape
from converter.program.flatbuffer.parts import part
from converter.support.errors import NotImportable

#: Seconds that one run takes at most, and all of a file.
_SECONDS, _ALL = 5, 10


class RuntimeShapes:
    """Asks the runtime, once for all operators where it runs these, else for one tensor after the other.

    Args:
        file: the file.
        rows: of its inputs.
        fed: the shapes of these by tensor.
    """

    def __init__(self, file: File, rows: int, fed: Mapping[int, Shape]) -> None:
        self._file, self._rows, self._fed = file, rows, fed
        self._found: dict[int, Shape] = {}
        self._seconds = float(_ALL)  # that are left

    def of(self, number: int, wanted: Sequence[int], is_unknown: Callable[[FileOperator], bool]) -> Shape:
        """Return the shape of a tensor for one row.

        Args:
            number: of the tensor.
            wanted: tensors that are imported.
            is_unknown: whether an operator is one of those that are asked for.

        Raises:
            NotImportable: the runtime does not make the tensor, or takes too long.
        """
        said: list[Shape] | str = ""
        for ends in (wanted, [number]):
            if number in self._found:
                break
            makers = [o for o in needed(self._file, ends) if number in o.outputs or is_unknown(o)]
            tensors = [i for o in makers for i in o.outputs if self._file.tensors[i].dtype is not None]
            said = self._run(tensors) if self._seconds > 0 else f"does not come to an end in {_ALL} s"
            if not isinstance(said, str):
                self._found |= zip(tensors, said, strict=True)
        if number not in self._found:
            kind = next(o.kind for o in self._file.operators if number in o.outputs)
            raise NotImportable(f"{kind}: the stock runtime {said}")
        return self._found[number]

    def _run(self, wanted: Sequence[int]) -> list[Shape] | str:
        """Return the shapes of some tensors, or what the runtime does instead of making them, in words."""
        model, subgraph = self._file.tables
        operators = needed(self._file, wanted)
        read = dict.fromkeys(i for o in operators for i in o.inputs if i in self._fed)
        fed = [(1, *self._fed[i][1:]) if self._rows > 1 else self._fed[i] for i in read]
        begun = time.monotonic()
        alone = part(model, subgraph, [subgraph.Operators(o.number) for o in operators], wanted)
        said = shapes_of(alone, fed, min(ceil(self._seconds), _SECONDS))
        self._seconds -= time.monotonic() - begun
        return said
