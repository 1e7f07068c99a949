"""Layout rules of operators: the same operator on operands and a result that lie otherwise."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from converter.ir import Builder, Node, Shape, Value, ops
from converter.passes.layout.axes import Along, Order
from converter.passes.layout.memory import Memory, keeps_rows, natural

#: Emits what makes the result, as it is stored, of the operands as they are stored.
Emit = Callable[..., Value]


@dataclass(frozen=True)
class Moved:
    """A node whose operands and result lie otherwise.

    Attributes:
        operands: how each operand lies.
        shapes: in which shape it is taken.
        result: how the result lies.
        shape: its shape.
        emit: what makes it.
        changes: whether anything lies otherwise than before.
    """

    operands: tuple[Memory, ...]
    shapes: tuple[Shape, ...]
    result: Memory
    shape: Shape
    emit: Emit
    changes: bool


@dataclass(frozen=True)
class Known:
    """What is known of the layout of a node.

    Attributes:
        place: which operand it is of; None of the result.
        memory: how that lies.
        like: the shape in which it is stored beside; () for unknown.
    """

    place: int | None
    memory: Memory
    like: Shape = ()


@dataclass(frozen=True)
class Bounds:
    """What a layout has to keep.

    Attributes:
        fed: what depends on the inputs of the graph; all else is of weights.
        rows: of the batch. Where they lie one after the other, they stay so: what follows cuts batches in parts.
        matrices: whether weights keep the order of what is summed over, as the model has it.
    """

    fed: Container[Value]
    rows: int = 1
    matrices: bool = False


def moved(node: Node, known: Known, bounds: Bounds) -> Moved | None:
    """Return the node where one of its operands, or its result, lies in this way.

    None where its operator works in one layout only, as convolutions do, or in none that this one goes with.

    Args:
        node: any.
        known: what lies how.
        bounds: what it has to keep.
    """
    if len(node.outputs) != 1 or not all(value.type.size for value in (*node.inputs, node.output)):
        return None
    rule = next((rule for kinds, rule in _RULES if isinstance(node.op, kinds)), None)
    if rule is None and not _is_elementwise(node):
        return None
    made = _elementwise(node, known, bounds.fed) if rule is None else rule(node, known)
    if made is None:
        return None
    laid = list(zip((*node.inputs, node.output), (*made.operands, made.result), strict=True))
    if not all(keeps_rows(memory, bounds.rows) for value, memory in laid if value in bounds.fed):
        return None
    if bounds.matrices and isinstance(node.op, ops.MatMul):
        still = [memory == natural(value.type.size) for value, memory in laid if value not in bounds.fed]
        return made if all(still) else None
    return made


def moves(node: Node) -> bool:
    """Return whether the node's operator works in other layouts at all."""
    return _is_elementwise(node) or any(isinstance(node.op, kinds) for kinds, _ in _RULES)


def _is_elementwise(node: Node) -> bool:
    return node.op.elementwise or isinstance(node.op, _AT_THEIR_PLACE)


@dataclass(frozen=True)
class _Places:
    """How all axes lie: those of the operands and of the result by their own numbers."""

    operands: tuple[Order, ...]
    result: Order

    def emits(self, node: Node, shapes: Sequence[Shape], emit: Emit, stored: Sequence[Shape] = ()) -> Moved:
        """Return the node; its operands are of these shapes, and are taken as they lie, or in the shapes `stored`."""
        memories = tuple(order.memory(shape) for order, shape in zip(self.operands, shapes, strict=True))
        taken = tuple(stored) or tuple(order.stored for order in self.operands)
        pairs = [*zip(self.operands, shapes, strict=True), (self.result, node.output.shape)]
        changes = any(order.changes(shape) for order, shape in pairs)
        return Moved(memories, taken, self.result.memory(node.output.shape), self.result.stored, emit, changes)


def _placed(along: Along, shapes: Sequence[Shape], result: Shape, known: Known) -> _Places | None:
    place = known.place
    numbers, shape = (along.result, result) if place is None else (along.operands[place], shapes[place])
    order = Order.of(shape, known.memory, known.like)
    around = None if order is None else along.around(numbers, order)
    if around is None:
        return None
    operands = (along.part(around, numbers, s) for numbers, s in zip(along.operands, shapes, strict=True))
    return _Places(tuple(operands), along.part(around, along.result, result))


def _shapes(node: Node) -> list[Shape]:
    return [value.shape for value in node.inputs]


def _elementwise(node: Node, known: Known, fed: Container[Value]) -> Moved | None:
    """Place all operands along the axes of the result; what is repeated has size 1 there."""
    shape, rank = node.output.shape, len(node.output.shape)
    if known.like == (node.output.type.size,) and node.output not in fed:
        return _of_vectors(node)
    shapes = [(1,) * (rank - len(s)) + s for s in _shapes(node)]
    numbers = tuple(range(rank))
    along = Along((numbers,) * len(shapes), numbers, dict(enumerate(shape)))
    places = _placed(along, shapes, shape, known)
    if places is None:
        return None
    op = node.op
    if isinstance(op, ops.BroadcastTo):
        op = replace(op, shape=places.result.stored)
    elif isinstance(op, ops.Dropout):
        op = replace(op, shared=tuple(i for axis in op.shared for i in places.result.where(axis % rank)))
    elif isinstance(op, ops.Activity) and places.result.axes[:1] != [0]:
        return None  # it is of the rows of the first axis
    taken = [order.stored for order in places.operands]
    if node.output in fed:
        taken = [s if value in fed else _without_leading_ones(s) for value, s in zip(node.inputs, taken, strict=True)]
    return places.emits(node, shapes, _same(op), taken)


def _of_vectors(node: Node) -> Moved | None:
    """Return a node whose numbers, one for each channel, have one axis, as weights that are read as they are."""
    size = node.output.type.size
    if not node.op.elementwise or any(value.type.size not in (1, size) for value in node.inputs):
        return None
    memories = tuple(natural(value.type.size) for value in node.inputs)
    shapes = tuple((size,) if value.type.size == size else () for value in node.inputs)
    changes = node.output.shape != (size,)
    return Moved(memories, shapes, natural(size), (size,), _same(node.op), changes)


def _without_leading_ones(shape: Shape) -> Shape:
    """Return a shape without its leading ones: a number for each channel has one axis, wherever that was."""
    ones = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    return shape[ones:]


def _same(op: Any) -> Emit:
    return lambda b, *values: b(op, *values)


def _one_axis(node: Node, known: Known, whole: Sequence[int]) -> _Places | None:
    """Place a node: the axes of its operands and its result are the same, and along `whole` the order counts."""
    numbers, shape = tuple(range(len(node.output.shape))), node.output.shape
    sizes = {i: max(value.shape[i] for value in (*node.inputs, node.output)) for i in numbers}
    along = Along((numbers,) * len(node.inputs), numbers, sizes, frozenset(whole))
    return _placed(along, _shapes(node), shape, known)


def _concat(node: Node, known: Known) -> Moved | None:
    places = _one_axis(node, known, [node.op.axis])
    if places is None:
        return None
    (axis,) = places.result.where(node.op.axis)
    return places.emits(node, _shapes(node), _same(ops.Concat(axis)))


def _move_by_axis(node: Node, known: Known) -> Moved | None:
    """Move Slice, Pad, Dilate and Reverse: each axis by itself, and most of them as they are."""
    op, (x,) = node.op, node.inputs
    rank = len(x.shape)
    match op:
        case ops.Slice(begin=begin, size=size):
            own: Any = list(zip(begin, size, op.step(rank), strict=True))
            whole = [i for i in range(rank) if own[i] != (0, x.shape[i], 1)]
        case ops.Pad(paddings=paddings):
            own, whole = paddings, [i for i in range(rank) if any(paddings[i])]
        case ops.Dilate(strides=strides):
            own, whole = strides, [i for i in range(rank) if strides[i] != 1]
        case _:
            whole = sorted(axis % rank for axis in op.axes)
    places = _one_axis(node, known, whole)
    if places is None:
        return None
    order = places.operands[0]
    on = list(zip(order.axes, order.stored, strict=True))
    match op:
        case ops.Slice():
            cuts = [own[axis] if axis in whole else (0, size, 1) for axis, size in on]
            begins, sizes, steps = zip(*cuts, strict=True)
            op = ops.Slice(begins, sizes, steps if op.strides else ())
        case ops.Pad():
            op = replace(op, paddings=tuple(own[axis] if axis in whole else (0, 0) for axis, _ in on))
        case ops.Dilate():
            op = ops.Dilate(tuple(own[axis] if axis in whole else 1 for axis, _ in on))
        case _:
            op = replace(op, axes=tuple(i for i, (axis, _) in enumerate(on) if axis in whole))
    return places.emits(node, _shapes(node), _same(op))


def _running(node: Node, known: Known) -> Moved | None:
    axis = node.op.axis % len(node.output.shape)
    places = _one_axis(node, known, [axis])
    if places is None:
        return None
    return places.emits(node, _shapes(node), _same(replace(node.op, axis=places.result.where(axis)[0])))


def _reduction(node: Node, known: Known) -> Moved | None:
    (x,) = node.inputs
    numbers = tuple(range(len(x.shape)))
    axes = {axis % len(numbers) for axis in node.op.axes}
    kept = numbers if node.op.keepdims else tuple(i for i in numbers if i not in axes)
    along = Along((numbers,), kept, dict(enumerate(x.shape)))
    places = _placed(along, [x.shape], node.output.shape, known)
    if places is None:
        return None
    over = tuple(i for i, axis in enumerate(places.operands[0].axes) if axis in axes)
    return places.emits(node, [x.shape], _same(replace(node.op, axes=over)))


def _largest_place(node: Node, known: Known) -> Moved | None:
    (x,) = node.inputs
    numbers = tuple(range(len(x.shape)))
    axis = node.op.axis % len(numbers)
    rest = tuple(i for i in numbers if i != axis)
    along = Along((numbers,), rest, dict(enumerate(x.shape)), frozenset([axis]))
    places = _placed(along, [x.shape], node.output.shape, known)
    if places is None:
        return None
    return places.emits(node, [x.shape], _same(replace(node.op, axis=places.operands[0].where(axis)[0])))


def _gather(node: Node, known: Known) -> Moved | None:
    """Move a look-up of a list of indices: as a slice."""
    table, indices = node.inputs
    if len(indices.shape) != 1 or known.place == 1:
        return None
    axis, numbers = node.op.axis % len(table.shape), tuple(range(len(table.shape)))
    sizes = {**dict(enumerate(table.shape)), axis: max(table.shape[axis], node.output.shape[axis])}
    along = Along((numbers, (axis,)), numbers, sizes, frozenset([axis]))
    places = _placed(along, _shapes(node), node.output.shape, known)
    if places is None:
        return None
    return places.emits(node, _shapes(node), _same(replace(node.op, axis=places.result.where(axis)[0])))


def _over_last_axis(node: Node, known: Known) -> Moved | None:
    """Move what works on the last axis: in any order, if it stays last; else a normalization is written out."""
    (x,) = node.inputs
    numbers, last = tuple(range(len(x.shape))), len(x.shape) - 1
    along = Along((numbers,), numbers, dict(enumerate(x.shape)))
    places = _placed(along, [x.shape], node.output.shape, known)
    if places is None:
        return None
    axes = places.operands[0].where(last)
    if axes == (len(places.operands[0].axes) - 1,):
        return places.emits(node, [x.shape], _same(node.op))
    if isinstance(node.op, ops.LayerNorm | ops.RMSNorm):
        return places.emits(node, [x.shape], _normalized(node.op, axes))
    return None


def _normalized(op: ops.LayerNorm | ops.RMSNorm, axes: tuple[int, ...]) -> Emit:
    """Return a normalization over any axes."""

    def emit(b: Builder, x: Value) -> Value:
        mean = ops.Mean(axes, keepdims=True)
        centered = x if isinstance(op, ops.RMSNorm) else b(ops.Sub(), x, b(mean, x))
        variance = b(mean, b(ops.Mul(), centered, centered))
        return b(ops.Mul(), centered, b(ops.Rsqrt(), b(ops.Add(), variance, op.epsilon)))

    return emit


def _product(node: Node, known: Known) -> Moved | None:
    """Move a product: rows in any order against a matrix; of stacks the axes in front, and either of a pair first."""
    x, w = _shapes(node)
    rank, op = len(node.output.shape), node.op
    shared = len(w) == 2 and not op.adj_x
    if len(x) != rank or (len(w) != rank and not shared):
        return None
    front, row, inner, column = tuple(range(rank - 2)), rank - 2, rank - 1, rank
    left = (*front, inner, row) if op.adj_x else (*front, row, inner)
    right = (column, inner) if op.adj_y else (inner, column)
    sizes = {**dict(enumerate(node.output.shape[:-1])), inner: x[left.index(inner)], column: node.output.shape[-1]}
    along = Along((left, right if shared else (*front, *right)), (*front, row, column), sizes)
    places = _placed(along, [x, w], node.output.shape, known)
    if places is None:
        return None
    if shared:  # the matrix keeps its two axes where they are
        of_w = sorted(places.operands[1].loops, key=lambda loop: loop[0])
        places = _Places((places.operands[0], Order(tuple(of_w))), places.result)
    made = [_named(order, numbers) for order, numbers in zip(places.operands, along.operands, strict=True)]
    result = _named(places.result, along.result)
    if shared:
        rows = [one for one in made[0] if one != inner]
        fits = made[0] == [*rows, inner] and result == [*rows, column]
        return places.emits(node, [x, w], _same(op)) if fits else None
    ahead = result[:-2]
    pairs = [one[-2:] for one in (*made, result)]
    if any(one[:-2] != ahead for one in made) or any(
        set(pair) != wanted for pair, wanted in zip(pairs, ({row, inner}, {inner, column}, {row, column}), strict=True)
    ):
        return None
    adj_x, adj_y = pairs[0] == [inner, row], pairs[1] == [column, inner]
    if pairs[2] == [row, column]:
        return places.emits(node, [x, w], _same(replace(op, adj_x=adj_x, adj_y=adj_y)))
    transposed = replace(op, adj_x=not adj_y, adj_y=not adj_x)
    return places.emits(node, [x, w], lambda b, x, w: b(transposed, w, x))


def _named(order: Order, numbers: Sequence[int]) -> list[int]:
    """Return the numbers of the stored axes; one that is in parts stands there several times."""
    return [numbers[axis] for axis in order.axes]


#: Beside the elementwise ops what treats each element at its place.
_AT_THEIR_PLACE = (ops.BroadcastTo, ops.Dropout, ops.InTraining, ops.DerivedWhere, ops.Activity)
#: Elementwise ops are known by their trait; of all others that are not here the layout stays.
_RULES: tuple[tuple[Any, Callable[[Node, Known], Moved | None]], ...] = (
    (ops.Concat, _concat),
    (ops.Slice | ops.Pad | ops.Dilate | ops.Reverse, _move_by_axis),
    (ops.CumSum, _running),
    (ops.Reduction, _reduction),
    (ops.ArgMax, _largest_place),
    (ops.Gather, _gather),
    (ops.Softmax | ops.LogSoftmax | ops.LogSumExp | ops.LayerNorm | ops.RMSNorm, _over_last_axis),
    (ops.MatMul, _product),
)
