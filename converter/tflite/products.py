"""Products of several factors: those that repeat are multiplied before they do."""

from __future__ import annotations

from itertools import combinations
from math import prod

import numpy as np

from converter.ir import FLOAT32, Graph, Node, Shape, Value
from converter.passes.loops import map_bodies
from converter.passes.rewrite import Rewriter, rewrite
from converter.tflite import builtins as tfl


def smallest_products(graph: Graph) -> Graph:
    """Multiplies three factors in the order that computes the fewest numbers, and none by ones that only repeat.

    Before: MUL(MUL(x [N,C], a [N,1]), b [N,1]).   After: MUL(x, MUL(a, b)), an operator over x less.
    """
    return rewrite(map_bodies(graph, smallest_products), _reordered)


def _reordered(b: Rewriter, node: Node) -> Value | None:
    if not isinstance(node.op, tfl.Mul) or node.output.dtype != FLOAT32:
        return None
    for inner, last in (node.inputs, node.inputs[::-1]):
        first = b.producer(inner, tfl.Mul)
        # What the inner product's activation cuts off is no factor; what others read is computed anyway.
        if first is None or first.op.activation != "NONE" or inner is last or not b.used_once(inner):
            continue
        factors = [*first.inputs, last]
        met = [v for v in factors if b.scalar(v) != 1.0]
        if len(met) == 2 and _repeated(met) == node.output.shape:
            return b(node.op, *met)
        together = [pair for pair in combinations(factors, 2) if not all(v in b.graph.constants for v in pair)]
        pair = min(together, key=lambda pair: prod(_repeated(pair)), default=None)
        if pair is None or prod(_repeated(pair)) >= inner.type.size:
            continue
        alone = next(v for v in factors if v not in pair)
        if _repeated((alone, *pair)) == node.output.shape:
            return b(node.op, alone, b(tfl.Mul(), *pair))
    return None


def _repeated(values: tuple[Value, ...] | list[Value]) -> Shape:
    """The shape of a product of these."""
    return np.broadcast_shapes(*(v.shape for v in values))
