"""Reassociation of products: factors that repeat are multiplied before they do."""

from __future__ import annotations

from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.ir import FLOAT32, Graph, Node, Shape, Value, is_described
from converter.ir.rewrite import Rewriter, map_bodies, rewrite
from converter.passes.simplify import LARGEST, SMALLEST


def smallest_products(graph: Graph) -> Graph:
    """Multiplies three factors in the order that computes the fewest numbers, and none by ones that only repeat.

    Before: MUL(MUL(x [N,C], a [N,1]), b [N,1]).   After: MUL(x, MUL(a, b)), an operator over x less.

    Each product rounds, so that another order changes last bits. It can also leave float32's range where the order as
    written stays within: constants of extreme size are left where they stand.
    """
    return rewrite(map_bodies(graph, smallest_products), _reordered)


def _reordered(b: Rewriter, node: Node) -> Value | None:
    if not isinstance(node.op, tfl.Mul) or node.output.dtype != FLOAT32 or node.output.type.size == 0:
        return None
    for inner, last in (node.inputs, node.inputs[::-1]):
        first = b.producer(inner, tfl.Mul)
        # What the inner product's activation cuts off is no factor; what others read is computed anyway.
        if first is None or first.op.activation != "NONE" or inner is last or not b.used_once(inner):
            continue
        factors = [*first.inputs, last]
        contracted = [v for v in factors if b.scalar(v) != 1.0]
        if len(contracted) == 2 and _repeated(contracted) == node.output.shape:
            return b(node.op, *contracted)
        if any(_is_extreme(b.array(v)) for v in factors):
            continue
        # By their places, as one value may be two of the factors.
        orders = [(factors[k], factors[:k] + factors[k + 1 :]) for k in range(3)]
        together = [order for order in orders if not all(v in b.graph.constants for v in order[1])]
        alone, pair = min(together, key=lambda order: prod(_repeated(order[1])), default=(inner, [inner]))
        if prod(_repeated(pair)) < inner.type.size and _repeated((alone, *pair)) == node.output.shape:
            return b(node.op, alone, b(tfl.Mul(), *pair))
    return None


def _is_extreme(array: np.ndarray | None) -> bool:
    """Whether a product with numbers of a constant may be 0 or infinite where a third factor would have made up."""
    if array is None or is_described(array):
        return False
    sizes = np.abs(array[array != 0])
    return not ((sizes >= SMALLEST) & (sizes <= LARGEST)).all()


def _repeated(values: tuple[Value, ...] | list[Value]) -> Shape:
    """The shape of a product of these."""
    return np.broadcast_shapes(*(v.shape for v in values))
