"""Loops: a body that is a graph of its own, run once a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from converter.ir.evaluate import evaluate_outputs
from converter.ir.graph import Graph, reachable
from converter.ir.op import Cost, Cotangent, Op, ShapeError
from converter.ir.row_dependence import NO_ROW, Rows, RowsMixed, compact, rows_of_body, together
from converter.ir.types import BOOL, TensorType

if TYPE_CHECKING:
    from converter.ir.graph import Value
    from converter.ir.graph_builder import GraphBuilder


class Pullback(Protocol):
    """How the derivative of a loop is computed from what it kept for that; see `converter.passes.autodiff.scan`."""

    def thunks(self, b: GraphBuilder, inputs: Sequence[Value], y: Any, dy: Any) -> tuple[Cotangent, ...]:
        """Return the cotangents of the operands, as `Op.vjp` gives them."""
        ...


@dataclass(frozen=True)
class Scan(Op):
    """A loop of `length` steps, as `jax.lax.scan`.

    Operands: what every step reads, then what each step hands to the next, then the rows, [length, ...], of which each
    step reads its own. Results: what the last step hands on, then what the steps give, stacked to [length, ...].

    Attributes:
        body: one step. Its inputs are the operands in order, a row without the first axis; its outputs the results in
            order, what a step gives without the first axis.
        length: steps.
        carried: how many values are handed on.
        rows: how many operands are rows.
        reverse: whether the last row comes first.
        pullback: how the derivative is computed from the last results, which are for that; None for a loop that has no
            such results.
    """

    body: Graph = field(repr=False)
    length: int
    carried: int
    rows: int = 0
    reverse: bool = False
    pullback: Pullback | None = field(default=None, repr=False)

    @property
    def fixed(self) -> int:
        """How many operands every step reads."""
        return len(self.body.inputs) - self.carried - self.rows

    def bodies(self) -> tuple[Graph, ...]:
        return (self.body,)

    def with_bodies(self, *bodies: Graph) -> Scan:
        (body,) = bodies
        return replace(self, body=body)

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        wanted = [v.type for v in self.body.inputs]
        first_row = len(wanted) - self.rows
        wanted[first_row:] = [t.with_shape((self.length, *t.shape)) for t in wanted[first_row:]]
        if list(types) != wanted:
            raise ShapeError(f"{self}: wants {', '.join(map(str, wanted))}, got {', '.join(map(str, types))}")
        results = [v.type for v in self.body.outputs.values()]
        carried = wanted[self.fixed : first_row]
        if results[: self.carried] != carried:
            raise ShapeError(f"{self}: a step hands on {', '.join(map(str, results[: self.carried]))}")
        return (*carried, *(t.with_shape((self.length, *t.shape)) for t in results[self.carried :]))

    def evaluate(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        fixed, rows = arrays[: self.fixed], arrays[self.fixed + self.carried :]
        carried = list(arrays[self.fixed : self.fixed + self.carried])
        given: list[list[np.ndarray]] = []
        steps = range(self.length)
        for step in reversed(steps) if self.reverse else steps:
            made = evaluate_outputs(self.body, [*fixed, *carried, *(r[step] for r in rows)])
            carried = made[: self.carried]
            given.append(made[self.carried :])
        if self.reverse:
            given.reverse()
        return (*carried, *(np.stack(column) for column in zip(*given, strict=True)))

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        step = graph_cost(self.body)
        return Cost(self.length * step.flops, self.length * step.bytes)

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> tuple[Rows, ...]:
        first_row = self.fixed + self.carried
        # What is handed on may change from step to step: nothing is said of its numbers.
        fixed, carried = operands[: self.fixed], [Rows(rows.of) for rows in operands[self.fixed : first_row]]
        rows = [r if r.bounds is None else r.within(r.bounds[0].min(), r.bounds[1].max()) for r in operands[first_row:]]
        alike = all(r.of.shape[0] == 1 for r in rows)
        given: list[list[Rows]] = []
        steps = range(self.length)
        for step in reversed(steps) if self.reverse else steps:
            own = [r.moved(lambda a, step=step: a[step if len(a) > 1 else 0]) for r in rows]  # type: ignore[misc]
            made = rows_of_body(self.body, [*fixed, *carried, *own])
            before, carried = carried, [Rows(r.of) for r in made[: self.carried]]
            given.append([Rows(r.of) for r in made[self.carried :]])
            if alike and all(np.array_equal(a.of, b.of) for a, b in zip(before, carried, strict=True)):
                break  # so it stays
        if self.reverse:
            given.reverse()
        if alike:
            return (*carried, *(Rows(together(*column).of[None]) for column in zip(*given, strict=True)))
        return (
            *carried,
            *(Rows(compact(np.stack(np.broadcast_arrays(*(r.of for r in c))))) for c in zip(*given, strict=True)),
        )

    def vjp(self, b: GraphBuilder, *inputs: Value, y: Any, dy: Any) -> tuple[Cotangent, ...]:
        if self.pullback is None:  # nothing flows back
            return (None,) * len(inputs)
        return self.pullback.thunks(b, inputs, y, dy)

    def reading(self, read: tuple[bool, ...]) -> tuple[Scan, tuple[int, ...], tuple[int, ...]]:
        inputs, outputs = self.body.inputs, list(self.body.outputs.values())
        wanted = {k for k, use in enumerate(read) if use}
        while True:
            needed = reachable(self.body, [outputs[k] for k in wanted])
            for_next = {k for k in range(self.carried) if inputs[self.fixed + k] in needed}
            if for_next <= wanted:
                break
            wanted |= for_next
        results = tuple(sorted(wanted))
        operands = tuple(
            k
            for k, value in enumerate(inputs)
            if (k - self.fixed in wanted if 0 <= k - self.fixed < self.carried else value in needed)
        )
        names = list(self.body.outputs)
        body = Graph(
            [inputs[k] for k in operands],
            {value: array for value, array in self.body.constants.items() if value in needed},
            nodes=[node for node in self.body.nodes if not needed.isdisjoint(node.outputs)],
            outputs={names[k]: outputs[k] for k in results},
        )
        carried = sum(k < self.carried for k in results)
        rows = sum(k >= self.fixed + self.carried for k in operands)
        return replace(self, body=body, carried=carried, rows=rows, pullback=None), operands, results


@dataclass(frozen=True)
class While(Op):
    """Runs `body` as long as `condition` holds. How often is known at run time only.

    It has a derivative where it is known how often at most: of so many steps (`converter.passes.autodiff.bounded`).
    Operands: what every step reads, then what each step hands to the next. Results: what the last one hands on.

    Attributes:
        condition: a graph of the operands; its output is one bool.
        body: one step: a graph of the operands; its outputs are what it hands on.
        most: the number of steps after which it has ended, where that is known.
    """

    condition: Graph = field(repr=False)
    body: Graph = field(repr=False)
    most: int | None = None

    @property
    def fixed(self) -> int:
        """How many operands every step reads."""
        return len(self.body.inputs) - self.carried

    @property
    def carried(self) -> int:
        """How many values are handed on."""
        return len(self.body.outputs)

    def bodies(self) -> tuple[Graph, ...]:
        return self.condition, self.body

    def with_bodies(self, *bodies: Graph) -> While:
        condition, body = bodies
        return replace(self, condition=condition, body=body)

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        wanted = tuple(v.type for v in self.body.inputs)
        made = tuple(v.type for v in self.body.outputs.values())
        (test,) = self.condition.outputs.values()
        if types != wanted or wanted[self.fixed :] != made or test.type.dtype != BOOL or test.type.size != 1:
            raise ShapeError(f"While: of {', '.join(map(str, types))}, a step makes {', '.join(map(str, made))}")
        return made

    def evaluate(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        fixed, carried = arrays[: self.fixed], arrays[self.fixed :]
        while evaluate_outputs(self.condition, [*fixed, *carried])[0].item():
            carried = tuple(evaluate_outputs(self.body, [*fixed, *carried]))
        return carried

    def batch_rows(self, inputs: tuple[TensorType, ...], *operands: Rows) -> tuple[Rows, ...]:
        fixed, carried = operands[: self.fixed], [Rows(rows.of) for rows in operands[self.fixed :]]
        while True:
            before = [*fixed, *carried]
            (goes_on,) = rows_of_body(self.condition, before)
            if goes_on.along(range(goes_on.of.ndim), keepdims=False).of != NO_ROW:
                raise RowsMixed  # one row decides how often all are computed
            made = rows_of_body(self.body, before)
            after = [together(old, Rows(new.of)) for old, new in zip(carried, made, strict=True)]
            if all(np.array_equal(a.of, b.of) for a, b in zip(carried, after, strict=True)):
                return tuple(after)
            carried = after

    def vjp(self, b: GraphBuilder, *inputs: Value, y: Any, dy: Any) -> tuple[Cotangent, ...]:
        bounded = "with a counter in its condition, `(step < 100) & ...`, has one, and so has lax.scan"
        raise NotImplementedError(f"a loop whose end is only known at run time has no derivative (one {bounded})")

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> Cost:
        """Of one step: nobody knows how many there are."""
        return graph_cost(self.condition) + graph_cost(self.body)


def graph_cost(graph: Graph) -> Cost:
    """Return what all nodes of a graph cost."""
    costs = (n.op.cost(tuple(v.type for v in n.inputs), tuple(v.type for v in n.outputs)) for n in graph.nodes)
    return sum(costs, start=Cost())
