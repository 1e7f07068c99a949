"""One row: a graph for very many rows, as `any_rows.py` writes it, for one of them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from converter.backend import builtins as tfl
from converter.ir import Graph, Op, Value
from converter.ir.types import Shape

#: So many rows: no size of anything else, nor are its multiples.
MANY = 1_000_003


def of_one_row(graph: Graph) -> Graph:
    """Return a graph for very many rows, for one."""
    made: dict[Value, Value] = {}

    def one(value: Value) -> Value:
        if value not in made:
            shape = _numbers_of_one(value.shape)
            made[value] = value if shape == value.shape else Value(replace(value.type, shape=shape), value.name)
        return made[value]

    nodes = [
        replace(n, op=_op_of_one(n.op), inputs=tuple(map(one, n.inputs)), outputs=tuple(map(one, n.outputs)))
        for n in graph.nodes
    ]
    outputs = {name: one(value) for name, value in graph.outputs.items()}
    return Graph(list(map(one, graph.inputs)), graph.constants, graph.parameters, nodes, outputs, {})


def _numbers_of_one(numbers: Shape) -> Shape:
    return tuple(n // MANY if n and n % MANY == 0 else n for n in numbers)


def _op_of_one(op: Any) -> Any:
    if isinstance(op, tfl.While):
        return op.with_bodies(*map(of_one_row, op.bodies()))
    changed: dict[str, Any] = {}
    for field in fields(op):
        value = getattr(op, field.name)
        if isinstance(value, Op):
            changed[field.name] = _op_of_one(value)
        elif isinstance(value, tuple) and value and all(isinstance(n, int) for n in value):
            changed[field.name] = _numbers_of_one(value)
    return replace(op, **changed)
