"""Loops, as WHILE with subgraphs for the condition and the body."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering, LoweringRules
from converter.ir import Graph, Value, ops

lowers = LoweringRules()


@lowers(ops.Scan)
def scan(c: Lowering, op: ops.Scan, *operands: Value) -> tuple[Value, ...]:
    """A counter, what is handed on and what the steps give, which are changed; then what they only read."""
    fixed, carried = operands[: op.fixed], operands[op.fixed : op.fixed + op.carried]
    rows = operands[op.fixed + op.carried :]
    given = [v.type for v in op.body.outputs.values()][op.carried :]
    columns = [c.zeros(t.with_shape((op.length, *t.shape))) for t in given]
    changed = [c.constant(np.zeros(1, np.int32)), *carried, *columns]
    variables = [*changed, *fixed, *rows]
    loop = tfl.While(_counting(c, variables, op.length), _step(c, op, variables), op.length)
    results = c.node(loop, *variables).outputs
    return results[1 : len(changed)]


@lowers(ops.While)
def while_(c: Lowering, op: ops.While, *operands: Value) -> tuple[Value, ...]:
    """What is handed on, then what the steps only read."""
    fixed, carried = operands[: op.fixed], operands[op.fixed :]
    condition, body = c.lowered(op.condition), c.lowered(op.body)
    for graph in (condition, body):
        graph.inputs = [*graph.inputs[op.fixed :], *graph.inputs[: op.fixed]]
    b = c.inner()
    b.graph = body
    _set_results(b, list(body.outputs.values()), body.inputs[len(carried) :])
    return c.node(tfl.While(condition, body), *carried, *fixed).outputs[: len(carried)]


def _counting(c: Lowering, operands: Sequence[Value], length: int) -> Graph:
    """The condition: the first operand is less than `length`."""
    b = c.inner()
    counter, *_ = [b.input(f"operand_{k}", v.type) for k, v in enumerate(operands)]
    b.graph.outputs["goes_on"] = b(tfl.Less(), counter, np.array([length], np.int32))
    return b.graph


def _step(c: Lowering, op: ops.Scan, operands: Sequence[Value]) -> Graph:
    """The body."""
    b = c.inner()
    inner = c.lowered(op.body)
    inputs = [b.input(f"operand_{k}", v.type) for k, v in enumerate(operands)]
    names = list(inner.outputs)
    given = len(names) - op.carried
    counter, carried = inputs[0], inputs[1 : 1 + op.carried]
    columns = inputs[1 + op.carried : 1 + op.carried + given]
    fixed, rows = inputs[len(inputs) - op.fixed - op.rows : len(inputs) - op.rows], inputs[len(inputs) - op.rows :]
    place = b(tfl.Sub(), np.array([op.length - 1], np.int32), counter) if op.reverse else counter
    row_types = [v.type for v in inner.inputs[op.fixed + op.carried :]]
    read = [b.reshape(b(tfl.Gather(), x, place), t.shape) for x, t in zip(rows, row_types, strict=True)]
    made = list(b.inline(inner, [*fixed, *carried, *read]).values())
    after = [b(tfl.Add(), counter, np.array([1], np.int32)), *made[: op.carried]]
    after += [_put(b, column, place, row) for column, row in zip(columns, made[op.carried :], strict=True)]
    _set_results(b, after, [*fixed, *rows])
    return b.graph


def _set_results(b: Lowering, changed: Sequence[Value], read: Sequence[Value]) -> None:
    """Ends a body: what it changes and what it only reads.

    WHILE copies the results one after the other over the operands, so no operand may be the result in another place.
    """
    inputs = set(b.graph.inputs)
    own = [b(tfl.Reshape(value.shape), value) if value in inputs else value for value in changed]
    b.graph.outputs = {f"result_{k}": value for k, value in enumerate([*own, *read])}


def _put(b: Lowering, column: Value, place: Value, row: Value) -> Value:
    """The column with a row at a place."""
    first_axis = np.eye(1, len(column.shape), dtype=np.int32)[0]
    starts = b(tfl.Mul(), place, first_axis) if len(column.shape) > 1 else place
    return b(tfl.DynamicUpdateSlice(), column, b.reshape(row, (1, *column.shape[1:])), starts)
