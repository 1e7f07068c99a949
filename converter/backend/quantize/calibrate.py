"""Calibration: the range of every activation on the user's samples, found by the stock interpreter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.quantize.stock import StockRunner, batches
from converter.ir import Graph, Value
from converter.ir.rewrite import Rewriter
from converter.ir.scales import Range
from converter.passes import eliminate_dead_code


def ranges(graph: Graph, values: Iterable[Value], rows: Mapping[str, np.ndarray], batch: int) -> dict[Value, Range]:
    """Smallest and largest element of values of a lowered graph over all rows.

    The graph itself finds them (REDUCE_MIN, REDUCE_MAX), so that its activations need no more memory than in a step.
    """
    values = list(dict.fromkeys(values))
    numbers = {value: i for i, value in enumerate(values)}
    b = Rewriter(graph)

    def look_at(value: Value) -> None:
        if value in numbers:
            for name, op in (("low", tfl.ReduceMin), ("high", tfl.ReduceMax)):
                found = b(op(tuple(range(len(value.shape))), keepdims=True), value)
                b.graph.outputs[f"{name}_{numbers[value]}"] = found

    for value in graph.inputs:
        look_at(value)
    for node in graph.nodes:
        b.append(node)
        for value in node.outputs:  # at once: later ones take its place
            look_at(value)
    run = StockRunner(eliminate_dead_code(b.graph))
    found: dict[Value, Range] = {}
    for feed, _ in batches(rows, batch):
        result = run({value.name: feed[value.name] for value in graph.inputs})
        for i, value in enumerate(values):
            seen = Range(float(result[f"low_{i}"].min()), float(result[f"high_{i}"].max()))
            found[value] = found[value] | seen if value in found else seen
    return found
