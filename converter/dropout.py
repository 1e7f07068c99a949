"""Dropout while a model trains: random masks made by the program itself, from the number of the call.

A mask is a hash of the call's number, of which dropout it is, and of the place in the tensor, in wrapping int32
arithmetic that is the same on every runtime. So a training can be repeated exactly, and one that is taken up again from
a saved state goes on with new masks: the number is part of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod

import numpy as np

from converter.errors import UnsupportedError, UnsupportedSite
from converter.ir import FLOAT32, INT32, Builder, Graph, Node, Parameter, TensorType, Value, nested, ops
from converter.notes import Note
from converter.passes.loops import map_bodies
from converter.passes.rewrite import Rewriter, rewrite

#: The state tensor that counts calls, exact up to 2^24 of them.
COUNTER = "dropout/step"
#: Odd numbers that spread the bits (the golden ratio; Wellons' hash lowbias32, github.com/skeeto/hash-prospector).
_GOLDEN, _FIRST, _SECOND = 0x9E3779B1, 0x7FEB352D, 0x846CA68B


def dropouts(graph: Graph) -> list[Node]:
    """Where a graph drops elements in training."""
    return [node for inner in nested(graph) for node in inner.nodes if isinstance(node.op, ops.Dropout)]


def without_dropout(graph: Graph) -> Graph:
    """The graph in which nothing is dropped in training either."""
    graph = map_bodies(graph, without_dropout)
    return rewrite(graph, lambda b, node: node.inputs[0] if isinstance(node.op, ops.Dropout) else None)


def call_counter() -> tuple[Value, Parameter]:
    """The state that counts calls."""
    return Value(TensorType((1,)), COUNTER), Parameter(COUNTER, np.zeros(1, np.float32), kind="slot")


def with_masks(graph: Graph, counter: Value, parameter: Parameter) -> Graph:
    """The graph as it trains: elements dropped, and the rest scaled so that their mean stays.

    Raises:
        UnsupportedError: something is dropped within a loop that stays one, where each step would drop the same.
    """
    if inside := [node for node in dropouts(graph) if node not in graph.nodes]:
        reason, advice = "dropout within a long loop", "drop before or behind the loop, or build with dropout='off'"
        sites = [UnsupportedSite("dropout", n.origin.layer, n.origin.source, reason, advice) for n in inside]
        where = ", ".join(sorted({str(node.origin) for node in inside}))
        raise UnsupportedError(f"{reason}, {where}, would drop the same in each step: {advice}", sites)
    counted = graph.copy()
    counted.parameters[counter] = parameter

    def drop(b: Rewriter, node: Node) -> Value | None:
        if not isinstance(node.op, ops.Dropout):
            return None
        x = node.inputs[0]
        return b(ops.Mul(), x, _mask(b, node.op, x.shape, b(ops.Cast(INT32), counter)))

    b = Builder(rewrite(counted, drop))
    b.graph.updates[counter] = b(ops.Add(), counter, 1.0)
    return b.graph


def dropout_notes(nodes: Sequence[Node], trains: bool) -> list[Note]:
    """What to say of each."""
    status, why = ("trains", "masks of its own in each step") if trains else ("left out", "dropout='train' drops")
    return [Note(n.origin.layer or "model", status, f"{n.op.label}(rate={n.op.rate:g}): {why}") for n in nodes]


def _mask(b: Builder, op: ops.Dropout, shape: tuple[int, ...], call: Value) -> Value:
    """0 for what is dropped, else 1 / (1 - rate)."""
    if op.rate >= 1:
        return b.constant(np.zeros((1,) * len(shape), np.float32))
    shape = tuple(1 if axis in op.shared else size for axis, size in enumerate(shape))
    columns = next(n for n in range(isqrt(prod(shape)), prod(shape) + 1) if n and not prod(shape) % n)
    key = _hashed(b, b(ops.Add(), b(ops.Mul(), call, _int32(_GOLDEN)), _int32(op.key * _FIRST)))
    # The places are added one axis at a time, so that no constant is as large as the mask.
    rows = b.constant(_int32(_GOLDEN * columns * np.arange(prod(shape) // columns)[:, None]))
    places = b(ops.Add(), b(ops.Add(), rows, key), b.constant(_int32(_GOLDEN * np.arange(columns)[None])))
    kept = b(ops.GreaterEqual(), _hashed(b, places), b.constant(np.int32(round(op.rate * 2**32) - 2**31)))
    return b.reshape(b(ops.Mul(), b(ops.Cast(FLOAT32), kept), 1 / (1 - op.rate)), shape)


def _hashed(b: Builder, x: Value) -> Value:
    for shift, factor in ((16, _FIRST), (15, _SECOND)):
        x = b(ops.Mul(), b(ops.BitwiseXor(), x, b(ops.ShiftRight(), x, shift)), _int32(factor))
    return x


def _int32(numbers: int | np.ndarray) -> np.ndarray:
    """The lowest 32 bits, as int32 has them."""
    return (np.asarray(numbers, np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
