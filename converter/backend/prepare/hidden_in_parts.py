"""Feed-forward layers of frozen matrices, some inner features at a time: the wide activation is never whole.

What lies between two dense layers treats each inner feature by itself, and the second layer sums up over them. So some
features go from the first layer through the second, forward and backward, before the next begin, and each matrix is
still multiplied once a pass.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from math import lcm
from typing import NamedTuple

from converter.ir import Builder, Graph, Node, Value, dependents, in_order_of_use, ops, rows_at_once

#: Elements of a matrix and of a value that are there at once, but in no more parts.
OF_MATRIX, OF_VALUE, MOST_PARTS = 1 << 20, 1 << 19, 16
#: How many times larger a frozen matrix is than what trains beside it: that is cut each time.
_LARGER = 16
#: Products of matrices that are read from the file.
_STORED = (ops.CastMatMul, ops.DynamicRangeMatMul)


class _Hidden(NamedTuple):
    """What lies between dense layers, as wide as what they share.

    Attributes:
        width: the inner features.
        inside: the nodes that make them, first layers included, in the order of the graph.
        ends: products that sum up over them.
        gains: the product by a trained number for each output after some of these (DoRA). It goes into each part, so
            that the derivative of the numbers asks for one part at a time.
        beside: other products with the frozen matrices of the ends, of rows that no input decides, which the gains ask
            for.
    """

    width: int
    inside: Sequence[Node]
    ends: Sequence[Node]
    gains: Mapping[Node, Node]
    beside: Sequence[Node]

    @property
    def replaced(self) -> Sequence[Node]:
        """The nodes in whose place others stand."""
        return *self.inside, *self.ends, *self.gains.values(), *self.beside


def hidden_in_parts(graph: Graph) -> Graph:
    """Return a forward graph with wide feed-forward parts of frozen matrices some inner features at a time.

    Before: y = f(x V) W.
    After:  y = f(x V[:, :n]) W[:n] + f(x V[:, n:2n]) W[n:2n] + ...

    Adapters beside the matrices are cut, too, and products of rows that no input decides, as lengths of columns ask for
    (DoRA). Sums are in another order than before, nothing else changes.
    """
    makers, readers, results = graph.producers(), graph.consumers(), set(graph.results())
    b = Builder(graph.copy())
    b.graph.nodes = nodes = []
    place = {node: i for i, node in enumerate(graph.nodes)}
    gone: set[Node] = set()
    due: dict[Node, _Hidden] = {}
    for node in graph.nodes:
        if node not in gone and isinstance(node.op, _STORED) and node.inputs[1] in graph.constants:
            found = _hidden(graph, node.inputs[0], makers, readers, place)
            if (
                found is not None
                and results.isdisjoint(v for n in found.inside for v in n.outputs)
                and gone.isdisjoint(found.beside)
            ):
                due[max(found.replaced, key=place.__getitem__)] = found
                gone.update(found.replaced)
    for node in graph.nodes:
        if node not in gone:
            nodes.append(node)
        elif node in due:
            _Parts(b, due[node]).add(_part_width(graph, due[node]))
    b.graph.nodes = in_order_of_use(nodes)
    return b.graph if due else graph


def _hidden(
    graph: Graph,
    value: Value,
    makers: Mapping[Value, Node],
    readers: Mapping[Value, Sequence[Node]],
    place: Mapping[Node, int],
) -> _Hidden | None:
    """Return what makes a value and is as wide, if it is worth being cut and nothing else reads it."""
    width, inside, waiting = value.shape[-1], dict[Node, None](), [value]
    while waiting:
        node = makers.get(waiting.pop())
        if node is None or node.output.shape[-1:] != (width,):
            return None
        if node not in inside:
            inside[node] = None
            if node.op.elementwise or _is_by_feature(node):
                waiting += [v for v in node.inputs if not _is_whole(v) and not _is_row(graph, v, width)]
            elif not _is_product(node):
                return None
            elif not _turned(node) and (maker := makers.get(node.inputs[1])) is not None and maker.op.elementwise:
                waiting.append(node.inputs[1])  # a matrix that is made by column, as B times the gains of DoRA
    made = {v for node in inside for v in node.outputs}
    ends = dict.fromkeys(node for v in made for node in readers.get(v, ()) if node not in inside)
    if any(not _is_product(n) or n.inputs[0] not in made or n.inputs[1] in made for n in ends):
        return None
    if any(
        _is_product(node) and (node.inputs[0] in made or (_turned(node) and node.inputs[1] in made)) for node in inside
    ):
        return None
    given = dependents(graph, graph.inputs)
    gains = {end: after for end in ends if (after := _gain(graph, end, readers, given)) is not None}
    beside = dict.fromkeys(_beside(graph, ends, readers, made | given))
    ordered = [sorted(nodes, key=place.__getitem__) for nodes in (inside, ends)]
    found = _Hidden(width, ordered[0], ordered[1], gains, list(beside))
    return found if _part_width(graph, found) < width and _is_mostly_frozen(graph, found) else None


def _gain(graph: Graph, end: Node, readers: Mapping[Value, Sequence[Node]], given: Container[Value]) -> Node | None:
    """Return the product of what an end gives and a number for each output, made of what trains, if all read that."""
    match readers.get(end.output, ()):
        case [Node(op=ops.Mul(), inputs=(y, row)) as node] if y is end.output and end.output not in graph.results():
            is_made = row not in given and row not in graph.constants and row not in graph.parameters
            return node if is_made and row.shape == end.output.shape[-1:] else None
    return None


def _beside(
    graph: Graph, ends: Collection[Node], readers: Mapping[Value, Sequence[Node]], given: Container[Value]
) -> Iterator[Node]:
    """Yield `_Hidden.beside`; `given`: what inputs decide, and what is made inside."""
    for matrix in {node.inputs[1] for node in ends if node.inputs[1] in graph.constants}:
        for node in readers[matrix]:
            if node not in ends and _is_product(node) and node.inputs[0] not in given:
                yield node


def _is_by_feature(node: Node) -> bool:
    """Return whether a node that is not elementwise treats each inner feature by itself: a sum, or a mark of no use."""
    match node.op:
        case ops.Sum(axes=axes):
            return all(axis % node.inputs[0].type.rank != node.inputs[0].type.rank - 1 for axis in axes)
        case ops.CustomGradient(arguments=0, residuals=0):
            return len(node.outputs) == 1
    return False


def _is_product(node: Node) -> bool:
    return isinstance(node.op, (*_STORED, ops.MatMul)) and _turned(node) is not None


def _turned(node: Node) -> bool | None:
    """Return whether a product of rows and a matrix reads the matrix transposed; None where it is none such."""
    if node.inputs[1].type.rank != 2 or node.inputs[0].type.rank < 2 or getattr(node.op, "adj_x", False):
        return None
    return isinstance(node.op, ops.DynamicRangeMatMul) or bool(node.op.adj_y)


def _block(node: Node) -> int:
    """Return how many numbers of a row of a product's matrix share a scale, or a byte; 1 where none do."""
    _, w, *scales = node.inputs
    if isinstance(node.op, ops.DynamicRangeMatMul):
        return 2
    return w.shape[1] // scales[0].shape[1] if scales else 1


def _is_whole(value: Value) -> bool:
    """Return whether all inner features read the same of a value."""
    return value.shape[-1:] in ((), (1,))


def _is_row(graph: Graph, value: Value, width: int) -> bool:
    """Return whether it is known numbers for each inner feature, as a bias is, or the columns of an adapter's B."""
    return (value in graph.constants or value in graph.parameters) and value.shape[-1] == width


def _matrices(found: _Hidden) -> list[Value]:
    return [node.inputs[1] for node in (*found.inside, *found.ends) if _is_product(node)]


def _part_width(graph: Graph, found: _Hidden) -> int:
    """Return how many inner features a part has."""
    matrix = max(v.type.size for v in _matrices(found) if v in graph.constants)
    values = max(node.output.type.size for node in found.inside)
    parts = min(MOST_PARTS, max(-(-matrix // OF_MATRIX), -(-values // OF_VALUE)))
    whole = lcm(*(_block(node) for node in (*found.inside, *found.ends) if _is_product(node)))
    return -(-rows_at_once(found.width, parts) // whole) * whole


def _is_mostly_frozen(graph: Graph, found: _Hidden) -> bool:
    """Return whether what trains, and is cut at each step, is little beside each frozen matrix."""
    sizes: dict[bool, list[int]] = {True: [], False: [0]}
    for value in _matrices(found):
        sizes[value in graph.constants].append(value.type.size)
    return max(sizes[False]) * _LARGER <= min(sizes[True])


class _Parts:
    """Adds what a hidden part gives, a few inner features at a time."""

    def __init__(self, b: Builder, hidden: _Hidden) -> None:
        self._b, self._hidden = b, hidden
        self._pieces: dict[tuple[Value, int, int], Value] = {}  # products that read the same matrix read the same parts

    def add(self, width: int) -> None:
        """Adds the sums over parts of so many features."""
        parts = [slice(i, min(i + width, self._hidden.width)) for i in range(0, self._hidden.width, width)]
        sums: dict[Node, Value] = {}
        for part in parts:
            for end in self._hidden.beside:
                self._sum(end, self._of_row(end.inputs[0], part), part, sums)
        for part in parts:
            made = self._made(part)
            for end in self._hidden.ends:
                self._sum(end, made[end.inputs[0]], part, sums)

    def _sum(self, end: Node, rows: Value, part: slice, sums: dict[Node, Value]) -> None:
        """Adds what a part gives to the sum of those before, which the last makes the result."""
        with self._b.at(end.origin):
            given = self._b(end.op, rows, *self._matrix(end, 1 if _turned(end) else 0, part))
            whole = self._hidden.gains.get(end, end)
            if whole is not end:
                given = self._b(whole.op, given, whole.inputs[1])
            if part.stop < self._hidden.width:
                sums[end] = given if part.start == 0 else self._b(ops.Add(), sums[end], given)
            else:
                self._b.append(Node(ops.Add(), (sums[end], given), whole.outputs, end.origin))

    def _made(self, part: slice) -> dict[Value, Value]:
        """Return for each wide value some of its features."""
        made: dict[Value, Value] = {}
        for node in self._hidden.inside:
            with self._b.at(node.origin):
                if _is_product(node):
                    columns = made.get(node.inputs[1])
                    matrix = [columns] if columns else self._matrix(node, 0 if _turned(node) else 1, part)
                    inputs = [node.inputs[0], *matrix]
                else:
                    inputs = [made.get(v) or self._of_row(v, part) for v in node.inputs]
                (made[node.output],) = self._b.node(node.op, *inputs).outputs
        return made

    def _matrix(self, node: Node, axis: int, part: slice) -> list[Value]:
        """Return a part of the matrix of a product, and of the scales of its blocks, if it has some."""
        _, w, *scales = node.inputs
        size = _block(node) if axis else 1
        blocks = slice(part.start // size, -(-part.stop // size))
        return [self._cut(w, axis, part), *(self._cut(of, axis, blocks) for of in scales)]

    def _of_row(self, value: Value, part: slice) -> Value:
        return value if _is_whole(value) else self._cut(value, value.type.rank - 1, part)

    def _cut(self, value: Value, axis: int, part: slice) -> Value:
        """Return a part of an axis; of a constant at once."""
        array = self._b.graph.constants.get(value)
        if array is not None:
            key = value, axis, part.start
            if key not in self._pieces:
                self._pieces[key] = self._b.constant(array[(*axis * (slice(None),), part)], name=value.name)
            return self._pieces[key]
        begin = tuple(part.start if i == axis else 0 for i in range(value.type.rank))
        size = (*value.shape[:axis], part.stop - part.start, *value.shape[axis + 1 :])
        return self._b(ops.Slice(begin, size), value)
