"""Token or mask by which a net brings the positions of a text together before its head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from converter.ir import Graph, Node, Value, ops
from converter.ir.ops.reduce import normal_axes

_VIEWS = (ops.Reshape, ops.Transpose, ops.BroadcastTo, ops.Cast)
#: What gives nothing below zero, whatever it reads.
_NEVER_NEGATIVE = (ops.Exp, ops.Softmax, ops.Logistic, ops.Relu, ops.Relu6)


@dataclass(frozen=True)
class Mask:
    """What positions are weighted by in their mean.

    Attributes:
        value: one number for each position of each row; of any type.
        inverted: whether it is true where a position does not count.
    """

    value: Value
    inverted: bool = False


def token_or_mask(graph: Graph, read: Value, positions: int, rows: int) -> tuple[int | None, Mask | None]:
    """Return the position that what the head reads is of, or what positions are weighted by in it; at most one of both.

    Args:
        graph: the forward graph.
        read: the head's input.
        positions: of a text.
        rows: of a batch.
    """
    found = _Positions(graph, positions, rows)
    ends = list(found.ends(read))
    tokens = {token for token in map(found.token, ends) if token is not None}
    if len(tokens) == 1:
        return tokens.pop(), None
    masks = {mask.value: mask for mask in map(found.mask, ends) if mask is not None}
    return None, masks.popitem()[1] if len(masks) == 1 else None


class _Positions:
    """The axis of so many positions in a graph."""

    def __init__(self, graph: Graph, positions: int, rows: int) -> None:
        self._graph, self._positions, self._rows = graph, positions, rows
        self._producers = graph.producers()

    def ends(self, value: Value) -> Iterator[Node]:
        """Yield the nodes before a value that read an axis of the positions and give none."""
        seen, waiting = set[Value](), [value]
        while waiting:
            value = waiting.pop()
            node = self._producers.get(value)
            if node is None or value in seen:
                continue
            seen.add(value)
            if (steps := self._steps(node)) is not None:
                waiting += steps
                continue
            together = self._together(node)
            with_positions = [v for v in node.inputs if self._has(v) or v is together]
            if with_positions and not any(map(self._has, node.outputs)):
                yield node
            waiting += [v for v in node.inputs if v not in with_positions]

    def _has(self, value: Value) -> bool:
        """Return whether a value has such an axis before its last; the rows may be as many, and are none."""
        shape = value.shape[1:-1] if value.shape[:1] == (self._rows,) else value.shape[:-1]
        return self._positions in shape

    def _together(self, node: Node) -> Value | None:
        """Return what a node brings together along such an axis, which may be the last one: channels first."""
        if isinstance(node.op, ops.MatMul):
            product = self._product(node)
            return None if product is None else product[1]
        return node.inputs[0] if self._axis(node) is not None else None

    def _axis(self, node: Node) -> int | None:
        """Return the axis of the positions that a node slices or reduces; None where it is none, or not it alone."""
        if not node.inputs or len(shape := node.inputs[0].shape) < 3:
            return None
        if isinstance(node.op, ops.Slice):
            axes = [axis for axis, (many, left) in enumerate(zip(shape, node.op.size, strict=True)) if many != left]
        elif isinstance(node.op, ops.Sum | ops.Mean):
            axes = [axis for axis in normal_axes(node.op.axes, len(shape), node.op.name) if shape[axis] > 1]
        else:
            return None
        if len(axes) != 1 or shape[axes[0]] != self._positions or (axes[0] == 0 and shape[0] == self._rows):
            return None
        return axes[0]

    def _before_views(self, value: Value) -> Node | None:
        """Return what makes a value, before its axes are moved."""
        made = self._producers.get(value)
        while made is not None and isinstance(made.op, ops.Reshape | ops.Transpose):
            made = self._producers.get(made.inputs[0])
        return made

    def _steps(self, node: Node) -> Sequence[Value] | None:
        """Return the steps of a recurrent layer without a loop, from whose joined results a node takes one."""
        if self._axis(node) is None or not isinstance(node.op, ops.Slice):
            return None
        made = self._before_views(node.inputs[0])
        joins = made is not None and isinstance(made.op, ops.Concat) and len(made.inputs) == self._positions
        return made.inputs if made is not None and joins else None

    def token(self, node: Node) -> int | None:
        """Return the position that a node takes, if it takes one.

        The last state of a recurrent layer is none: it brings all positions together, perhaps from the last to the
        first.
        """
        axis = self._axis(node)
        if axis is None or not isinstance(node.op, ops.Slice) or node.op.size[axis] != 1:
            return None
        made = self._before_views(node.inputs[0])
        return None if made is not None and made.op.bodies() else node.op.begin[axis]

    def mask(self, node: Node) -> Mask | None:
        """Return what positions are weighted by where a node adds them up, one number for each."""
        if isinstance(node.op, ops.MatMul):
            product = self._product(node)
            return None if product is None else self._weighting(product[0])
        axis, before = self._axis(node), self._producers.get(node.inputs[0])
        if axis is None or before is None or not isinstance(node.op, ops.Sum | ops.Mean):
            return None
        shape = before.output.shape
        if isinstance(before.op, ops.Mul):
            found = [seen for v in before.inputs if (seen := self._of_positions(v, axis - len(shape))) is not None]
            return self._weighting(found[0]) if len(found) == 1 else None
        if not isinstance(before.op, ops.Select):
            return None
        condition, one, other = before.inputs
        seen, zeros = self._of_positions(condition, axis - len(shape)), [self._is_zero(one), self._is_zero(other)]
        return None if seen is None or sum(zeros) != 1 else self._weighting(seen, inverted=zeros[0])

    def _product(self, node: Node) -> tuple[Value, Value] | None:
        """Return the weights of a product that adds positions up by one number for each, and what it adds up."""
        (x, y), op = node.inputs[:2], node.op
        assert isinstance(op, ops.MatMul)
        shared = x.shape[-2 if op.adj_x else -1]
        many = self._rows * self._positions
        # What is added up has the rows too: a product with a weight, as of the state of a recurrent layer, is none.
        found = [(a, b) for a, b in ((x, y), (y, x)) if a.type.size == many < b.type.size and len(b.shape) > 2]
        found = [(a, b) for a, b in found if b not in self._graph.parameters and b not in self._graph.constants]
        return found[0] if shared == self._positions and len(found) == 1 else None

    def _of_positions(self, value: Value, axis: int) -> Value | None:
        """Return a value with one number for each position of each row, as it is before it is repeated along others."""
        while (made := self._producers.get(value)) is not None and isinstance(made.op, ops.BroadcastTo | ops.Cast):
            if value.type.size == self._rows * self._positions:
                break
            value = made.inputs[0]
        is_of_them = value.type.size == self._rows * self._positions and len(value.shape) >= -axis
        return value if is_of_them and value.shape[axis] == self._positions else None

    def _is_zero(self, value: Value) -> bool:
        while value not in self._graph.constants and (made := self._producers.get(value)) is not None:
            if not isinstance(made.op, _VIEWS):
                return False
            value = made.inputs[0]
        return value in self._graph.constants and not self._graph.constants[value].any()

    def _weighting(self, value: Value, inverted: bool = False) -> Mask | None:
        """Return weights as a mask, unless they are learned and may be negative: a mean divides by their sum."""
        seen, waiting = set[Value](), [value]
        while waiting:
            one = waiting.pop()
            made = self._producers.get(one)
            if one in self._graph.parameters:
                return None
            if made is None or one in seen or one.dtype.kind in "bu" or isinstance(made.op, _NEVER_NEGATIVE):
                continue
            seen.add(one)
            waiting += made.inputs
        return Mask(value, inverted)
