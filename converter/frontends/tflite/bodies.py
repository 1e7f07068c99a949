"""Subgraphs that operators run, read by the importer of the operator: in its graph, or as graphs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from converter.frontends.tflite.folding import CautiousBuilder
from converter.frontends.tflite.reading.file import File, FileOperator
from converter.ir import Graph, Value
from converter.ir.rewrite import eliminate_dead_code


class Importing(Protocol):
    """What is needed of an importer.

    Attributes:
        file: the file, as the operators see it that are imported.
        b: the builder.
        taken: weights of the outer graph, as a graph of its own takes them.
    """

    file: File
    b: CautiousBuilder
    taken: dict[Value, Value]

    def inside(self, number: int, values: Sequence[Value], b: CautiousBuilder, operator: FileOperator) -> Importing:
        """Return an importer of a subgraph that an operator runs."""
        ...

    def results_of(self, number: int) -> list[Value]:
        """Return what the subgraph gives for which the importer was made."""
        ...


class ImportedBodies:
    """The subgraphs of a file for one operator; see `converter.frontends.tflite.registry.Bodies`."""

    def __init__(self, importer: Importing, operator: FileOperator) -> None:
        self._importer, self._operator = importer, operator

    def inline(self, number: int, values: Sequence[Value]) -> list[Value]:
        """Return what a subgraph makes of operands, in the graph of the operator."""
        inner = self._importer.inside(number, values, self._importer.b, self._operator)
        return inner.results_of(number)

    def graph(
        self, number: int, values: Sequence[Value], order: Sequence[int], fixed: Sequence[int]
    ) -> tuple[Graph, list[Value]]:
        """Return a subgraph as a graph of its own, and the weights that it takes before its operands."""
        b, constants = CautiousBuilder(self._importer.b), self._importer.b.graph.constants
        operands = {k: b.input(f"operand_{k}", values[k].type) for k in order}
        given = [operands[k] for k in range(len(values))]
        for k in fixed:
            if values[k] in constants:
                given[k] = b.constant(constants[values[k]])
        inner = self._importer.inside(number, given, b, self._operator)
        made = inner.results_of(number)
        made = [made[k] for k in order] if len(made) == len(values) else made
        b.graph.outputs = {f"result_{k}": value for k, value in enumerate(made)}
        weights, b.graph.inputs = list(inner.taken.values()), list(operands.values())
        return _with_first(eliminate_dead_code(b.graph), weights), list(inner.taken)

    def handed_on(self, number: int) -> list[int]:
        """Return which operands a subgraph gives as they are, in the same places."""
        body = self._importer.file.body(number)
        return [k for k, (given, made) in enumerate(zip(body.inputs, body.outputs, strict=False)) if given == made]


def _with_first(graph: Graph, inputs: Sequence[Value]) -> Graph:
    graph.inputs = [*inputs, *(value for value in graph.inputs if value not in inputs)]
    return graph
