"""Liveness over time: the pieces of the arena and of the delegate's workspace at each operator of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Literal

from converter.backend.schedule.delegate import DelegatedCall, delegate
from converter.backend.schedule.memory import plan
from converter.backend.schedule.resident import Resident, resident, resident_as
from converter.ir import Graph, Node, Value

#: A tensor of the arena, a kernel's temporary one, a value in the delegate's workspace, what the steps of a loop need.
Kind = Literal["tensor", "scratch", "workspace", "loop"]


@dataclass(frozen=True)
class Allocation:
    """Bytes that are taken while operators `first`..`last` run.

    Attributes:
        maker: the operator that they belong to; None for an input.
    """

    nbytes: int
    first: int
    last: int
    maker: int | None
    kind: Kind


@dataclass(frozen=True)
class Timeline:
    """A run of a subgraph.

    Attributes:
        order: the operators in the order of execution, as positions in the graph.
        partitions: for each of them the number of the delegate's partition; None: the runtime's own kernel runs it.
        pieces: by the order of execution.
        planned: how large arena and workspace are, gaps included.
    """

    order: tuple[int, ...]
    partitions: tuple[int | None, ...]
    pieces: tuple[Allocation, ...]
    planned: Resident


def timeline(graph: Graph, lanes: int, in_order: bool = True) -> Timeline:
    """Return the run of a graph whose state is exported; see `delegate` for the arguments."""
    delegated = delegate(graph, lanes, in_order)
    runs = [node.op.nodes if isinstance(node.op, DelegatedCall) else (node,) for node in delegated.nodes]
    starts = [0, *accumulate(map(len, runs))]
    executed = [node for run in runs for node in run]
    place = {node: i for i, node in enumerate(graph.nodes)}
    calls = [isinstance(node.op, DelegatedCall) for node in delegated.nodes]
    numbers = list(accumulate(calls))
    partitions = [numbers[i] - 1 if calls[i] else None for i, run in enumerate(runs) for _ in run]
    pieces = [
        *_arena(delegated, executed, starts),
        *_workspaces(delegated, starts),
        *_loops(delegated, starts, lanes, in_order),
    ]
    order = tuple(place[node] for node in executed)
    return Timeline(order, tuple(partitions), tuple(pieces), resident_as(graph, delegated, lanes, in_order))


def _arena(delegated: Graph, executed: list[Node], starts: list[int]) -> Iterator[Allocation]:
    """Tensors that a partition reads or gives are alive while all of it runs."""
    arena, end = plan(delegated), len(delegated.nodes) - 1
    makers: dict[Value, int] = {v: i for i, node in enumerate(executed) for v in node.outputs}
    # Of values that share a buffer the first is the one that made it.
    for allocation, value in {id(a): (a, v) for v, a in reversed(arena.allocations.items())}.values():
        if allocation.size:
            first, last = min(allocation.first, end), min(allocation.last, end)
            yield Allocation(allocation.size, starts[first], starts[last + 1] - 1, makers.get(value), "tensor")
    for scratch in arena.scratch:
        yield Allocation(scratch.size, starts[scratch.first], starts[scratch.first], starts[scratch.first], "scratch")


def _workspaces(delegated: Graph, starts: list[int]) -> Iterator[Allocation]:
    for start, node in zip(starts, delegated.nodes, strict=False):
        if isinstance(node.op, DelegatedCall):
            for inside in node.op.inside:
                yield Allocation(
                    inside.size, start + inside.first, start + inside.last, start + inside.first, "workspace"
                )


def _loops(delegated: Graph, starts: list[int], lanes: int, in_order: bool) -> Iterator[Allocation]:
    """Arenas and workspaces of loops' bodies, which are there as long as the loop runs."""
    of_body = cache(lambda body: resident(body, lanes, in_order, lent=True))  # loops may share their bodies
    for start, node in zip(starts, delegated.nodes, strict=False):
        if bodies := [of_body(body) for body in node.op.bodies()]:
            nbytes = sum(body.arena for body in bodies) + max(body.workspace for body in bodies)
            yield Allocation(nbytes, start, start, start, "loop")
