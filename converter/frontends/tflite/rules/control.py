"""Branches and loops: operators that run other subgraphs."""

from __future__ import annotations

from collections.abc import Sequence

from converter.frontends.tflite.registry import Call, Result, Rules
from converter.ir import Graph, TensorType, Value, ops
from converter.ir.analysis.loop_bounds import known_steps, most_steps
from converter.support.errors import NotImportable

rule = Rules()

#: A loop of more steps than this, or whose steps come to more nodes, is not unrolled.
MOST_UNROLLED = 256
#: The same where no loop can stay: lists of what the steps give are written at places that must be known.
_MOST_OF_LISTS = 4096
#: So often shapes may change from one step to the next: from those of one row to those of a batch.
_MOST_CHANGES = 4


@rule("IF")
def if_(call: Call, condition: Value, *values: Value) -> Result:
    """The branch that is taken where that is known; else both, and of each row the one that its condition says."""
    numbers = int(call.option("thenSubgraphIndex")), int(call.option("elseSubgraphIndex"))
    b, known = call.b, call.b.graph.constants.get(condition)
    if known is not None:
        return call.bodies.inline(numbers[0] if known.reshape(()) else numbers[1], values)
    chosen = []
    branches = [call.bodies.inline(number, values) for number in numbers]
    for taken, other in zip(*branches, strict=True):
        if taken.type != other.type:
            raise NotImportable(f"IF whose branches give {taken.type} and {other.type}")
        many = condition.type.size
        if many > 1 and taken.shape[:1] != (many,):
            raise NotImportable(f"IF of {many} rows whose branches give {taken.type}")
        by_row = b.reshape(condition, (many, *(1 for _ in taken.shape[1:])) if taken.shape else ())
        chosen.append(taken if taken is other else b(ops.Select(), by_row, taken, other))
    return chosen


@rule("WHILE")
def while_(call: Call, *values: Value) -> Result:
    """Unrolled where the steps are few; else a loop of so many steps where that is known, or of as many at most.

    What only numbers of the step say, as the places of a list, is known where the loop is unrolled.
    """
    unrolled = _unrolled(call, values, MOST_UNROLLED)
    if unrolled is not None:
        return unrolled
    try:
        return _loop(call, list(values))
    except NotImportable:
        unrolled = _unrolled(call, values, _MOST_OF_LISTS)
        if unrolled is None:
            raise
        return unrolled


def _parts(call: Call) -> tuple[int, int]:
    return int(call.option("condSubgraphIndex")), int(call.option("bodySubgraphIndex"))


def _unrolled(call: Call, values: Sequence[Value], most: int) -> Sequence[Value] | None:
    """Return the steps one after the other; None where they are many, or where it is not known how many they are."""
    b, (condition, body) = call.b, _parts(call)
    begin = len(b.graph.nodes)
    for _ in range(most):
        (going,) = call.bodies.inline(condition, values)
        known = b.graph.constants.get(going)
        if known is None or len(b.graph.nodes) - begin > most:
            return None
        if not known.reshape(()):
            return values
        values = call.bodies.inline(body, values)
    return None


def _loop(call: Call, values: list[Value]) -> Result:
    of_test, of_step = _parts(call)
    operands = _of_lasting_shapes(call, of_step, values)
    fixed = call.bodies.handed_on(of_step)
    order = [*fixed, *(k for k in range(len(operands)) if k not in fixed)]
    condition, weights = call.bodies.graph(of_test, operands, order, fixed)
    if weights:
        raise NotImportable("WHILE with weights in its condition")
    body, weights = call.bodies.graph(of_step, operands, order, fixed)
    body.outputs = dict(list(body.outputs.items())[len(fixed) :])
    condition = _with_operands(condition, [v.type for v in weights])
    given = [*weights, *(operands[k] for k in order)]
    known = [call.b.graph.constants.get(v) for v in given]
    steps = known_steps(condition, body, known)
    if steps is not None:
        made = call.b.node(ops.Scan(body, steps, len(order) - len(fixed)), *given).outputs
    else:
        most = most_steps(condition, body, known)
        made = call.b.node(ops.While(condition, body, most), *given).outputs
    results = dict(zip(order[len(fixed) :], made, strict=True))
    return [results.get(k, v) for k, v in enumerate(operands)]


def _of_lasting_shapes(call: Call, body: int, operands: list[Value]) -> list[Value]:
    """Return the operands in the shapes that the steps hand on: a state that begins with zeros is one for each row."""
    for _ in range(_MOST_CHANGES):
        made, _ = call.bodies.graph(body, operands, range(len(operands)), ())
        after = [value.type for value in made.outputs.values()]
        if [v.type for v in operands] == after:
            return operands
        operands = [v if v.type == t else call.b.broadcast_to(v, t.shape) for v, t in zip(operands, after, strict=True)]
    raise NotImportable("WHILE whose state has another shape in each step")


def _with_operands(graph: Graph, types: Sequence[TensorType]) -> Graph:
    """Return a graph that takes further operands before its own, which it does not read."""
    changed = graph.copy()
    changed.inputs = [*(Value(t, f"weight_{k}") for k, t in enumerate(types)), *graph.inputs]
    return changed
