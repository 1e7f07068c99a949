"""Room for classes that come later: a last layer with more rows than the model has classes, the free ones masked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from converter.ir import Builder, Graph, Node, Value, is_described, ops
from converter.ir.described import described
from converter.ir.rewrite import eliminate_dead_code
from converter.passes.read_weights import read
from converter.program.class_names import free_bias
from converter.support.errors import UsageError

#: So many classes at most: each takes a row of names beside its row of weights.
MOST = 4096


@dataclass(frozen=True)
class Room:
    """How many classes a last layer has and may have.

    Attributes:
        own: those of the model.
        later: those that may come at run time.
    """

    own: int
    later: int

    @property
    def total(self) -> int:
        """Rows of the last layer."""
        return self.own + self.later

    def __str__(self) -> str:
        return f"{self.own}+{self.later}"


@dataclass(frozen=True)
class LastLayer:
    """A dense layer that gives the logits of a model.

    Attributes:
        product, sum: what multiplies by its kernel, and what adds its bias.
        kernel, bias: its parameters [inputs, classes] or [classes, inputs], and [classes].
        link: the softmax after it; None where the model ends in logits.
    """

    product: Node
    sum: Node
    kernel: Value
    bias: Value
    link: Node | None

    @property
    def axis(self) -> int:
        """The axis of the kernel along which its classes lie."""
        assert isinstance(self.product.op, ops.MatMul)
        return 0 if self.product.op.adj_y else 1

    @property
    def classes(self) -> int:
        """How many classes it has."""
        return self.bias.shape[0]


def room_of(classes: int | str | None) -> Room | None:
    """Return what `classes="10+20"` asks for; None where it asks for no room.

    Raises:
        UsageError: it is neither a number nor two.
    """
    if not isinstance(classes, str):
        return None
    found = re.fullmatch(r"(\d{1,9})\+(\d{1,9})", classes.strip())
    if found is None or not int(found[2]) or int(found[1]) + int(found[2]) > MOST:
        raise UsageError(
            f"classes={classes!r}: a number, or the model's own and how many may come later, '10+20', up to {MOST:,} "
            "together",
            page="arguments",
        )
    return Room(int(found[1]), int(found[2]))


def last_layer(graph: Graph) -> LastLayer | None:
    """Return the dense layer [rows, inputs] -> [rows, classes] that a model of one output ends in; None for another."""
    if len(graph.outputs) != 1:
        return None
    made_by, readers = graph.producers(), graph.consumers()
    (output,) = graph.outputs.values()
    node = made_by.get(output)
    link = node if node is not None and isinstance(node.op, ops.Softmax) else None
    total = node if link is None else made_by.get(link.inputs[0])
    if total is None or not isinstance(total.op, ops.Add):
        return None
    product = next((made_by[v] for v in total.inputs if v in made_by), None)
    bias = next((v for v in total.inputs if v in graph.parameters), None)
    if product is None or bias is None or not isinstance(product.op, ops.MatMul) or product.op.adj_x:
        return None
    kernel, shape = product.inputs[1], product.output.shape
    is_dense = kernel in graph.parameters and len(shape) == 2 == len(kernel.shape) and bias.shape == shape[1:]
    return LastLayer(product, total, kernel, bias, link) if is_dense and len(readers[kernel]) == 1 else None


def why_no_layer(graph: Graph) -> str:
    """Return why a model has no last layer, as a clause."""
    if len(graph.outputs) > 1:
        return f"the model has {len(graph.outputs)} outputs, {', '.join(graph.outputs)}, and not one last layer"
    return "the model does not end in a dense layer with a bias, and a softmax or nothing after it"


def with_room(graph: Graph, room: Room) -> Graph:
    """Return a model whose last layer has free rows after its own: weights 0, and a bias far below all others.

    Raises:
        UsageError: it ends in no dense layer of so many classes, and a softmax or nothing after it.
    """
    layer = last_layer(graph)
    if layer is None:
        raise UsageError(
            f"classes='{room}': {why_no_layer(graph)}, so there is none to which classes could be added",
            page="arguments",
        )
    if layer.classes != room.own:
        raise UsageError(
            f"classes='{room}': the model tells {layer.classes} classes apart, not {room.own}: "
            f"'{layer.classes}+{room.later}' makes room for {room.later} more",
            page="arguments",
        )
    after = graph.copy()
    kernel = wider(after, layer.kernel, layer.axis, room.later)
    bias = wider(after, layer.bias, 0, room.later, free_bias)
    b = Builder(after)
    with b.at(layer.product.origin):
        made = b(layer.product.op, layer.product.inputs[0], kernel)
        made = b(layer.sum.op, *(made if v is layer.product.output else bias for v in layer.sum.inputs))
        made = made if layer.link is None else b(layer.link.op, made)
    (name,) = after.outputs
    after.outputs[name] = made
    return eliminate_dead_code(after)


def widened(array: np.ndarray, axis: int, more: int, fill: float) -> np.ndarray:
    """Return a tensor with `fill` in so many more places along an axis."""
    shape = (*array.shape[:axis], more, *array.shape[axis + 1 :])
    return np.concatenate([array, np.full(shape, fill, np.float32)], axis)


def wider(
    graph: Graph, value: Value, axis: int, more: int, fill: Callable[[np.ndarray], float] = lambda before: 0.0
) -> Value:
    """Put a parameter with more places along an axis in the place of one; what they hold may depend on its numbers."""
    parameter = read(graph.parameters.pop(value))
    before = parameter.model_value
    shape = (*before.shape[:axis], before.shape[axis] + more, *before.shape[axis + 1 :])
    after = (
        described(shape, parameter.name)
        if is_described(before)
        else widened(np.asarray(before), axis, more, fill(before))
    )
    wide = Value(value.type.with_shape(shape), value.name)
    graph.parameters[wide] = replace(parameter, model_value=after)
    return wide
