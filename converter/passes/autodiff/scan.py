"""Derivative of a scan: a loop in the other direction over the values that the first one has stored.

A step and its derivative are one graph (`pull_back`), of which everything that no cotangent reaches is known in the
forward pass. What of that the backward steps need is stacked by the forward loop, as few bytes as possible: values that
a few operations make from others that are there are made again (a smallest cut, as in partial evaluation with
rematerialisation). Only what is asked for gets a cotangent: a frozen weight costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from converter.ir import Builder, Graph, GraphBuilder, Node, Value, dependents, ops, reachable
from converter.ir.op import Cotangent
from converter.ir.rewrite import eliminate_dead_code
from converter.ir.types import NOWHERE
from converter.passes.autodiff.minimum_cut import minimum_cut
from converter.passes.autodiff.reverse import RESIDUALS, pull_back

#: What takes no more operations than this for a number of its result is made again rather than kept.
CHEAP = 8

_BACKWARD = NOWHERE.in_phase("backward")


@dataclass(frozen=True, eq=False)
class LoopPullback:
    """The backward loop of a Scan.

    Attributes:
        loop: its operands are the forward loop's operands `fixed`, the cotangents of the results `carried`, a zero for
            each operand in `summed`, the forward loop's operands `rows` (rows), what was kept (rows), and the
            cotangents of the results `given` (rows). Its results are the cotangents of the operands in `cotangents`.
    """

    loop: ops.Scan = field(repr=False)
    fixed: tuple[int, ...]
    carried: tuple[int, ...]
    summed: tuple[int, ...]
    rows: tuple[int, ...]
    given: tuple[int, ...]
    cotangents: tuple[int, ...]

    def cotangents_of(
        self, b: GraphBuilder, inputs: Sequence[Value], outputs: Sequence[Value], dy: Sequence[Value | None]
    ) -> dict[int, Value]:
        """Emits the loop; returns the cotangents by operand."""

        def known(k: int) -> Value:
            given = dy[k]
            return b.broadcast_to(b.constant(0.0), outputs[k].shape) if given is None else given

        kept = outputs[len(outputs) - (self.loop.rows - len(self.rows) - len(self.given)) :]
        operands = [
            *(inputs[k] for k in self.fixed),
            *(known(k) for k in self.carried),
            *(b.broadcast_to(b.constant(0.0), inputs[k].shape) for k in self.summed),
            *(inputs[k] for k in self.rows),
            *kept,
            *(known(k) for k in self.given),
        ]
        return dict(zip(self.cotangents, b.node(self.loop, *operands).outputs, strict=True))

    def thunks(self, b: GraphBuilder, inputs: Sequence[Value], y: Any, dy: Any) -> tuple[Cotangent, ...]:
        """Return the cotangents as `Op.vjp` gives them; the loop is emitted when the first is asked for."""
        outputs, dys = (y, dy) if isinstance(y, tuple) else ((y,), (dy,))
        made: dict[int, Value] = {}

        def thunk(k: int) -> Cotangent:
            def cotangent() -> Value:
                if not made:
                    made.update(self.cotangents_of(b, inputs, outputs, dys))
                return made[k]

            return cotangent

        return tuple(thunk(k) if k in self.cotangents else None for k in range(len(inputs)))


def differentiable(scan: ops.Scan, active: Sequence[bool], wanted: Sequence[bool], infinite: bool) -> ops.Scan:
    """Return the loop that keeps what its derivative needs, as further results; the arguments are those of `RESIDUALS`.

    The same loop where nothing flows back through it.
    """
    both = _step_and_derivative(scan, active, wanted, infinite)
    if both is None:
        return scan
    whole, seeds, sums, results = both
    inputs, first_row = scan.body.inputs, scan.fixed + scan.carried
    free = {*inputs[: scan.fixed], *inputs[first_row:], *whole.constants}
    kept = _kept(whole, dependents(whole, [*seeds.values(), *sums.values()]), results.values(), free)
    nodes, read = _remaining(whole, results.values(), set(kept))
    fixed = [k for k in range(scan.fixed) if inputs[k] in read]
    rows = [k for k in range(first_row, len(inputs)) if inputs[k] in read]
    carried, given = [k for k in seeds if k < scan.carried], [k for k in seeds if k >= scan.carried]
    handed_on = [*(seeds[k] for k in carried), *sums.values()]
    read_by_row = [*(inputs[k] for k in rows), *kept, *(seeds[k] for k in given)]
    step = Graph(
        [*(inputs[k] for k in fixed), *handed_on, *read_by_row],
        {value: array for value, array in whole.constants.items() if value in read},
        nodes=nodes,
        outputs={f"cotangent_{k}": value for k, value in results.items()},
    )
    backward = ops.Scan(step, scan.length, len(handed_on), len(read_by_row), not scan.reverse)
    forward = whole.copy()
    forward.inputs = list(inputs)
    forward.outputs = scan.body.outputs | {f"kept_{number}": value for number, value in enumerate(kept)}
    pullback = LoopPullback(backward, *map(tuple, (fixed, carried, sums, rows, given, results)))
    return replace(scan, body=eliminate_dead_code(forward), pullback=pullback)


RESIDUALS[ops.Scan] = differentiable


def _step_and_derivative(
    scan: ops.Scan, active: Sequence[bool], wanted: Sequence[bool], infinite: bool
) -> tuple[Graph, dict[int, Value], dict[int, Value], dict[int, Value]] | None:
    """Return a step with its derivative after it, in one graph; None where no cotangent reaches what is active.

    Returns:
        The graph; its inputs for the cotangents, by the result of a step that each belongs to; its inputs for sums so
        far, by operand that every step reads; and the cotangents of the operands, those of the former added to the sum.
        The first results are cotangents of what is handed on, in order, then the sums, then rows.
    """
    body, first_row = scan.body, scan.fixed + scan.carried
    inputs, outputs = body.inputs, list(body.outputs.values())
    varying, reached = _varying(scan, active), _reached(scan, wanted)
    depends = dependents(body, [inputs[k] for k in varying])
    carried = [k for k in range(scan.carried) if scan.fixed + k in varying and k in reached]
    given = [k for k in range(scan.carried, len(outputs)) if wanted[k] and outputs[k] in depends]
    b = Builder(body.copy())
    seeds = {k: b.input(f"cotangent_{k}", outputs[k].type) for k in (*carried, *given) if _is_float(outputs[k])}
    if not seeds:
        return None
    asked = [scan.fixed + k for k in carried] + [k for k in sorted(varying) if k < scan.fixed or k >= first_row]
    with b.at(_BACKWARD):
        cotangents: dict[Value, Value] = {}
        for k, seed in seeds.items():
            before = cotangents.get(outputs[k])
            cotangents[outputs[k]] = seed if before is None else b(ops.Add(), before, seed)
        whole, found = pull_back(b.graph, cotangents, [inputs[k] for k in asked], infinite)
        b = Builder(whole)
        sums: dict[int, Value] = {}
        results: dict[int, Value] = {}
        for k in asked:
            cotangent = found.get(inputs[k])
            if scan.fixed <= k < first_row and cotangent is None:
                cotangent = b.broadcast_to(b.constant(0.0), inputs[k].shape)
            if cotangent is not None and k < scan.fixed:
                sums[k] = b.input(f"sum_{k}", inputs[k].type)
                cotangent = b(ops.Add(), sums[k], cotangent)
            if cotangent is not None:
                results[k] = cotangent
    return whole, seeds, sums, results


def _is_float(value: Value) -> bool:
    return value.dtype.kind == "f"


def _varying(scan: ops.Scan, active: Sequence[bool]) -> set[int]:
    """Return the float inputs of a step that depend on an active operand of the loop."""
    inputs, outputs = scan.body.inputs, list(scan.body.outputs.values())
    varying = {k for k, value in enumerate(inputs) if active[k] and _is_float(value)}
    while True:
        depends = dependents(scan.body, [inputs[k] for k in varying])
        places = ((scan.fixed + k, outputs[k]) for k in range(scan.carried))
        more = {k for k, value in places if value in depends and _is_float(value)} - varying
        if not more:
            return varying
        varying |= more


def _reached(scan: ops.Scan, wanted: Sequence[bool]) -> set[int]:
    """Return the results of a step that a wanted result of the loop depends on."""
    inputs, outputs = scan.body.inputs, list(scan.body.outputs.values())
    reached = {k for k, asked in enumerate(wanted) if asked}
    while True:
        needed = reachable(scan.body, [outputs[k] for k in reached])
        more = {k for k in range(scan.carried) if inputs[scan.fixed + k] in needed} - reached
        if not more:
            return reached
        reached |= more


def _kept(whole: Graph, unknown: set[Value], results: Iterable[Value], free: set[Value]) -> list[Value]:
    """Return what the forward loop keeps: the fewest bytes from which all that the backward one needs is cheaply made.

    Args:
        whole: a step and its derivative.
        unknown: what depends on a cotangent.
        results: of the backward step.
        free: what it reads anyway.
    """
    makers = whole.producers()
    needed = set(results)
    for reader in whole.nodes:
        if not unknown.isdisjoint(reader.outputs):
            needed.update(reader.inputs)
    needed -= unknown | free
    weights: dict[Value, int] = {}
    edges: list[tuple[Value, Value]] = []
    sources: list[Value] = []
    waiting = list(needed)
    while waiting:
        value = waiting.pop()
        if value in weights:
            continue
        weights[value] = value.type.nbytes
        node = makers.get(value)
        if node is None or not _is_cheap(node):
            sources.append(value)
            continue
        for operand in node.inputs:
            if operand not in free:
                edges.append((operand, value))
                waiting.append(operand)
    cut = minimum_cut(weights, edges, sources, needed)
    return [value for value in (*whole.inputs, *makers) if value in cut]


def _is_cheap(node: Node) -> bool:
    types = tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs)
    return len(node.outputs) == 1 and node.op.cost(*types).flops <= CHEAP * node.output.type.size


def _remaining(whole: Graph, results: Iterable[Value], kept: set[Value]) -> tuple[list[Node], set[Value]]:
    """Return the nodes that make the results from what is kept, and all values that these read."""
    read, nodes = set(results), []
    for node in reversed(whole.nodes):
        if any(value in read and value not in kept for value in node.outputs):
            nodes.append(node)
            read.update(node.inputs)
    return nodes[::-1], read
