"""The memory that a graph keeps resident in the runtime, with the CPU delegate at work."""

from __future__ import annotations

from dataclasses import dataclass

from converter.ir import Graph
from converter.schedule.delegate import Call, delegate, how
from converter.schedule.memory import plan

#: Bytes that the runtime and the delegate keep for an operator, its tensors and their names (measured, LiteRT 2.3).
OPERATOR = 3 << 10


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

    @property
    def transient(self) -> int:
        """What only runs of the subgraph need."""
        return self.arena + self.workspace


def resident(graph: Graph, lanes: int, in_order: bool = True) -> Resident:
    """The memory of a graph whose state is exported, in the order of the file; see `delegate` for the arguments."""
    delegated = delegate(graph, lanes, in_order)
    workspace = max((node.op.workspace for node in delegated.nodes if isinstance(node.op, Call)), default=0)
    packed = sum(run.packed for node in graph.nodes if (run := how(graph, node, lanes)) is not None)
    return Resident(plan(delegated).size, workspace, packed + OPERATOR * len(graph.nodes))
