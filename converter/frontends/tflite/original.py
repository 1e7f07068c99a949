"""The file's own operators before the first trained layer: integers stay integers, every bit the original's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np

from converter.frontends.tflite.copying import Carrying
from converter.frontends.tflite.reading.file import File, reading
from converter.ir import Graph, Node, Shape, Value, dependents, ops
from converter.ir.rewrite import Rewriter, eliminate_dead_code, rewrite
from converter.passes.frozen_prefix import crossing
from converter.support.errors import UnsupportedError, UnsupportedSite


@dataclass(frozen=True, eq=False)
class Carrier:
    """What is known of a file that was imported for some rows.

    Attributes:
        file: the file.
        rows: the batch.
        fed: names of the graph's inputs by tensor.
        shapes: of the tensors that were imported.
        constants: what is known of them.
        integers: names of parameters that are integers in the file.
    """

    file: File
    rows: int
    fed: Mapping[int, str]
    shapes: Mapping[int, Shape]
    constants: Mapping[int, np.ndarray] = field(repr=False)
    integers: frozenset[str] = frozenset()

    @property
    def is_quantized(self) -> bool:
        """Whether operators of the file compute on integers that stand for real numbers, be it weights alone."""
        used = {i for o in self.file.operators if o.kind != "DEQUANTIZE" for i in (*o.inputs, *o.outputs) if i >= 0}
        return any(self.file.tensors[i].is_quantized for i in used)

    @property
    def stateful(self) -> frozenset[int]:
        """Tensors that recurrent layers with variables make, or that depend on these.

        Their kernels go on from where the last call ended, which rows of a batch must not.
        """
        found: set[int] = set()
        for operator in self.file.operators:
            if any(i in found or (i >= 0 and self.file.tensors[i].is_variable) for i in operator.inputs):
                found.update(operator.outputs)
        return frozenset(found)

    def carried(self, graph: Graph) -> tuple[Graph, int]:
        """Return a forward graph that begins with the file's own operators, and how many these are.

        Before: x -> f -> tensor -> g(W).   After: x -> the operators that make the tensor in the file -> g(W).

        Args:
            graph: what is frozen in constants, tensors of the file marked (`ops.Stored`).

        Raises:
            UnsupportedError: after what trains there are operators that only the runtime knows.
            UsageError: the stock runtime does not run the operators for these rows.
        """
        border = self._border(graph)
        carrying = Carrying(self.file, self.rows, graph, self.fed, self.shapes, self.constants)
        with reading(self.file.path):
            bound = carrying.run({value: node.op.number for value, node in border.items()})
        after = carrying.b.graph
        count = len(carrying.carried)
        for node in graph.nodes:
            after.nodes.append(Node(node.op, tuple(bound.get(v, v) for v in node.inputs), node.outputs, node.origin))
        after.outputs = {name: bound.get(value, value) for name, value in graph.outputs.items()}
        return without_foreign(without_marks(eliminate_dead_code(after)), self.file.path), count

    def _border(self, graph: Graph) -> dict[Value, Node]:
        """Return the last marked tensors before all that trains, with their marks."""
        producers, fed, stateful = graph.producers(), dependents(graph, graph.inputs), self.stateful
        border: dict[Value, Node] = {}
        pending, seen = crossing(graph), set[Value]()
        while pending:
            value = pending.pop()
            node = producers.get(value)
            if value in seen or value not in fed or node is None:
                continue
            seen.add(value)
            if isinstance(node.op, ops.Stored) and node.op.number not in (ops.INSIDE, *stateful):
                border[value] = node
            else:
                pending += node.inputs
        return border


def without_marks(graph: Graph) -> Graph:
    """Return a graph in which the bounds of the file's tensors are operations of their own."""

    def rule(b: Rewriter, node: Node) -> Value | None:
        if not isinstance(node.op, ops.Stored):
            return None
        x, low, high = node.inputs[0], node.op.low, node.op.high
        if b.producer(x, ops.Relu, ops.Relu6) is not None and low <= 0:
            low = -inf
        six = b.producer(x, ops.Relu6) is not None and high >= 6 * (1 - 2**-8)
        x = x if high == inf or six else b(ops.Minimum(), x, high)
        return x if low == -inf else b(ops.Maximum(), x, low)

    return rewrite(graph, rule)


def without_foreign(graph: Graph, path: str) -> Graph:
    """Return the graph. Raise UnsupportedError where operators are left that only the runtime knows."""
    advice = "train only layers after it (update=, classes=), or cut the model before it (cut=)"
    sites = [
        UnsupportedSite(node.op.kind, node.origin.layer, node.origin.source, f"the operator {node.op.kind}", advice)
        for node in graph.nodes
        if isinstance(node.op, ops.Foreign)
    ]
    if sites:
        listed = "".join(f"\n  {site.reason}\n    {site.source}, layer {site.layer}" for site in sites)
        raise UnsupportedError(
            f"{path} cannot be trained in this way: only the runtime knows what these compute, and they come after or "
            f"among trained layers:{listed}\n    what to do: {advice}",
            sites,
            page="tflite-files",
        )
    return graph
