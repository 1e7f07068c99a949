"""Rank reduction: neighbouring axes become one around each operator of more axes than an engine takes.

What then stands between two operators is a RESHAPE of a RESHAPE, which is one, so no such tensor is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TypeVar

from converter.backend import builtins as tfl
from converter.backend.legalize.pattern import Replacement, avoids, flat, is_elementwise, repeated, reshaped
from converter.ir import Graph, Node, Shape, Value
from converter.ir.rewrite import Rewriter

Mark = TypeVar("Mark")
#: Axes of a tensor that all engines take; that TensorFlow Lite's RESHAPE does; and XNNPACK in a variable.
MOST, MOST_HERE, MOST_OF_VARIABLES = 4, 8, 6


def _has_many_axes(b: Rewriter, node: Node) -> bool:
    return any(v.type.rank > MOST for v in (*node.inputs, *node.outputs))


NAME = "rank-above-4"


@avoids(
    NAME,
    "GPU: RESHAPE to [2,16,2,2,8] is refused (Tensor dimensions must be less than 5), SUM of it too (Unknown layout). "
    "Hexagon: BROADCAST_TO [2,16,2,1,8] -> [2,16,2,2,8] is wrong, 2.5e4 times the largest number",
    _has_many_axes,
)
def of_fewer_axes(b: Rewriter, node: Node) -> Value | tuple[Value, ...] | None:
    """The same on tensors of four axes or less, with a RESHAPE before and after."""
    if isinstance(node.op, tfl.Reshape):
        before = b.producer(node.inputs[0], tfl.Reshape)
        return None if before is None else reshaped(b, before.inputs[0], node.op.shape)
    rules = (rule for kinds, rule in _RULES.items() if isinstance(node.op, kinds))
    rule = _elementwise if is_elementwise(node) else next(rules, None)
    made = None if rule is None else rule(b, node)
    return reshaped(b, made, node.output.shape) if isinstance(made, Value) else made


def with_flat_state(lowered: Graph, most: int = MOST) -> Graph:
    """Parameters of more axes stored with at most so many; parts of a tensor stay, as their view must end so."""
    after = lowered.copy()
    after.parameters, stored, begin = {}, dict[Value, Value](), list[Node]()
    for value, parameter in lowered.parameters.items():
        shapes = fewer([value.shape], most)
        if (
            value.type.rank <= most
            or shapes is None
            or (parameter.view.steps[-1:] and parameter.view.steps[-1][0] == "slice")
        ):
            after.parameters[value] = parameter
            continue
        flat_value = Value(value.type.with_shape(shapes[0]), value.name)
        after.parameters[flat_value] = parameter.viewed(("reshape", shapes[0]))
        stored[value] = flat_value
        begin.append(Node(tfl.Reshape(value.shape), (flat_value,), (value,)))
    after.nodes = [*begin, *lowered.nodes]
    after.updates = {}
    for value, new in lowered.updates.items():
        if value in stored:
            made = Value(stored[value].type, new.name)
            after.nodes.append(Node(tfl.Reshape(made.shape), (new,), (made,)))
            after.updates[stored[value]] = made
        else:
            after.updates[value] = new
    return after if stored else lowered


def fewer(shapes: Sequence[Shape], most: int = MOST) -> list[Shape] | None:
    """Shapes that broadcast together with at most so many axes, the first ones merged; None where that fails.

    The last ones stay what they are as far as they can: engines lay tensors out by channels.
    """
    rank = max(map(len, shapes))
    axes = zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    left = [sizes for sizes in axes if max(sizes) > 1] or [(1,) * len(shapes)]
    made = _merged(left, [tuple(size == 1 for size in sizes) for sizes in left], most)
    return None if made is None else [tuple(sizes) for sizes in zip(*(sizes for sizes, _ in made), strict=True)]


def _merged(
    axes: Sequence[tuple[int, ...]], marks: Sequence[Mark], most: int
) -> list[tuple[tuple[int, ...], Mark]] | None:
    """Sizes along each axis, neighbours of one mark merged until there are at most so many."""
    pairs, k = list(zip(axes, marks, strict=True)), 0
    while len(pairs) > most and k + 1 < len(pairs):
        (sizes, mark), (others, other) = pairs[k], pairs[k + 1]
        if mark == other:
            pairs[k : k + 2] = [(tuple(map(prod, zip(sizes, others, strict=True))), mark)]
        else:
            k += 1
    return None if len(pairs) > most else pairs


def _elementwise(b: Rewriter, node: Node) -> Value:
    """With operands that are repeated along too many axes made as large as the result before."""
    shapes, operands = fewer([v.shape for v in node.inputs]), list(node.inputs)
    if shapes is None:
        operands = [repeated(b, v, node.output.shape) for v in operands]
        shapes = [flat(v.shape) for v in operands]
    return b(node.op, *(reshaped(b, v, shape) for v, shape in zip(operands, shapes, strict=True)))


def _broadcast(b: Rewriter, node: Node) -> Value:
    (x,), size = node.inputs, node.op.shape
    shapes = fewer([x.shape, size])
    if shapes is not None:
        return b(tfl.BroadcastTo(shapes[1]), reshaped(b, x, shapes[0]))
    x = reshaped(b, x, (1,) * (len(size) - x.type.rank) + x.shape)
    for axis, wanted in enumerate(size):
        if x.shape[axis] != wanted:
            x = _along(b, x, axis, partial(_repeating, wanted))
    return x


def _repeating(times: int, shape: Shape) -> tfl.Builtin:
    """The second of three axes repeated."""
    return tfl.BroadcastTo((shape[0], times, shape[2]))


def _reduction(b: Rewriter, node: Node) -> Value:
    """Over all axes at once, or where these are too many that do not lie side by side, one after the other."""
    x = node.inputs[0]
    reduced = {axis % x.type.rank for axis in node.op.axes}
    made = _merged([(n,) for n in x.shape], [axis in reduced for axis in range(x.type.rank)], MOST)
    if made is None:
        for axis in reduced:
            x = _along(b, x, axis, partial(_same, replace(node.op, axes=(1,), keepdims=True)))
        return x
    axes = tuple(axis for axis, (_, away) in enumerate(made) if away)
    return b(replace(node.op, axes=axes, keepdims=True), reshaped(b, x, tuple(n for (n,), _ in made)))


def _transpose(b: Rewriter, node: Node) -> Value:
    """Axis by axis: each is brought past those that stand before it; neighbours that stay so are one."""
    x = node.inputs[0]
    wanted: list[list[int]] = []  # blocks of axes that follow each other before and behind
    for axis in (axis for axis in node.op.perm if x.shape[axis] > 1):
        joins = wanted and all(x.shape[k] == 1 for k in range(wanted[-1][-1] + 1, axis)) and wanted[-1][-1] < axis
        wanted = [*wanted[:-1], [*wanted[-1], axis]] if joins else [*wanted, [axis]]
    present = sorted(wanted)
    sizes = [prod(x.shape[axis] for axis in block) for block in present]
    if len(present) <= MOST:
        perm = tuple(present.index(block) for block in wanted)
        return b(tfl.Transpose(perm), reshaped(b, x, tuple(sizes))) if len(perm) > 1 else x
    for place, block in enumerate(wanted):
        at = present.index(block)
        x = reshaped(b, x, (prod(sizes[:place]), prod(sizes[place:at]), sizes[at], prod(sizes[at + 1 :])))
        x = b(tfl.Transpose((0, 2, 1, 3)), x)
        present.insert(place, present.pop(at))
        sizes.insert(place, sizes.pop(at))
    return x


def _along(b: Rewriter, x: Value, axis: int, op: Callable[[Shape], tfl.Builtin]) -> Value:
    """An operator along one axis, as one on three: what lies before, the axis, what lies after."""
    before, rest = x.shape[:axis], x.shape[axis + 1 :]
    shape = (prod(before), x.shape[axis], prod(rest))
    made = b(op(shape), reshaped(b, x, shape))
    return reshaped(b, made, (*before, made.shape[1], *rest))


def _same(op: tfl.Builtin, shape: Shape) -> tfl.Builtin:
    """The operator for any shape."""
    return op


def _slice(b: Rewriter, node: Node) -> Value:
    (x,), op = node.inputs, node.op
    strides = getattr(op, "strides", (1,) * x.type.rank)
    for axis, size in enumerate(node.output.shape):
        if x.shape[axis] != size:
            x = _along(b, x, axis, _slice_of_axis(op.begin[axis], size, strides[axis]))
    return x


def _slice_of_axis(begin: int, size: int, stride: int) -> Callable[[Shape], tfl.Builtin]:
    """Every stride-th of the second of three axes."""
    if stride == 1:
        return lambda shape: tfl.Slice((0, begin, 0), (shape[0], size, shape[2]))
    end = begin + (size - 1) * stride + 1
    return lambda shape: tfl.StridedSlice((0, begin, 0), (shape[0], end, shape[2]), (1, stride, 1))


def _pad(b: Rewriter, node: Node) -> Value:
    x = node.inputs[0]
    for axis, amounts in enumerate(node.op.paddings):
        if any(amounts):
            padded = replace(node.op, paddings=((0, 0), amounts, (0, 0)))
            x = _along(b, x, axis, partial(_same, padded))
    return x


def _reverse(b: Rewriter, node: Node) -> Value:
    x = node.inputs[0]
    for axis in node.op.axes:
        x = _along(b, x, axis, partial(_same, tfl.ReverseV2((1,))))
    return x


def _tile(b: Rewriter, node: Node) -> Value:
    x = node.inputs[0]
    for axis, times in enumerate(node.op.multiples):
        if times > 1:
            before, rest = x.shape[:axis], x.shape[axis + 1 :]
            rows = b(tfl.Tile((1, times)), reshaped(b, x, (prod(before), prod(x.shape[axis:]))))
            x = reshaped(b, rows, (*before, times * x.shape[axis], *rest))
    return x


def _cumsum(b: Rewriter, node: Node) -> Value:
    x = node.inputs[0]
    return _along(b, x, node.op.axis % x.type.rank, partial(_same, replace(node.op, axis=1)))


def _argmax(b: Rewriter, node: Node) -> Value:
    x, axis = node.inputs[0], node.op.axis
    return b(tfl.ArgMax(1), reshaped(b, x, (prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]))))


def _softmax(b: Rewriter, node: Node) -> Value:
    return b(node.op, reshaped(b, node.inputs[0], flat(node.inputs[0].shape)))


def _concatenation(b: Rewriter, node: Node) -> Value:
    axis = node.op.axis % node.output.type.rank
    parts = [(prod(v.shape[:axis]), v.shape[axis], prod(v.shape[axis + 1 :])) for v in node.inputs]
    return b(tfl.Concatenation(1), *(reshaped(b, v, s) for v, s in zip(node.inputs, parts, strict=True)))


def _pack(b: Rewriter, node: Node) -> Value:
    axis, shape = node.op.axis, node.inputs[0].shape
    part = prod(shape[:axis]), 1, prod(shape[axis:])
    return b(tfl.Concatenation(1), *(reshaped(b, v, part) for v in node.inputs))


def _unpack(b: Rewriter, node: Node) -> tuple[Value, ...]:
    (x,), axis = node.inputs, node.op.axis
    rows = reshaped(b, x, (prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])))
    size = (rows.shape[0], 1, rows.shape[2])
    parts = [b(tfl.Slice((0, k, 0), size), rows) for k in range(x.shape[axis])]
    return tuple(reshaped(b, part, v.shape) for part, v in zip(parts, node.outputs, strict=True))


def _gather(b: Rewriter, node: Node) -> Value:
    table, indices = node.inputs
    axis = node.op.axis % table.type.rank
    table = reshaped(b, table, (prod(table.shape[:axis]), table.shape[axis], prod(table.shape[axis + 1 :])))
    indices = reshaped(b, indices, (indices.type.size,))
    if table.shape[0] == 1:
        return b(tfl.Gather(0), reshaped(b, table, table.shape[1:]), indices)
    return b(tfl.Gather(1), table, indices)


def _one_hot(b: Rewriter, node: Node) -> Value:
    return b(node.op, reshaped(b, node.inputs[0], (node.inputs[0].type.size,)))


def _scatter(b: Rewriter, node: Node) -> Value:
    indices, updates = node.inputs
    rows = reshaped(b, updates, (updates.shape[0], prod(updates.shape[1:])))
    return b(tfl.ScatterNd((node.op.shape[0], rows.shape[1])), indices, rows)


def _zeros(b: Rewriter, node: Node) -> Value:
    return b(tfl.Zeros(node.op.type.with_shape(flat(node.op.type.shape))))


def _fully_connected(b: Rewriter, node: Node) -> Value:
    x, *others = node.inputs
    return b(replace(node.op, keep_num_dims=False), reshaped(b, x, flat(x.shape)), *others)


def _batch_matmul(b: Rewriter, node: Node) -> Value:
    """Leading axes as one; an operand that is repeated along some of them is made as large first."""
    batch, operands = node.output.shape[:-2], []
    for v in node.inputs:
        leading = v.shape[:-2]
        if prod(leading) > 1 and prod(leading) < prod(batch):
            v = b(tfl.BroadcastTo((*batch, *v.shape[-2:])), v)
        operands.append(reshaped(b, v, (prod(v.shape[:-2]), *v.shape[-2:]) if prod(leading) > 1 else v.shape[-2:]))
    return b(node.op, *operands)


_RULES: dict[tuple[type, ...], Replacement] = {
    (tfl.BroadcastTo,): _broadcast,
    (tfl.Sum, tfl.Mean, tfl.ReduceMax, tfl.ReduceMin, tfl.ReduceProd): _reduction,
    (tfl.Transpose,): _transpose,
    (tfl.Slice, tfl.StridedSlice): _slice,
    (tfl.Pad,): _pad,
    (tfl.ReverseV2,): _reverse,
    (tfl.Tile,): _tile,
    (tfl.CumSum,): _cumsum,
    (tfl.ArgMax,): _argmax,
    (tfl.Softmax, tfl.LogSoftmax): _softmax,
    (tfl.Concatenation,): _concatenation,
    (tfl.Pack,): _pack,
    (tfl.Unpack,): _unpack,
    (tfl.Gather,): _gather,
    (tfl.OneHot,): _one_hot,
    (tfl.ScatterNd,): _scatter,
    (tfl.Zeros,): _zeros,
    (tfl.FullyConnected,): _fully_connected,
    (tfl.BatchMatmul,): _batch_matmul,
}
