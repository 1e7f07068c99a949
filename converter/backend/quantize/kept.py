"""Cached int8 features: the border of an int8 prefix, where the integers themselves are kept."""

from __future__ import annotations

from converter.backend import builtins as tfl
from converter.ir import Builder, Graph
from converter.passes import eliminate_dead_code


def kept_as_int8(prefix: Graph) -> tuple[Graph, Graph]:
    """Return a prefix that ends before its conversions to float32, and these conversions as a graph of their own.

    Before: x -> f -> DEQUANTIZE -> `features`.   After: x -> f -> `features`, and `features` -> DEQUANTIZE ->
    `features`. `join` puts the second one before a step on features: what is kept takes a quarter of the room, and the
    step sees the numbers that it would see after the whole prefix.

    Args:
        prefix: lowered. What it gives that is no int8 stays as it is.
    """
    kept, b = prefix.copy(), Builder()
    for name, value in prefix.outputs.items():
        maker = prefix.producers().get(value)
        if maker is not None and isinstance(maker.op, tfl.Dequantize):
            (integers,) = maker.inputs
            kept.outputs[name] = integers
            with b.at(maker.origin):
                b.graph.outputs[name] = b(maker.op, b.input(name, integers.type))
    return eliminate_dead_code(kept), b.graph
