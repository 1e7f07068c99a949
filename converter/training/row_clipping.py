"""Per-row gradient clipping: the gradient of each row over all trained tensors is scaled down to a norm, then averaged.

That is the gradient of DP-SGD (Abadi et al., arXiv 1607.00133) before its noise. No row's gradient is made: of a dense
layer its norm is |x| |dy| (Goodfellow, arXiv 1510.01799), of one that acts on many places |X^T dY|, which is the root
of the sum of (X X^T) (dY dY^T) (Li et al., arXiv 2110.05679), and of a convolution so for each position of its filter.
Rows do not influence each other, so each row's part of a gradient is that of its part of dY. Of a single row the
gradient itself is there, of whatever layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from converter.ir import Builder, Graph, Node, Value, dependents, ops
from converter.ir.extent import Extent
from converter.passes.autodiff import differentiate
from converter.program.manifest import MASK
from converter.support.errors import UsageError
from converter.training.by_row import by_row, rows_axis

#: In place of the squared norm of a row that has no gradient.
_LEAST = 1e-30
#: Movements of a weight that keep its numbers, and with them the norm.
_MOVED = (ops.Reshape, ops.Transpose)


@dataclass(frozen=True)
class RowClipping:
    """What is done to the gradients of rows.

    Attributes:
        norm: the largest L2 norm of a row's gradient of the loss, over all trained tensors.
        mean: whether the loss is divided by the sum of the rows' weights.
    """

    norm: float
    mean: bool = True


@dataclass(frozen=True)
class _Use:
    """Where a trained tensor meets the rows.

    Attributes:
        parameter: the tensor.
        moves: what is done to it before, the first one first.
        node: the op that takes it.
        place: among the op's operands.
        factor: what the moves multiply it by.
    """

    parameter: Value
    moves: tuple[Node, ...]
    node: Node
    place: int
    factor: float


def check_rows_alone(with_loss: Graph) -> None:
    """Raise UsageError where a row's part of the loss depends on the other rows, by the places that count in all."""
    masked = [name.removeprefix(MASK) for name in with_loss.outputs if name.startswith(MASK)]
    if masked:
        raise UsageError(
            f"row_clipping: the loss of {', '.join(masked)} is a mean over the places that count in all rows together, "
            "so no row has a gradient of its own: take a loss without a mask, or micro_batch, with which the mean of "
            "each row is taken",
            page="gradients",
        )


def clipped_gradients(
    forward: Graph,
    loss: Value,
    weights: Mapping[Value, str],
    clipping: RowClipping,
    scale: float | Value,
    extents: Mapping[Value, Extent],
) -> tuple[Graph, dict[Value, Value]]:
    """Forward and backward pass with `scale` times the mean of the rows' clipped gradients.

    Args:
        forward: with the input `weight` [rows]; rows do not influence each other.
        loss: a sum over rows, each by its weight, or their mean.
        weights: the trained tensors and their names.
        clipping: how.
        scale: as of `differentiate`.
        extents: as of `differentiate`.

    Returns:
        As `differentiate`.

    Raises:
        UsageError: the norm of a tensor's gradient by row is not known in closed form; names it.
    """
    weight = next(value for value in forward.inputs if value.name == "weight")
    if weight.shape[0] == 1:
        backward, gradients = differentiate(forward, loss, weights, scale, extents)
        b = Builder(backward)
        squares = [b.reshape(_square(b, one), (1,)) for one in gradients.values()]
        factor = _factor(b, squares, weight, clipping, scale)
        return b.graph, {value: b(ops.Mul(), one, _shaped(b, factor, one)) for value, one in gradients.items()}
    uses = [_use(forward, value, name) for value, name in weights.items()]
    axes = {use.node.output: _axis(forward, use, weights[use.parameter], weight.shape[0]) for use in uses}
    backward, cotangents = differentiate(forward, loss, list(axes), scale, extents)
    uses = [use for use in uses if use.node.output in cotangents]
    b, squares = Builder(backward), []
    for use in uses:
        with b.at(use.node.origin.in_phase("backward")):
            dy, name = cotangents[use.node.output], weights[use.parameter]
            square = _squares(b, forward, use, dy, axes[use.node.output], weight.shape[0], name)
            squares.append(square if use.factor == 1 else b(ops.Mul(), square, use.factor**2))
    factor = _factor(b, squares, weight, clipping, scale)
    gradients = {}
    for use in uses:
        with b.at(use.node.origin.in_phase("backward")):
            dy = cotangents[use.node.output]
            part = b(ops.Mul(), dy, _along(b, factor, dy, axes[use.node.output]))
            gradients[use.parameter] = _through(b, use, part)
    return b.graph, gradients


def _factor(b: Builder, squares: list[Value], weight: Value, clipping: RowClipping, scale: float | Value) -> Value:
    """Return what each row's cotangents are multiplied by, [rows]."""
    most = b(ops.Mul(), weight, clipping.norm)
    if clipping.mean:
        most = b(ops.Div(), most, b(ops.Sum((0,)), weight))
    if isinstance(scale, Value) or scale != 1:
        most = b(ops.Mul(), most, scale)
    total = b(ops.Maximum(), reduce(lambda one, other: b(ops.Add(), one, other), squares), _LEAST)
    return b(ops.Minimum(), b(ops.Div(), most, b(ops.Sqrt(), total)), 1.0)


def _use(graph: Graph, parameter: Value, name: str) -> _Use:
    """Return where a trained tensor is used. Raises UsageError where that is not once, or not as it is."""
    value, factor = parameter, 1.0
    moves: list[Node] = []
    while True:
        users = [node for node in graph.nodes if value in node.inputs]
        if len(users) != 1 or list(users[0].inputs).count(value) != 1:
            raise _unknown(name, f"it is used {len(users)} times")
        (node,) = users
        constant = _factor_of(graph, node, value)
        if not isinstance(node.op, _MOVED) and constant is None:
            return _Use(parameter, tuple(moves), node, list(node.inputs).index(value), factor)
        factor *= 1.0 if constant is None else constant
        moves.append(node)
        value = node.output


def _factor_of(graph: Graph, node: Node, value: Value) -> float | None:
    """Return the number that a value is multiplied by, where the node does that."""
    if not isinstance(node.op, ops.Mul) or node.output.shape != value.shape:
        return None
    other = next(one for one in node.inputs if one is not value)
    number = graph.constants.get(other)
    return float(number.reshape(())) if number is not None and number.size == 1 else None


def _axis(graph: Graph, use: _Use, name: str, rows: int) -> int:
    """Return the axis of an op's result along which the rows lie."""
    y = use.node.output
    is_of_rows = len(y.shape) > 1 and y in dependents(graph, graph.inputs)
    found = rows_axis(graph, y, len(y.shape) - 1, rows) if is_of_rows else None
    if found is None:
        raise _unknown(name, f"of the result of {use.node.op.name} it cannot be told which row a number belongs to")
    return found


def _squares(b: Builder, graph: Graph, use: _Use, dy: Value, axis: int, rows: int, name: str) -> Value:
    """Return the squared norm of each row's gradient by what an op takes, [rows]."""
    op, last = use.node.op, len(dy.shape) - 1
    others = [value for place, value in enumerate(use.node.inputs) if place != use.place]
    if isinstance(op, ops.Add | ops.Sub):
        return _of_elements(b, dy, use, axis, rows, name)
    if isinstance(op, ops.Mul):
        return _of_elements(b, b(ops.Mul(), dy, others[0]), use, axis, rows, name)
    dense = isinstance(op, ops.MatMul) and not op.adj_x and len(use.node.inputs[1].shape) == 2
    if use.place != 1 or not (dense or isinstance(op, ops.Conv2D)):
        raise _unknown(name, f"it is a weight of {op.name}")
    dys = by_row(b, dy, axis, last, rows)
    found = [_of_places(b, x, dys) for x in _factors(b, graph, use, rows, name)]
    return reduce(lambda one, other: b(ops.Add(), one, other), found)


def _factors(b: Builder, graph: Graph, use: _Use, rows: int, name: str) -> Iterator[Value]:
    """Yield what the weight's parts are multiplied with, each as [rows, places, inputs]."""
    x, w = use.node.inputs
    op = use.node.op
    if not isinstance(op, ops.Conv2D):
        axis = rows_axis(graph, x, len(x.shape) - 1, rows)
        if axis is None:
            raise _unknown(name, "of what it is multiplied with it cannot be told which row a number belongs to")
        yield by_row(b, x, axis, len(x.shape) - 1, rows)
        return
    if min(side for pair in op.padding for side in pair) < 0:
        raise _unknown(name, "its convolution leaves out a part of the picture")
    padded = b(ops.Pad(((0, 0), *op.padding, (0, 0))), x) if any(map(any, op.padding)) else x
    size = use.node.output.shape[1:3]
    for row in range(w.shape[1]):
        for column in range(w.shape[2]):
            begin = (0, row * op.dilation[0], column * op.dilation[1], 0)
            cut = ops.Slice(begin, (x.shape[0], *size, x.shape[3]), (1, *op.strides, 1))
            yield by_row(b, b(cut, padded), 0, 3, rows)


def _of_places(b: Builder, x: Value, dy: Value) -> Value:
    """Return |X^T dY|^2 of each row: of x [rows, places, inputs] and dy [rows, places, outputs]."""
    _, places, inputs = x.shape
    if places == 1:
        return b(ops.Mul(), _row_squares(b, x), _row_squares(b, dy))
    if places * places > inputs * dy.shape[2]:
        return _row_squares(b, b(ops.MatMul(adj_x=True), x, dy))
    across = b(ops.Mul(), b(ops.MatMul(adj_y=True), x, x), b(ops.MatMul(adj_y=True), dy, dy))
    return b(ops.Sum((1, 2)), across)


def _of_elements(b: Builder, products: Value, use: _Use, axis: int, rows: int, name: str) -> Value:
    """Return the squared norm of each row's gradient by what is broadcast against the rows."""
    y, taken = products.shape, use.node.inputs[use.place].shape
    shape = (1,) * (len(y) - len(taken)) + tuple(taken)
    if len(shape) != len(y) or shape[axis] != 1:
        raise _unknown(name, f"it has numbers for each row of {use.node.op.name}")
    places = y[axis] // rows
    parted = b.reshape(products, (*y[:axis], rows, places, *y[axis + 1 :]))
    kept = [k + (k > axis) for k in range(len(y)) if k != axis and shape[k] != 1]
    summed = tuple(k for k in range(len(y) + 1) if k != axis and k not in kept)
    return _row_squares(b, b(ops.Sum(summed, keepdims=True), parted), axis)


def _row_squares(b: Builder, value: Value, axis: int = 0) -> Value:
    """Return the sum of squares of each row, [rows]."""
    others = tuple(k for k in range(len(value.shape)) if k != axis)
    return b(ops.Sum(others), b(ops.Mul(), value, value))


def _square(b: Builder, value: Value) -> Value:
    return b(ops.Sum(tuple(range(len(value.shape)))), b(ops.Mul(), value, value))


def _along(b: Builder, factor: Value, dy: Value, axis: int) -> Value:
    """Return a number of each row, [rows], so that it multiplies what is of that row along an axis."""
    rows, places = factor.shape[0], dy.shape[axis] // factor.shape[0]
    if places > 1:
        factor = b.broadcast_to(b.reshape(factor, (rows, 1)), (rows, places))
    return b.reshape(factor, (1,) * axis + (rows * places,) + (1,) * (len(dy.shape) - axis - 1))


def _shaped(b: Builder, factor: Value, like: Value) -> Value:
    """Return a number [1] so that it multiplies a value."""
    return b.reshape(factor, (1,) * len(like.shape))


def _through(b: Builder, use: _Use, dy: Value) -> Value:
    """Return the gradient of a tensor from the cotangent of the op that takes it."""
    node, place = use.node, use.place
    made = _cotangent(b, node, place, dy)
    for move in reversed(use.moves):
        place = next(k for k, one in enumerate(move.inputs) if one not in b.graph.constants)
        made = _cotangent(b, move, place, made)
    return made


def _cotangent(b: Builder, node: Node, place: int, dy: Value) -> Value:
    thunk = node.op.vjp(b, *node.inputs, y=node.output, dy=dy)[place]
    assert thunk is not None, node.op
    return thunk()


def _unknown(name: str, why: str) -> UsageError:
    return UsageError(
        f"row_clipping: the norm of each row's gradient of {name} is not known in closed form: {why}. Give "
        "micro_batch=1, where each row's own gradient is made and clipped, or leave it frozen",
        page="gradients",
    )
