"""Grouped queries: heads that share keys are an axis of their own, along which these are repeated.

`einsum("bqkgd,bskd->bkgqs", q, k)` is traced as one matrix product for each head of keys, whose rows are the queries of
all heads that share it, token by token. The scores, the largest tensor of an attention, are then moved, and in no
product are some tokens a range of an axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from converter.backend.targets import Target
from converter.ir import Graph, Node, Shape, Value, ops
from converter.ir.rewrite import Rewriter, rewrite
from converter.passes.layout.memory import Memory, compose, inverse, joined, natural, split, strides_of
from converter.passes.layout.views import Views, views_of

#: Axes that the kernel of a product takes.
_MOST_AXES = 5
#: How many times as much a product may cost, beside what it saves: blocks of queries are worth more.
_DEARER = 1.05

#: A part of an axis of a product: which axis, how many places, how far apart they are on it.
Part = tuple[int, int, int]
#: That of an axis of one place.
_ONE: Part = (-1, 1, 1)


def with_independent_groups(graph: Graph, target: Target) -> Graph:
    """Return the graph in which products of grouped queries repeat the keys, where that costs no more.

    Before: y = transpose(reshape(k @ reshape(q, [b, k, d, q * g]))).
    After: y = q @ k', of q [b, k, g, q, d] and k [b, k, 1, s, d].

    Scores and weights, the largest tensors of an attention, stay as they lie. All sums are the same.
    """
    views = views_of(graph)
    found = (_apart(views, node) for node in views.computed if isinstance(node.op, ops.MatMul))
    made = {product.result: product for product in found if product is not None and product.pays(target)}
    if not made:
        return graph

    def product_of(b: Rewriter, node: Node) -> Value | None:
        product = made.get(node.output) if len(node.outputs) == 1 else None
        return None if product is None else product.built(b)

    return rewrite(graph, product_of)


class _Operand(NamedTuple):
    """An operand of a product.

    Attributes:
        value: itself.
        root: what it is a view of.
        memory: how that lies where the value, row by row, is stored.
        axes: which of the product's its own are.
        depth_last: whether it is to stand with the axis that is summed over as its last.
    """

    value: Value
    root: Value
    memory: Memory
    axes: tuple[int, ...]
    depth_last: bool

    def parts(self, outer: Sequence[Part], free: Part, depth: Part) -> list[Part]:
        """Return the parts of all axes in the order in which it is to stand."""
        return [*outer, *((free, depth) if self.depth_last else (depth, free))]

    def shape(self, parts: Iterable[Part]) -> Shape:
        """Return its shape with an axis for each part, of size 1 where it is repeated."""
        return tuple(size if axis in self.axes else 1 for axis, size, _ in parts)

    def lying(self, b: Rewriter, parts: Sequence[Part]) -> Value:
        """Return it in that shape."""
        strides = dict(zip(self.axes, strides_of(self.value.shape), strict=True))
        wanted = joined((size, step * strides[axis]) for axis, size, step in parts if axis in self.axes)
        of_root = compose(wanted, self.memory)
        held = (self.value, wanted) if of_root is None else (self.root, of_root)
        return _laid(b, b.current(held[0]), held[1], self.shape(parts))


class _Product(NamedTuple):
    """A matrix product with an axis for each part of the largest tensor.

    Attributes:
        node: as it was.
        result: what it makes: the result of the node, or the one view of it that is read.
        memory: how the product lies where that, row by row, is stored.
        left, right: its operands.
        outer: parts along which there are products of matrices.
        row, column, depth: the part of each of these axes that is left; rows are the left operand's.
        moved: bytes of the largest tensor where it is moved now, else 0.
    """

    node: Node
    result: Value
    memory: Memory
    left: _Operand
    right: _Operand
    outer: tuple[Part, ...]
    row: Part
    column: Part
    depth: Part
    moved: int

    def pays(self, target: Target) -> bool:
        """Return whether it costs about as much as before, or less."""
        if len(self.outer) + 2 > _MOST_AXES:
            return False
        *batch, rows, columns = self.node.output.shape
        before = prod(batch) * target.product(rows, self.depth[1], columns) + target.moved("transpose", 2 * self.moved)
        packed = prod(self.right.shape(self.outer))
        times = prod(size for _, size, _ in self.outer) // packed
        after = packed * target.product(self.row[1], self.depth[1], self.column[1], times=times)
        return after <= _DEARER * before

    def built(self, b: Rewriter) -> Value:
        with b.at(self.node.origin):
            left, right = (
                operand.lying(b, operand.parts(self.outer, free, self.depth))
                for operand, free in ((self.left, self.row), (self.right, self.column))
            )
            made = b(ops.MatMul(not self.left.depth_last, self.right.depth_last), left, right)
            return _laid(b, made, self.memory, self.result.shape)


def _apart(views: Views, node: Node) -> _Product | None:
    """Return a product of which rows or columns are of several parts; None of others."""
    (x, w), y, op = node.inputs, node.output, node.op
    sizes = [v.type.size for v in (x, w, y)]
    if x.shape[:-2] != w.shape[:-2] or sizes.count(max(sizes)) > 1:  # of equal ones it is not known which are scores
        return None
    row, column, depth = range(len(y.shape) - 2, len(y.shape) + 1)
    batch = tuple(range(row))
    of_x = (*batch, depth, row) if op.adj_x else (*batch, row, depth)
    of_w = (*batch, column, depth) if op.adj_y else (*batch, depth, column)
    of_y = (*batch, row, column)
    largest, axes = ((x, of_x), (w, of_w), (y, of_y))[sizes.index(max(sizes))]
    read = _as_read(views, y)
    seen = read if largest is y else views.of[largest].root
    memory = views.of[read].memory if largest is y else inverse(views.of[largest].memory)
    parts = _parts(memory, seen.shape, largest.shape, axes)
    if parts is None or len(parts) < 2:
        return None
    *outer, last, inner = parts
    whole = {axis: (axis, size, 1) for axis, size in zip((*of_x, *of_w), (*x.shape, *w.shape), strict=True)}
    matrix = {axis: whole[axis] for axis in (row, column, depth)} | {last[0]: last, inner[0]: inner}
    first = last[0] if largest is y else row if largest is x else column
    second = row + column - first
    if {last[0], inner[0]} != {first, second if largest is y else depth}:
        return None
    if matrix[depth] != whole[depth] or (matrix[row], matrix[column]) == (whole[row], whole[column]):
        return None
    if any(size > matrix[axis][1] for axis, size, _ in outer if axis in (row, column)):
        return None  # heads of a token side by side are the rows of a product together, and blocks of tokens cut these
    made = [*outer, matrix[first], matrix[second]]
    strides = dict(zip(made, strides_of(tuple(size for _, size, _ in made)), strict=True))
    of_result = joined((part[1], strides[part]) for part in _in_order(of_y, made))
    of_read = compose(views.of[read].memory, of_result)
    operands = {row: (x, of_x), column: (w, of_w)}
    left, right = (_operand(views, *operands[axis], depth) for axis in (first, second))
    if largest is not y:
        left = left._replace(depth_last=inner[0] == depth)
    return _Product(
        node,
        y if of_read is None else read,
        of_result if of_read is None else of_read,
        left,
        right,
        tuple(outer),
        matrix[first],
        matrix[second],
        matrix[depth],
        largest.type.nbytes if memory != natural(largest.type.size) else 0,
    )


def _as_read(views: Views, value: Value) -> Value:
    """Return the view of a value that all read; itself where they read different ones."""
    read = {v for _, _, v in views.reads.get(value, ())} | set(views.given.get(value, ()))
    return read.pop() if len(read) == 1 else value


def _operand(views: Views, value: Value, axes: tuple[int, ...], depth: int) -> _Operand:
    """Return an operand that is to stand as its numbers lie already, if it can."""
    view = views.of[value]
    loops = split(inverse(view.memory), value.shape)
    innermost = loops[-1][-1][0] if loops else len(value.shape) - 1
    return _Operand(value, view.root, view.memory, axes, axes[innermost] == depth)


def _parts(memory: Memory, seen: Shape, shape: Shape, axes: Sequence[int]) -> list[Part] | None:
    """Return of which parts of a tensor's axes those of another view of it are made; None where they are of none.

    Args:
        memory: how the tensor lies where the view is stored.
        seen: the view's shape.
        shape: the tensor's.
        axes: what its axes are called.
    """
    loops = split(memory, shape)
    if loops is None:
        return None
    left, made = [part for loop in loops for part in loop][::-1], []
    for size in seen:
        if size == 1:
            made.append(_ONE)
        while size > 1:
            axis, count, step = left.pop()
            inside = min(count, size)
            if count % inside or size % inside:
                return None
            made.append((axes[axis], inside, step * (count // inside)))
            if count > inside:
                left.append((axis, count // inside, step))
            size //= inside
    return made


def _in_order(axes: Sequence[int], parts: Iterable[Part]) -> list[Part]:
    """Return parts as they follow each other in a tensor of these axes."""
    return sorted((part for part in parts if part[0] in axes), key=lambda part: (axes.index(part[0]), -part[2]))


def _laid(b: Rewriter, value: Value, memory: Memory, shape: Shape) -> Value:
    """Return a value stored in another order, in a shape."""
    if memory == natural(value.type.size):
        return b.reshape(value, shape)
    loops = sorted(memory, key=lambda loop: -loop[1])
    separate = b.reshape(value, tuple(size for size, _ in loops))
    return b.reshape(b.transpose(separate, tuple(map(loops.index, memory))), shape)
