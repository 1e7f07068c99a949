"""Loop bounds: how many steps a conditional loop takes at most, read from a counter in its condition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from converter.ir import ops
from converter.ir.graph import Graph, Node, Value

#: A comparison turned around, and what a counter that goes up must be to go on.
_TURNED = {ops.Greater: ops.Less, ops.GreaterEqual: ops.LessEqual}


def most_steps(condition: Graph, body: Graph, known: Sequence[np.ndarray | None]) -> int | None:
    """The most steps of a loop, or None where nothing bounds them.

    `(step < 100) & ...` bounds them where `step` begins at a known number and a step adds a known one: the way in which
    Keras writes `maximum_iterations`.

    Args:
        condition: a graph of the loop's operands.
        body: likewise; its last inputs are what it hands on.
        known: for each operand what it holds, if that is known.
    """
    return min((steps for steps in _bounds(condition, body, known) if steps is not None), default=None)


def known_steps(condition: Graph, body: Graph, known: Sequence[np.ndarray | None]) -> int | None:
    """The steps of a loop whose condition says nothing but that counters are below bounds; else None.

    The arguments are those of `most_steps`. A loop that is not entered is not known.
    """
    found = _bounds(condition, body, known)
    return min((steps for steps in found if steps is not None), default=None) if None not in found else None


def _bounds(condition: Graph, body: Graph, known: Sequence[np.ndarray | None]) -> list[int | None]:
    """How many steps each comparison of the condition allows."""
    (test,) = condition.outputs.values()
    makers = condition.producers()
    return [_steps(node, condition, body, known) for node in _all_of(test, makers)]


def _all_of(test: Value, makers: dict[Value, Node]) -> Iterator[Node]:
    """The comparisons that must all hold."""
    node = makers.get(test)
    if node is None:
        return
    if isinstance(node.op, ops.LogicalAnd):
        for value in node.inputs:
            yield from _all_of(value, makers)
    elif isinstance(node.op, (ops.BroadcastTo, ops.Reshape)):
        yield from _all_of(node.inputs[0], makers)
    else:
        yield node


def _steps(node: Node, condition: Graph, body: Graph, known: Sequence[np.ndarray | None]) -> int | None:
    """How many steps a comparison allows, if it is of a counter."""
    kind, sides = type(node.op), node.inputs
    if kind in _TURNED:
        kind, sides = _TURNED[kind], sides[::-1]
    if kind not in _TURNED.values() or sides[0] not in condition.inputs:
        return None
    place = condition.inputs.index(sides[0])
    bound, start, step = condition.constants.get(sides[1]), known[place], _added(body, place)
    if bound is None or start is None or step is None or sides[0].dtype.kind != "i":
        return None
    room = int(bound.max()) - int(start.min()) + (kind is ops.LessEqual)
    return max(-(-room // step), 1)


def _added(body: Graph, place: int) -> int | None:
    """What a step adds to an operand, if that is a known number above 0."""
    number = place - (len(body.inputs) - len(body.outputs))
    made = body.producers().get(list(body.outputs.values())[number]) if number >= 0 else None
    if made is None or not isinstance(made.op, ops.Add) or body.inputs[place] not in made.inputs:
        return None
    (other,) = [v for v in made.inputs if v is not body.inputs[place]] or [made.inputs[0]]
    added = body.constants.get(other)
    return int(added.min()) if added is not None and added.min() > 0 else None
