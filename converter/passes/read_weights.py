"""Reading of weights: which of a graph's are read on demand, read whole, or left out of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np

from converter.ir import FLOAT32, Graph, LazyArray, Parameter, Unread
from converter.support.errors import NumericError

#: Elements that are read at once.
_AT_ONCE = 1 << 22
#: What is read already, for as long as a graph holds it: a model is laid out for several numbers of rows.
_in_memory: WeakKeyDictionary[LazyArray, ReferenceType[np.ndarray]] = WeakKeyDictionary()


def read_weights(graph: Graph) -> Graph:
    """Return the graph with all weights that have a source in memory, float32.

    Raises:
        NumericError: a number is not finite.
    """
    return _with(graph, read)


def without_sources(graph: Graph) -> Graph:
    """Return the graph with weights that have a source as shapes alone: enough for a plan."""
    return _with(graph, lambda parameter: replace(parameter, source=None))


def without_numbers(graph: Graph) -> Graph:
    """Return the graph with weights that have a source as shapes, and as the integers that they are stored in."""
    return _with(graph, lambda parameter: replace(parameter, source=parameter.source and Unread(parameter.source)))


def _with(graph: Graph, change: Callable[[Parameter], Parameter]) -> Graph:
    if all(parameter.source is None for parameter in graph.parameters.values()):
        return graph
    after = graph.copy()
    after.parameters = {v: p if p.source is None else change(p) for v, p in graph.parameters.items()}
    return after


def read(parameter: Parameter) -> Parameter:
    """Return a parameter with its numbers in memory, float32, or as a shape where it is only planned.

    Raises:
        NumericError: a number is not finite.
    """
    if parameter.source is None:
        return parameter
    if isinstance(parameter.source, Unread):
        return replace(parameter, source=None)
    known = _in_memory.get(parameter.source)
    numbers = None if known is None else known()
    if numbers is None:
        numbers = np.empty(parameter.source.shape, FLOAT32)
        for part, piece in pieces(parameter.source, parameter.name):
            numbers[part] = piece
        _in_memory[parameter.source] = ref(numbers)
    return replace(parameter, model_value=numbers, source=None)


def pieces(source: LazyArray, what: str, block: int = 1) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield all rows in order, some megabytes at a time: which they are, and the numbers in float32.

    Each piece but the last is a multiple of `block` rows.

    Raises:
        NumericError: a number is not finite; `what` says whose.
    """
    step = block * max(1, _AT_ONCE // max(1, block * prod(source.shape[1:])))
    for start in range(0, source.shape[0], step):
        part = slice(start, min(start + step, source.shape[0]))
        numbers = np.asarray(source.rows(part.start, part.stop), FLOAT32)
        if numbers.shape != (part.stop - part.start, *source.shape[1:]):
            raise ValueError(f"{what}: {numbers.shape} were read for rows {part.start} to {part.stop}")
        if not np.isfinite(numbers).all():
            raise NumericError(f"The model's weights are not finite: {what}, rows {part.start} to {part.stop}")
        yield part, numbers
