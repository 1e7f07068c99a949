"""Weight-only quantization: frozen dense layers and embeddings in int4, multiplied as the integers that they are.

No range of an activation is needed, and none is rounded: the program computes what the model with the rounded weights
would, forward and backward. But for dense layers of a dynamic range, whose kernels round what they read as they run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from converter.backend.quantize.choose import FrozenLayer
from converter.backend.quantize.read_int4 import is_taken_over, read_int4
from converter.ir import (
    FLOAT32,
    INT4,
    INT8,
    Graph,
    LazyArray,
    Node,
    Parameter,
    Shape,
    TensorType,
    Unread,
    Value,
    dependents,
    described,
    is_described,
    ops,
)
from converter.ir.described import described_integers
from converter.ir.rewrite import Rewriter, rewrite
from converter.ir.scales import int4_blocks, int4_rows
from converter.passes import absorb_layout
from converter.passes.read_weights import read, read_weights
from converter.support.errors import NumericError

#: Elements of the smallest matrix that is rounded.
LEAST = 4096
#: The four bits of -8.
_LOWEST = 8

_BUILTINS = {
    ops.MatMul: "FULLY_CONNECTED", ops.Gather: "GATHER",
    ops.Conv2D: "CONV_2D", ops.DepthwiseConv2D: "DEPTHWISE_CONV_2D",
}  # fmt: skip


class _Use(NamedTuple):
    """A node that reads a weight [A, B].

    Attributes:
        axis: that of the weight which is an axis of the result: the rows of a table, the outputs of a dense layer.
            None where the node is neither.
    """

    node: Node
    axis: int | None


class _Matrix(NamedTuple):
    """A weight as it is stored: integers [A, B], scales [A] or [A, blocks]; `axis`: which of the weight A was."""

    integers: np.ndarray
    scales: np.ndarray
    axis: int


def store_as_int4(
    graph: Graph, frozen: Collection[str], block: int | None = None, dynamic: bool = False
) -> tuple[Graph, tuple[FrozenLayer, ...]]:
    """Return a graph in which frozen matrices are int4, with a scale for each output channel or row of a table.

    Before: MatMul(x, W).    After: Mul(CastMatMul(x, W4), scales).
    Before: Gather(W, ids).  After: Mul(CastGather(W4, ids), Gather(scales, ids)).

    With blocks each has a scale, of float16, and these are operands: CastMatMul(x, W4, scales). A row that is no
    multiple of the block has one scale.

    Of a dynamic range it is Mul(DynamicRangeMatMul(x, W4), scales) where another product follows and the kernels take
    the matrix: logits are as exact as else.

    What has a source is read, a piece at a time where it becomes int4. A matrix that a table and a head share is stored
    once, and so is one that is read both ways round: where the scales lie along the sum, they multiply the rows that
    meet it.

    Args:
        graph: a forward graph whose weights are parameters.
        frozen: names of those that do not train.
        block: numbers of a row that share a scale; None: all of them.
        dynamic: dense layers round what they read to int8 by the range of each row; there are no blocks then.

    Returns:
        The graph, and what became of each frozen layer with weights.

    Raises:
        NumericError: a number is not finite, or too large for the scale of a block.
    """
    laid = absorb_layout(graph, frozen)
    activations = dependents(laid, laid.inputs)
    layers: list[FrozenLayer] = []
    made: dict[Value, _Matrix] = {}
    rounding = _before_products(laid, activations) if dynamic else set[Node]()
    for value, parameter in laid.parameters.items():
        if parameter.name in frozen:
            uses = _uses(laid, value)
            why = _why_not(laid, value, uses)
            if why is None:
                made[value] = _rounded(parameter, value.shape, uses, block)
            for node, axis in uses:
                if type(node.op) not in _BUILTINS:
                    continue
                if isinstance(node.op, ops.MatMul) and activations.isdisjoint(node.inputs):
                    continue  # of what trains, no layer
                if node in rounding and (why is not None or not _takes_dynamic_range(node, axis, made[value])):
                    rounding.discard(node)
                named = node.origin.layer or parameter.name, _BUILTINS[type(node.op)]
                rounds = node in rounding
                layers.append(FrozenLayer(*named, "float32", why) if why else _told(named, made[value], block, rounds))
    return read_weights(_with_integers(laid, made, rounding)), tuple(layers)


def _before_products(graph: Graph, activations: Collection[Value]) -> set[Node]:
    """Return the nodes that read activations and whose results other products depend on."""
    read, found = set[Value](), set[Node]()
    for node in reversed(graph.nodes):
        is_read = not read.isdisjoint(node.outputs)
        if is_read and any(v in activations for v in node.inputs):
            found.add(node)
        if is_read or node.op.contracts:
            read.update(node.inputs)
    return found


def _uses(graph: Graph, value: Value) -> list[_Use]:
    """Return what reads a weight, as it is or transposed."""
    found = []
    for node in (n for n in graph.nodes if value in n.inputs):
        if _turns(node):
            found += [_Use(n, _axis(n, node.output, True)) for n in graph.nodes if node.output in n.inputs]
        else:
            found.append(_Use(node, _axis(node, value, False)))
    return found


def _turns(node: Node) -> bool:
    return isinstance(node.op, ops.Transpose) and node.op.perm == (1, 0)


def _axis(node: Node, weight: Value, transposed: bool) -> int | None:
    """Return `_Use.axis`; `transposed`: the node reads the weight so."""
    match node.op:
        case ops.Gather(axis=0) if node.inputs[0] is weight and not transposed:
            return 0
        case ops.MatMul(adj_x=False, adj_y=adj_y) if node.inputs[1] is weight and node.inputs[0] is not weight:
            return 0 if adj_y != transposed else 1
        case ops.SquaredNorms(axis=axis):
            return axis if not transposed else 1 - axis
    return None


def _why_not(graph: Graph, value: Value, uses: list[_Use]) -> str | None:
    """Return why a weight stays as it is, if so."""
    if value.type.rank != 2 or value.dtype != FLOAT32:
        return "no int4 form of such weights"
    if value.type.size < LEAST:
        return "small"
    if value in graph.results():
        return "a result of the model"
    if not uses:
        return "not read"
    other = next((use.node for use in uses if use.axis is None), None)
    return None if other is None else f"also read by {other.op.name}"


def _takes_dynamic_range(node: Node, axis: int | None, one: _Matrix) -> bool:
    """Return whether kernels multiply by these integers.

    For scales along the sum they have no place, and the interpreter's own gives wrong numbers of rows with -8, which
    may stand in what is taken over.
    """
    is_int4 = one.integers.dtype == INT4 and one.scales.ndim == 1 and one.integers.shape[1] % 2 == 0
    if not (is_int4 and isinstance(node.op, ops.MatMul) and axis == one.axis):
        return False
    return is_described(one.integers) or not (one.integers.view(np.uint8) & 15 == _LOWEST).any()


def _told(named: tuple[str, str], one: _Matrix, block: int | None, rounds: bool) -> FrozenLayer:
    """Return what became of a layer whose weight is in integers; `rounds`: what it reads is, too."""
    columns = one.integers.shape[1]
    is_int8 = one.integers.dtype == INT8
    if rounds:
        return FrozenLayer(*named, "int4-dynamic", "weights; what it reads is rounded to int8, by rows, forward")
    if one.scales.ndim == 1:
        why = "weights" if block is None else f"weights, a scale for each row of {columns}"
        return FrozenLayer(*named, "int8" if is_int8 else "int4", why)
    why = f"weights, a scale for each {columns // one.scales.shape[1]} numbers"
    return FrozenLayer(*named, "int8-blockwise" if is_int8 else "int4-blockwise", why)


def _rounded(parameter: Parameter, shape: Shape, uses: list[_Use], block: int | None) -> _Matrix:
    """Return a weight in integers: the rows of a table, or what the first dense layer gives, have their own scales."""
    axis = 0 if any(isinstance(use.node.op, ops.Gather) for use in uses) else uses[0].axis or 0
    source, turns = parameter.source, _as_read(parameter)
    if source is not None and turns is not None and is_taken_over(source, block):
        axis = int(turns)  # their scales are what they are, wherever these lie
        if isinstance(source, Unread):
            return _Matrix(*_planned_as_stored(source, parameter.name), axis)
    if block is not None and shape[1 - axis] % block:
        block = None
    try:
        if source is not None and turns is not None and not isinstance(source, Unread):
            return _Matrix(*read_int4(source, turns != (axis == 1), block, parameter.name), axis)
        parameter = read(parameter)
        weight = parameter.value if axis == 0 else parameter.value.T
        if is_described(weight):
            return _Matrix(*_planned(weight.shape, parameter.name, block), axis)
        return _Matrix(*(int4_rows(weight) if block is None else int4_blocks(weight, block)), axis)
    except OverflowError as error:
        raise NumericError(
            f"{parameter.name}: its blocks have no scale in float16, {error}: take frozen='int4', whose are float32"
        ) from error


def _planned(shape: Shape, name: str, block: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return integers and scales that are described."""
    integers = described_integers(shape, INT4, name)
    if block is None:
        return integers, described(shape[:1], f"scales of {name}")
    return integers, described_integers((shape[0], shape[1] // block), np.dtype(np.float16), f"scales of {name}")


def _planned_as_stored(source: LazyArray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return integers and scales that are described, of the types in which they are taken over."""
    stored = source.integers()
    assert stored is not None
    integers, rows = described_integers(source.shape, stored.dtype, name), source.shape[0]
    if stored.blocks == 1:
        return integers, described((rows,), f"scales of {name}")
    return integers, described_integers((rows, stored.blocks), stored.of_scales, f"scales of {name}")


def _as_read(parameter: Parameter) -> bool | None:
    """Return whether a matrix is stored as the transposed one of the model; None where it is neither."""
    return {(): False, (("transpose", (1, 0)),): True}.get(parameter.view.steps)


def _with_integers(graph: Graph, made: Mapping[Value, _Matrix], rounding: Collection[Node]) -> Graph:
    """Return the graph with these weights as integers; those nodes round what they read."""
    transposed = {n.output: n.inputs[0] for n in graph.nodes if _turns(n) and n.inputs[0] in made}
    after = graph.copy()
    after.parameters = {v: p for v, p in graph.parameters.items() if v not in made}
    stored: dict[Value, tuple[Value, Value]] = {}
    for value, one in made.items():
        integers = Value(TensorType(one.integers.shape, one.integers.dtype), value.name)
        scales = Value(TensorType(one.scales.shape, one.scales.dtype), f"{value.name}/scales")
        after.constants |= {integers: one.integers, scales: one.scales}
        stored[value] = integers, scales

    def contracted(b: Rewriter, node: Node) -> Value | None:
        operand = next((v for v in node.inputs if transposed.get(v, v) in made), None)
        if operand is None or _turns(node):
            return None
        value = transposed.get(operand, operand)
        integers, scales = stored[value]
        x = node.inputs[0]
        straight = _axis(node, operand, operand in transposed) == made[value].axis
        if isinstance(node.op, ops.SquaredNorms):
            return b(replace(node.op, axis=0 if straight else 1), integers, scales)
        if len(scales.shape) == 2:
            if isinstance(node.op, ops.Gather):
                return b(ops.CastGather(), integers, node.inputs[1], scales)
            return b(ops.CastMatMul(adj_y=straight), x, integers, scales)
        if isinstance(node.op, ops.Gather):
            of_rows = b(ops.Gather(), b.reshape(scales, (*scales.shape, 1)), node.inputs[1])
            return b(ops.Mul(), b(ops.CastGather(), integers, node.inputs[1]), of_rows)
        if straight:
            product = ops.DynamicRangeMatMul() if node in rounding else ops.CastMatMul(adj_y=True)
            return b(ops.Mul(), b(product, x, integers), scales)
        return b(ops.CastMatMul(), b(ops.Mul(), x, scales), integers)

    return rewrite(after, contracted)
