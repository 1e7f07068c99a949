"""Optimizer graph: slots, updates and learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from converter.ir import FLOAT32, Builder, Graph, Node, Shape, TensorType, Value, View, ops

#: Names of the graph's inputs and outputs are a prefix and the parameter's name; slots have names of their own.
GRADIENT, PARAMETER, UPDATE = "gradient/", "parameter/", "update/"
#: The input of the loss that the gradients are of, [], where the update reads it.
LOSS = "loss"


def unscaled(graph: Graph, parameter: str) -> Value:
    """Return what a constant times it makes the update of a parameter."""
    made, constants = graph.producers(), graph.constants

    def of(value: Value) -> Value:
        node = made.get(value)
        if node is None or not isinstance(node.op, ops.Neg | ops.Reshape | ops.Mul | ops.Div):
            return value
        first, *others = (v for v in node.inputs if v not in constants or constants[v].size > 1)
        divides = isinstance(node.op, ops.Div) and first is not node.inputs[0]
        return value if others or divides else of(first)

    return of(graph.outputs[UPDATE + parameter])


@dataclass(frozen=True, eq=False)
class OptimizerProgram:
    """One update of an optimizer for a set of parameters.

    Attributes:
        slots: initial optimizer state by name `optimizer/<path in the optax state>/<parameter>`; float32, rank >= 1
            (a scalar is stored as [1]); in the layout of the parameters that were given.
        graph: inputs `gradient/<parameter>` and `parameter/<parameter>` for each parameter, every slot by name, and
            `loss` where it is read; outputs `update/<parameter>` (what optax.apply_updates would add) and every slot's
            next value by name.
        parameters: names of the parameters, in order.
        description: the optimizer in words.
        finish: what is done after the update with the weights that it makes: inputs `parameter/<parameter>` and slots,
            outputs those of them that it changes; None for nothing.
        views: how slots are stored, of those that are not stored as they are.
        traced: the graph for parameters in the model's own layout, where `graph` takes them as they are stored.
        keys: the slots that hold random keys.
    """

    slots: dict[str, np.ndarray]
    graph: Graph
    parameters: tuple[str, ...]
    description: str
    finish: Graph | None = None
    views: Mapping[str, View] = field(default_factory=dict)
    traced: Graph | None = None
    keys: tuple[str, ...] = ()

    @property
    def reads_loss(self) -> bool:
        """Whether the update depends on the loss."""
        return any(value.name == LOSS for value in self.graph.inputs)

    @property
    def layout_invariant(self) -> bool:
        """Whether the update does the same to a transposed, reshaped or permuted parameter.

        True where nothing but elementwise arithmetic and sums over whole tensors is done; False for optimizers that
        look at rows and columns (adafactor). Note that a sum over the whole of a tensor (clipping, lamb) counts only
        the part of it that trains. Noise of which each number is drawn alike is the same noise in any order.
        """
        return _is_invariant(self.graph, sums=True, keys=self.keys)

    @property
    def scales_gradients(self) -> bool:
        """Whether each update is a constant times its gradient, and nothing is remembered: plain descent."""
        return not self.slots and all(unscaled(self.graph, n) is self.gradient(n) for n in self.parameters)

    def stored(self, views: Mapping[str, View], graph: Graph | None = None) -> OptimizerProgram:
        """Return the same update for parameters that are stored through these views; only where it is layout invariant.

        Args:
            views: by the name of the parameter.
            graph: traced for the parameters as they are stored: one that draws noise, whose shapes nothing else tells.
        """
        laid: dict[str, View] = {}
        shapes: dict[str, Shape] = {}
        for value in self.graph.inputs:
            name = value.name.removeprefix(GRADIENT).removeprefix(PARAMETER)
            if name in views and value.name not in self.slots:
                shapes[value.name] = views[name].apply(np.broadcast_to(np.float32(0), value.shape)).shape
        for slot, array in self.slots.items():
            owner = max((n for n in self.parameters if slot.endswith(f"/{n}")), key=len, default="")
            like = owner in views and array.shape == self.gradient(owner).shape
            if like:
                laid[slot] = views[owner]
            shapes[slot] = laid.get(slot, View()).apply(array).shape
        finish = None if self.finish is None else with_shapes(self.finish, shapes)
        graph = with_shapes(self.graph, shapes) if graph is None else graph
        return replace(self, graph=graph, finish=finish, views=laid, traced=self.graph)

    def gradient(self, parameter: str) -> Value:
        """Return the input that takes the gradient of a parameter."""
        return next(v for v in self.graph.inputs if v.name == GRADIENT + parameter)


def is_elementwise(graph: Graph) -> bool:
    """Return whether each number of what it makes is of the one at the same place alone."""
    return _is_invariant(graph, sums=False)


def with_shapes(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    """Return the same function of inputs of other shapes, by name.

    Only of one that is elementwise but for whole sums.
    """
    b = Builder(Graph(constants=dict(graph.constants)))
    made = {v: b.input(v.name, TensorType(shapes.get(v.name, v.shape), v.dtype)) for v in graph.inputs}
    made |= {v: v for v in graph.constants}
    for node in graph.nodes:
        operands, op = [made[v] for v in node.inputs], node.op
        if isinstance(op, ops.Reduction) and node.output.shape == ():
            op = replace(op, axes=tuple(range(len(operands[0].shape))))  # all of them, however many it is stored in
        with b.at(node.origin):
            made |= zip(node.outputs, b.node(op, *operands).outputs, strict=True)
    b.graph.outputs = {name: made[value] for name, value in graph.outputs.items()}
    return b.graph


def _is_invariant(graph: Graph, sums: bool, keys: Sequence[str] = ()) -> bool:
    """Return whether nothing but elementwise arithmetic is done, with `sums` such over whole tensors, too.

    What is made of the keys alone is noise, of which each number is drawn alike.
    """
    noise = {v for v in graph.inputs if v.name in keys}
    big = {v for v in graph.inputs if v.shape != () and v not in noise}
    for node in graph.nodes:
        reads = [v for v in node.inputs if v in big or v in noise]
        if not reads:
            continue
        if not any(v in big for v in reads):
            if not _draws_alike(node, graph):
                return False
            noise.update(node.outputs)
            continue
        if any(v.shape for v in node.inputs if v in graph.constants):
            return False  # a number for each element
        if sums and _is_whole(node):
            continue
        if not node.op.elementwise or len({v.shape for v in reads if v.shape}) > 1:
            return False
        big.update(node.outputs)
    return True


def _is_whole(node: Node) -> bool:
    """Return whether it makes one number of all elements, whatever their order and shape."""
    if node.output.type.size == 1 and isinstance(node.op, ops.Reshape):
        return True
    return node.output.shape == () and isinstance(node.op, ops.Reduction)


def _draws_alike(node: Node, graph: Graph) -> bool:
    """Return whether noise stays such by a node: bits are drawn for each place, then all are treated alike."""
    if node.output.dtype != FLOAT32 or isinstance(node.op, ops.Slice | ops.Reshape | ops.Concat):
        return True
    numbers = any(v.shape and v.dtype == FLOAT32 for v in node.inputs if v in graph.constants)
    return node.op.elementwise and not numbers
