"""DoRA: the norms of a weight's columns, computed from the weight as the program uses it, rounded or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from converter.backend.quantize.round_to_float16 import nearest
from converter.driver.compilation import Compilation
from converter.ir import Graph, Node, Value, dependents, known_result, ops
from converter.ir.rewrite import Rewriter, rewrite
from converter.support.errors import UsageError
from converter.support.notes import Note

#: What to say of a program that writes.
_SLOWER = Note(
    "generate",
    "slower",
    "each token asks for the lengths of columns again (DoRA), a pass over all adapted matrices: in int4 about three "
    "times the time of LoRA, in int4-dynamic many times",
)


def take_norms(c: Compilation) -> Compilation:
    """Put numbers in the place of the columns' lengths, of the model as it is and as it was before it was rounded.

    Raises:
        UsageError: for `frozen="int8"`.
    """
    magnitudes = {a.weight: a.magnitude.name for a in c.adapters if a.magnitude is not None}
    if not magnitudes:
        return c
    if c.options.frozen == "int8":
        raise UsageError(
            f"frozen='int8' does not go together with DoRA ({next(iter(magnitudes))}), which asks for the lengths of "
            "columns as they are multiplied: take frozen='int4-blockwise', 'int4' or 'float16', or LoRA",
            page="adapters",
        )
    model = with_norms(c, c.graphs.model)
    begin = {p.name: p for p in model.parameters.values()}
    adapters = [a if a.magnitude is None else replace(a, magnitude=begin[a.magnitude.name]) for a in c.adapters]
    unrounded = with_norms(c, c.graphs.unrounded) if c.options.is_int4 else c.graphs.unrounded
    notes = [*c.notes, _SLOWER] if c.offers("generate") else c.notes
    return replace(c.staged(model=model, unrounded=unrounded), adapters=adapters, notes=notes)


def with_norms(c: Compilation, graph: Graph) -> Graph:
    """Return a forward graph that knows the lengths of columns, with which what trains in their place begins.

    Before: y * scales * gains, of a matrix in integers.   After: y * (scales * gains), one product less of all rows.
    """
    if not any(isinstance(node.op, ops.SquaredNorms) for node in graph.nodes):
        return graph
    makers, begin = graph.producers(), dict[str, np.ndarray]()
    rounds, of_inputs = c.options.frozen == "float16", dependents(graph, graph.inputs)

    def known(value: Value) -> np.ndarray:
        """Return a frozen weight as a node reads it."""
        if value in graph.constants:
            return graph.constants[value]
        if value in graph.parameters:
            array = graph.parameters[value].value
            return nearest(array) if rounds else array
        node = makers[value]
        found = known_result(node.op, node.output.type, *map(known, node.inputs))
        assert found is not None
        return found

    def taken(b: Rewriter, node: Node) -> Value | None:
        if isinstance(node.op, ops.Mul) and node.inputs[0] in of_inputs and node.inputs[1] not in of_inputs:
            y, gains = node.inputs
            scaled = b.producer(y, ops.Mul)
            if scaled is None or gains in graph.constants or (scales := scaled.inputs[1]) not in graph.constants:
                return None
            return b(ops.Mul(), scaled.inputs[0], b(ops.Mul(), scales, gains)) if scales.type == gains.type else None
        if not isinstance(node.op, ops.SquaredNorms):
            return None
        squares = known_result(node.op, node.output.type, *map(known, node.inputs))
        assert squares is not None
        lengths = known_result(ops.Sqrt(), node.output.type, squares)
        assert lengths is not None
        begin[node.op.magnitude] = lengths
        return b.constant(squares, name=node.output.name)

    after = rewrite(graph, taken)
    after.parameters = {
        v: replace(p, model_value=begin[p.name]) if p.name in begin else p for v, p in after.parameters.items()
    }
    return after
