"""What the stock interpreter really does with a program: its execution plan after delegation."""

from collections.abc import Iterator
from dataclasses import dataclass

from ai_edge_litert import schema_py_generated as schema

from converter.ir import Graph, Node
from tests.backend.stock import interpreter


@dataclass(frozen=True)
class Step:
    """One operator of the file.

    Attributes:
        kind: the interpreter's name for it, e.g. `CONV_2D`.
        delegated: whether it runs inside an XNNPACK partition.
    """

    kind: str
    delegated: bool


def execution(model: bytes) -> list[Step]:
    """The operators of the first subgraph, in the order of the file.

    A delegate's node replaces those it took over, and their outputs become its outputs or vanish: a tensor that nobody
    outside the partition reads has no buffer any more. The interpreter lists the file's nodes and then the delegates'.
    """
    runtime = interpreter(model, xnnpack=True)
    runtime.allocate_tensors()
    private = runtime._interpreter
    count = schema.Model.GetRootAs(model).Subgraphs(0).OperatorsLength()
    partitions = [i for i in range(count, private.NumNodes()) if "DELEGATE" in private.NodeName(i).upper()]
    outputs_of_partitions = {int(t) for i in partitions for t in private.NodeOutputs(i)}

    def has_buffer(tensor: int) -> bool:
        try:
            private.tensor(runtime, tensor)
        except ValueError:
            return False
        return True

    steps = []
    for i in range(count):
        outputs = [int(t) for t in private.NodeOutputs(i)]
        inside = bool(outputs) and all(t in outputs_of_partitions or not has_buffer(t) for t in outputs)
        steps.append(Step(private.NodeName(i), inside))
    return steps


def with_steps(graph: Graph, model: bytes) -> Iterator[tuple[Node, Step]]:
    """Each node of an exported graph with what became of it; the file holds the graph's nodes in order."""
    steps = execution(model)
    assert [n.op.code for n in graph.nodes] == [s.kind for s in steps]
    return zip(graph.nodes, steps, strict=True)
