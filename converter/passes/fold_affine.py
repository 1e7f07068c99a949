"""Folds per-channel scales and shifts around convolutions and matrix products into their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from converter.ir import Builder, Graph, Node, Op, Value, ops
from converter.ir.ops.conv import NO_PADDING, Windowed
from converter.ir.rewrite import Rewriter, rewrite
from converter.passes.affine import Affine, AffineStep, Chains, length


def fold_affine(graph: Graph) -> Graph:
    """Makes one scale and one shift of each chain of per-channel arithmetic, and puts the scale into a weight.

    Before: (Conv2D(x, W) - mean) / deviation * gamma + beta.   After: Conv2D(x, W * scale) + shift.
    Before: Conv2D(x * scale, W).                               After: Conv2D(x, W * scale).

    With all of it frozen the scaled weight is a constant and the shift the kernel's bias. With W trained the product
    stays in the program as an op on the weight: each trained tensor keeps its meaning and its optimizer state, and the
    gradient of a scale comes from the gradient of the weight. A trained scale does not go into a frozen weight, whose
    gradient nobody computes and whose kernel is fast because it is constant, nor any into a trained weight that is
    larger than the activation.
    """
    return _fold_after(_fold_before(_fold_after(graph)))


def _fold_after(graph: Graph) -> Graph:
    """Chains after a product; any other chain becomes one scale and one shift where that is shorter."""
    chains = Chains(graph)

    def fold(b: Rewriter, node: Node) -> Value | None:
        steps = chains.ending_at(node.outputs[0]) if node.outputs else []
        into = _part_for_the_weight(chains, steps)
        folded, rest = steps[:into], steps[into:]
        if any(s.shifts for s in folded) + length(rest) >= len(steps):
            return None
        y, inner = b.current(steps[0].x), chains.compose(b, folded)
        if inner.scale is not None:
            y = _scaled(b, y, inner.scale)
        return chains.compose(b, rest).apply(b, Affine(shift=inner.shift).apply(b, y))

    return rewrite(graph, fold)


def _part_for_the_weight(chains: Chains, steps: Sequence[AffineStep]) -> int:
    """Return how many steps from the first on go into the weight: all, or those before a trained scale, or none."""
    if not steps or _takes_scale(chains, steps[0].x, chains.scale_is_trained(steps)):
        return len(steps)
    if not _takes_scale(chains, steps[0].x, False):
        return 0
    frozen = next(i for i in range(len(steps)) if chains.scale_is_trained(steps[: i + 1]))
    # A trained shift cannot be the bias of a constant weight: behind the scale it is one op with the other shifts.
    return 0 if chains.shift_is_trained(steps[:frozen]) else frozen


def _takes_scale(chains: Chains, value: Value, scale_is_trained: bool) -> bool:
    """Return whether `value` is made by products whose weights can be scaled, and for this chain only."""
    node = chains.made_by.get(value)
    if node is None or chains.uses[value] > 1:
        return False
    match node.op:
        case ops.Add():  # the two parts of a channel-sparse layer
            same_shape = all(v.shape == value.shape for v in node.inputs)
            return same_shape and all(_takes_scale(chains, v, scale_is_trained) for v in node.inputs)
        case ops.Concat(axis=axis) if axis == len(value.shape) - 1:  # groups
            return all(_takes_scale(chains, v, scale_is_trained) for v in node.inputs)
    return isinstance(node.op, ops.Layer) and _weight_takes_scale(chains, node, scale_is_trained, value.type.size)


def _weight_takes_scale(chains: Chains, node: Node, scale_is_trained: bool, spared: int) -> bool:
    """Return whether to scale the weight of a product instead of `spared` elements of an activation."""
    weight = node.inputs[1]
    if weight in chains.fed:
        return False
    if weight in chains.trained:
        return weight.type.size <= spared
    # A shared weight is stored once more: unless others want it as it is, that is no more than what is saved.
    shared = chains.readers[weight] if chains.uses[weight] > 1 else []
    worth_it = weight.type.size <= spared and all(isinstance(n.op, ops.Layer) for n in shared)
    return not scale_is_trained and (not shared or worth_it)


def _scaled(b: Rewriter, value: Value, scale: Value) -> Value:
    """Return the products that make `value` again, with weights times `scale` along their output channels."""
    node = b.producer(value, Op)
    assert node is not None
    match node.op:
        case ops.Add():
            return b(node.op, *(_scaled(b, v, scale) for v in node.inputs))
        case ops.Concat():
            starts = np.cumsum([0, *(v.shape[-1] for v in node.inputs)])
            parts = (_channels(b, scale, int(i), v.shape[-1]) for i, v in zip(starts, node.inputs, strict=False))
            return b(node.op, *(_scaled(b, v, part) for v, part in zip(node.inputs, parts, strict=True)))
    x, weight = node.inputs
    with b.at(node.origin):
        return b(node.op, x, _times(b, weight, node.op.output_axis(weight.type), scale))


def _times(b: Builder, weight: Value, axis: int, scale: Value) -> Value:
    """Return a weight times `scale` along an axis, of which each number is for size / len(scale) neighbours."""
    shape, count = weight.shape, scale.type.size
    if count == 1:
        return b(ops.Mul(), weight, scale)
    if count == shape[axis]:
        return b(ops.Mul(), weight, b.reshape(scale, tuple(count if i == axis else 1 for i in range(len(shape)))))
    split = b.reshape(weight, (prod(shape[:axis]), count, prod(shape[axis:]) // count))
    return b.reshape(b(ops.Mul(), split, b.reshape(scale, (1, count, 1))), shape)


def _channels(b: Builder, vector: Value, start: int, size: int, stride: int = 1) -> Value:
    """Return some of a number for each channel."""
    whole = vector.type.size == 1 or (size, stride) == (vector.type.size, 1)
    return vector if whole else b(ops.Slice((start,), (size,), (stride,)), vector)


def _fold_before(graph: Graph) -> Graph:
    """Chains that nothing but products reads."""
    chains = Chains(graph)
    after: dict[Value, tuple[Value, Affine]] = {}  # a value that only products read: what it is a scale and shift of

    def fold(b: Rewriter, node: Node) -> Value | None:
        steps = chains.ending_at(node.outputs[0]) if node.outputs else []
        if steps and _all_readers_take(chains, steps):
            after[node.outputs[0]] = b.current(steps[0].x), chains.compose(b, steps)
        elif node.inputs and node.inputs[0] in after:
            x, affine = after[node.inputs[0]]
            if not isinstance(node.op, ops.Slice):
                return _with_input_folded(b, node, x, affine)
            channels = (node.op.begin[-1], node.op.size[-1], node.op.strides[-1] if node.op.strides else 1)
            cut = (None if v is None else _channels(b, v, *channels) for v in (affine.scale, affine.shift))
            after[node.outputs[0]] = b(node.op, x), Affine(*cut)
        return None

    return rewrite(graph, fold)


def _all_readers_take(chains: Chains, steps: Sequence[AffineStep]) -> bool:
    """Return whether the chain disappears into what reads it, at less work than it takes."""
    scale, shift = any(s.scales for s in steps), any(s.shifts for s in steps)
    before = chains.made_by.get(steps[0].x)
    if chains.shift_is_trained(steps) or (shift and chains.scale_is_trained(steps)):
        return False
    if not scale and before is not None and isinstance(before.op, ops.Layer):
        return False  # it is the bias of a kernel already
    value = steps[-1].node.output
    products = _products_reading(chains, value)
    if not products:
        return False
    weights = [n.inputs[1] for n in products]
    trained = sum(w.type.size for w in weights if w in chains.trained)
    return trained <= value.type.size and all(
        _weight_takes_scale(chains, n, chains.scale_is_trained(steps), value.type.size)
        and (not shift or (w not in chains.trained and _takes_shift(n)))
        for n, w in zip(products, weights, strict=True)
    )


def _products_reading(chains: Chains, value: Value) -> list[Node]:
    """Return the products that read a value, whole or in parts (groups, channel-sparse layers).

    None if others do too.
    """
    found: list[Node] = []
    readers = chains.readers.get(value, [])
    for node in readers:
        if isinstance(node.op, ops.Slice):
            products = _products_reading(chains, node.output)
        else:
            by_rows = isinstance(node.op, ops.MatMul) and node.op.adj_x
            reads_channels = isinstance(node.op, ops.Layer) and node.inputs[0] is value and not by_rows
            products = [node] if reads_channels else []
        if not products:
            return []
        found += products
    return found if chains.uses[value] == len(readers) else []


def _takes_shift(node: Node) -> bool:
    """Return whether all output positions see the same of a shift of the input: no zeros around it."""
    match node.op:
        case ops.MatMul():
            return len(node.inputs[1].shape) == 2
        case ops.Conv2D() | ops.DepthwiseConv2D():
            return all(p <= 0 for axis in node.op.padding for p in axis)
    return False


def _with_input_folded(b: Builder, node: Node, x: Value, affine: Affine) -> Value:
    """Return the product of x * scale + shift, from x."""
    weight = node.inputs[1]
    scaled = weight if affine.scale is None else _times(b, weight, node.op.channel_axis(weight.type), affine.scale)
    y = b(node.op, x, scaled)
    return y if affine.shift is None else b(ops.Add(), y, _of_shift(b, node.op, affine.shift, weight, x.shape[-1]))


def _of_shift(b: Builder, op: Op, shift: Value, weight: Value, channels: int) -> Value:
    """Return what the product makes of the shift alone: one number for each output channel."""
    if not isinstance(op, Windowed):
        return b(op, b(ops.Mul(), shift, np.ones((1, channels))), weight)
    span = ((k - 1) * d + 1 for k, d in zip(weight.shape[1:3], op.dilation, strict=True))
    window = b(ops.Mul(), shift, np.ones((1, *span, channels)))
    return b(replace(op, padding=NO_PADDING), window, weight)
