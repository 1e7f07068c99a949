"""Layouts applied: the graph in which chosen nodes work in their other form, with transposes where that takes some."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from converter.ir import Builder, Graph, Node, Shape, Value
from converter.ir.rewrite import eliminate_dead_code
from converter.passes.layout.axes import Order
from converter.passes.layout.memory import Memory, compose, inverse, natural
from converter.passes.layout.moves import Moved
from converter.passes.layout.views import View, Views


def applied(graph: Graph, views: Views, forms: Mapping[Node, Moved], transposed: Collection[Node]) -> Graph:
    """Return the graph with these nodes in their other form; all else is as it was."""
    made = _Laid(graph, views)
    computed = set(views.computed)
    for node in graph.nodes:
        if node not in computed:
            continue
        with made.b.at(node.origin):
            if node in transposed:
                form = forms[node]
                wanted = zip(node.inputs, form.operands, form.shapes, strict=True)
                result = form.emit(made.b, *(made.lying(value, memory, shape) for value, memory, shape in wanted))
                made.held[node.output] = made.b.reshape(result, form.shape), form.result
            else:
                made.keep(node)
    after = made.b.graph
    after.outputs = {name: made.as_it_was(value) for name, value in graph.outputs.items()}
    after.updates = {parameter: made.as_it_was(value) for parameter, value in graph.updates.items()}
    return eliminate_dead_code(after)


class _Laid:
    """The graph as it is made, and how what is computed lies in it."""

    def __init__(self, graph: Graph, views: Views) -> None:
        self.b = Builder(Graph(list(graph.inputs), dict(graph.constants), dict(graph.parameters)))
        self.held: dict[Value, tuple[Value, Memory]] = {}
        self._views = views
        self._written = {node.output: node for node in graph.nodes if node not in set(views.computed)}
        self._made: dict[tuple[Value, Memory], Value] = {}
        self._shaped: dict[tuple[Value, Shape], Value] = {}
        self._again: set[Value] = set()

    def keep(self, node: Node) -> None:
        """Add a node as it is."""
        inputs = tuple(map(self.as_it_was, node.inputs))
        self.b.append(node if inputs == node.inputs else replace(node, inputs=inputs))

    def as_it_was(self, value: Value) -> Value:
        """Return a value of the graph before, row by row in its own shape."""
        view = self._views.of[value]
        if view.root not in self.held and view.turns == min(len(view.memory) > 1, 1):
            return self._written_again(value)
        return self.lying(value, natural(value.type.size), value.shape)

    def lying(self, value: Value, memory: Memory, shape: Shape) -> Value:
        """Return a value of the graph before that lies so, in a shape."""
        view: View = self._views.of[value]
        wanted = compose(memory, view.memory)
        if wanted is None:
            whole = self.lying(value, natural(value.type.size), value.shape)
            return self._turned(whole, memory, shape)
        held, lies = self.held.get(view.root, (view.root, natural(view.root.type.size)))
        if wanted != lies:
            key = (view.root, wanted)
            if key not in self._made:
                self._made[key] = self._from(held, lies, wanted, shape)
            held = self._made[key]
        return self._in_shape(held, shape)

    def _in_shape(self, value: Value, shape: Shape) -> Value:
        if (value, shape) not in self._shaped:
            self._shaped[value, shape] = self.b.reshape(value, shape)
        return self._shaped[value, shape]

    def _from(self, held: Value, lies: Memory, wanted: Memory, shape: Shape) -> Value:
        """Return what is held in one layout, in another one."""
        turn = compose(wanted, inverse(lies))
        if turn is None:  # the loops of the two cross each other: by way of row-major order
            return self._turned(self._turned(held, inverse(lies), held.shape), wanted, shape)
        return self._turned(held, turn, shape)

    def _turned(self, held: Value, turn: Memory, shape: Shape) -> Value:
        """Return a tensor stored in another order: its axes if these can be moved as they are, else parts of them."""
        order = Order.of(held.shape, turn)
        if order is None or len(order.loops) != len(held.shape):
            held = self._in_shape(held, tuple(size for size, _ in sorted(turn, key=lambda loop: -loop[1])))
            order = Order.of(held.shape, turn)
        assert order is not None
        return self._in_shape(self.b.transpose(held, _like(order, held.shape, shape)), shape)

    def _written_again(self, value: Value) -> Value:
        """Return a view as it was written."""
        node = self._written.get(value)
        if node is None or value in self._again:
            return value
        before = self._written_again(node.inputs[0])
        self._again.add(value)
        assert before is node.inputs[0]
        self.b.append(node)
        return value


def _like(order: Order, held: Shape, shape: Shape) -> tuple[int, ...]:
    """Return the order of axes, those of one element where the shape has some, if it has as many."""
    axes = [axis for axis, _, _ in order.loops]
    moved = [axis for axis in axes if held[axis] != 1]
    if [held[axis] for axis in moved] != [size for size in shape if size != 1] or len(shape) != len(held):
        return tuple(axes)
    ones, others = iter(axis for axis in axes if held[axis] == 1), iter(moved)
    return tuple(next(ones if size == 1 else others) for size in shape)
