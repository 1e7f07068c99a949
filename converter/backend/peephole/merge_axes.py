"""Rank reduction of elementwise builtins, where a runtime's kernels take no more axes.

The kernels of TensorFlow Lite that repeat operands along more than four axes end the process in the middle of a step.
"""

from __future__ import annotations

from itertools import groupby
from math import prod

from converter.backend import builtins as tfl
from converter.backend.targets import Target
from converter.ir import Graph, Node, Shape, Value
from converter.ir.rewrite import Rewriter, map_bodies, rewrite


def with_fewer_axes(lowered: Graph, target: Target) -> Graph:
    """Neighbouring axes become one where the same operands are repeated along them; what still is too much stays."""
    if not target.limits:
        return lowered

    def merge(b: Rewriter, node: Node) -> Value | None:
        types = [v.type for v in node.inputs]
        if not target.repeats(node.op.code) or target.takes(node.op.code, types):
            return None
        shapes = merged([t.shape for t in types])
        operands = [b(tfl.Reshape(shape), v) for shape, v in zip(shapes, node.inputs, strict=True)]
        return b(tfl.Reshape(node.output.shape), b(node.op, *operands))

    return rewrite(map_bodies(lowered, lambda body: with_fewer_axes(body, target)), merge)


def merged(shapes: list[Shape]) -> list[Shape]:
    """Shapes that broadcast together, with as few axes as they can have."""
    rank = max(map(len, shapes))
    axes = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    # An axis of 1 in all of them is none; by which operands are repeated, neighbours are one.
    groups = groupby((sizes for sizes in axes if max(sizes) > 1), key=lambda sizes: tuple(size == 1 for size in sizes))
    made = [tuple(map(prod, zip(*group, strict=True))) for _, group in groups] or [(1,) * len(shapes)]
    return [tuple(sizes) for sizes in zip(*made, strict=True)]
