"""Resident memory of a graph in the runtime, with the CPU delegate at work."""

from __future__ import annotations

from dataclasses import dataclass

from converter.backend.schedule.delegate import DelegatedCall, delegate, how, known_when_loaded
from converter.backend.schedule.memory import plan
from converter.ir import Graph, nested

#: Bytes that the runtime and the delegate keep for an operator, its tensors and their names (measured, LiteRT 2.3).
OPERATOR = 3 << 10
#: Bytes of a tensor in the table of a partition (measured: 77 MB for a thousand partitions among 24,000 tensors).
TABLE = 3.2
#: What a process keeps beside the arenas of loops' bodies, freed and not found again, as a part of them (measured with
#: glibc: mostly a tenth to a half, all of them as the heap may lie).
FREED = 0.25


@dataclass(frozen=True)
class Resident:
    """Bytes of one subgraph.

    Attributes:
        arena: the runtime's own: inputs, outputs, what its kernels compute, and what crosses a partition's border.
        workspace: the delegate's, for values inside a partition; all subgraphs share one, the largest.
        packed: what is kept from when the program is loaded: constants as the delegate packs them, and the operators.
    """

    arena: int
    workspace: int
    packed: int


def resident(graph: Graph, lanes: int, in_order: bool = True, lent: bool = False) -> Resident:
    """Return the memory of a graph whose state is exported, in the order of the file; see `delegate` for the arguments.

    `lent`: its inputs lie in who runs it.
    """
    return resident_as(graph, delegate(graph, lanes, in_order), lanes, in_order, lent)


def resident_as(graph: Graph, delegated: Graph, lanes: int, in_order: bool, lent: bool = False) -> Resident:
    """Return the same of a graph that is known as the runtime executes it."""
    return Resident(*_transient(delegated, lanes, in_order, lent), packed(graph, lanes))


def packed(graph: Graph, lanes: int) -> int:
    """Return `Resident.packed` of a graph."""
    nodes = [(known, node) for inner in nested(graph) for known in [known_when_loaded(inner)] for node in inner.nodes]
    constants = sum(run.packed for known, node in nodes if (run := how(known, node, lanes)) is not None)
    return constants + OPERATOR * len(nodes)


def tables(graph: Graph, lanes: int) -> int:
    """Return bytes of the tables that the delegate keeps of a subgraph's tensors, one for each partition in it."""
    found = 0.0
    for inner in nested(graph):
        partitions = sum(isinstance(node.op, DelegatedCall) for node in delegate(inner, lanes).nodes)
        found += TABLE * partitions * sum(len(node.outputs) for node in inner.nodes)
    return int(found)


def transient(graph: Graph, lanes: int, in_order: bool = True) -> int:
    """Return bytes that only runs of such a graph need: arena and workspace."""
    return sum(_transient(delegate(graph, lanes, in_order), lanes, in_order))


def _transient(delegated: Graph, lanes: int, in_order: bool, lent: bool = False) -> tuple[int, int]:
    """Arena and workspace. A loop's bodies have arenas of their own, as long as it runs; they share the workspace."""
    own, loops, workspace = _parts(delegated, lanes, in_order, lent)
    return own + loops + int(FREED * loops), workspace


def _parts(delegated: Graph, lanes: int, in_order: bool, lent: bool) -> tuple[int, int, int]:
    """Return the graph's own arena, those of the largest of its loops and of loops in that, and the workspace."""
    workspace = max((node.op.workspace for node in delegated.nodes if isinstance(node.op, DelegatedCall)), default=0)
    loops = 0
    # Loops may share their bodies.
    for of_loop in dict.fromkeys(node.op.bodies() for node in delegated.nodes):
        bodies = [_parts(delegate(body, lanes, in_order), lanes, in_order, lent=True) for body in of_loop]
        loops = max(loops, sum(own + inner for own, inner, _ in bodies))
        workspace = max([workspace, *(of_body for _, _, of_body in bodies)])
    return plan(delegated, lent).size, loops, workspace
