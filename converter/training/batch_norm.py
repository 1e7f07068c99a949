"""Batch normalization by the statistics of the batch, as Keras and PyTorch train it, in a graph traced for inference.

The arithmetic of such a layer is the same in both: in training the moments of its input stand for the moving averages,
which follow them. So the training step is the forward graph with other values in the place of two parameters.

Where a mask reaches such a layer, the trace marks its input with it (`ops.Masked`), and the moments are those of the
places that it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from converter.ir import (
    FLOAT32,
    Builder,
    Graph,
    Node,
    Origin,
    Parameter,
    TensorType,
    Value,
    dependents,
    in_order_of_use,
    ops,
    reachable,
)
from converter.ir.batch_norm import BatchNorm
from converter.ir.rewrite import rewrite
from converter.support.errors import UnsupportedError, UnsupportedSite
from converter.support.notes import Note
from converter.training.batch_dependence import mixing

#: Names of the outputs that keep the input of a layer through the passes: this, and the layer.
_INPUT = "input of "
#: What Keras adds to the number of places that a mask leaves, of which it may leave none.
_EPSILON = 1e-7


def with_independent_inputs(graph: Graph, layers: Sequence[BatchNorm], change: Callable[[Graph], Graph]) -> Graph:
    """Return what a change makes of a graph, which leaves the inputs of the layers that may train as they are.

    Without it a scale before a layer, of another normalization for example, and that of the layer become one, and the
    statistics would be those of what stands before both.
    """
    marked = graph.copy()
    marked.outputs |= {_INPUT + layer.layer: _input_of(graph, layer) for layer in layers if layer.trainable}
    changed = change(marked)
    changed.outputs = {name: changed.outputs[name] for name in graph.outputs}
    return changed


def have_one_axis(graph: Graph, layers: Sequence[BatchNorm]) -> bool:
    """Return whether each layer that may train reads a batch of rows, the channels along one axis.

    It does as it was written; a graph whose layouts are others may have the channels in several parts.
    """
    read = [_along(graph, layer) for layer in layers if layer.trainable]
    return all(len(axes) <= 1 for _, axes in read) and mixing(graph, [x for x, _ in read]) is None


def in_training(graph: Graph, layers: Sequence[BatchNorm], trained: Collection[str]) -> list[BatchNorm]:
    """Return the layers that take the statistics of the batch: all but those that the model or the scheme freezes.

    Their axis is that of the channels in this graph, whichever the model was written with. A scheme freezes a layer
    whose scale and shift do not train, where nothing before it does.
    """
    names = graph.parameter_names()
    moved = dependents(graph, (names[name] for name in trained))
    chosen = []
    for layer in layers:
        x = _input_of(graph, layer) if layer.trainable else None
        if x is None:
            continue
        before = {graph.parameters[v].name for v in reachable(graph, [x]) & graph.parameters.keys()}
        own = before | set(layer.weights)
        if x in moved or not own.isdisjoint(trained) or not own:
            chosen.append(replace(layer, axis=_axis_of(graph, layer)))
    return chosen


def without_masks(graph: Graph, layers: Sequence[BatchNorm]) -> Graph:
    """Return the graph in which only inputs of these layers, and outputs, are marked with masks: no others count."""
    kept = {*graph.outputs.values(), *(_input_of(graph, layer) for layer in layers)}
    return rewrite(graph, lambda b, n: n.inputs[0] if isinstance(n.op, ops.Masked) and n.output not in kept else None)


def with_statistics(graph: Graph, layers: Sequence[BatchNorm]) -> Graph:
    """Make the moving averages of layers state, and their inputs outputs, which `statistics_of` takes out."""
    marked = graph.copy()
    kept = {name for layer in layers for name in (layer.mean, layer.variance)}
    marked.parameters = {v: replace(p, kind="statistic") if p.name in kept else p for v, p in graph.parameters.items()}
    marked.outputs |= {_INPUT + layer.layer: _input_of(graph, layer) for layer in layers}
    return marked


def statistics_of(graph: Graph, layers: Sequence[BatchNorm]) -> tuple[Graph, dict[str, Value]]:
    """Return the graph without the outputs of `with_statistics`, and these by layer."""
    after = graph.copy()
    for layer in layers:
        if layer.counter is not None:
            first = np.array([layer.counted], np.float32)
            number = Parameter(layer.counter, first, trainable=False, kind="statistic")
            after.parameters[Value(TensorType(first.shape), layer.counter)] = number
    return after, {layer.layer: after.outputs.pop(_INPUT + layer.layer) for layer in layers}


def by_batch(graph: Graph, layers: Sequence[BatchNorm], inputs: Mapping[str, Value]) -> Graph:
    """Return the graph, which has the input `weight`, with statistics of the batch as updates of the averages.

    What an average makes of them is left to `following`. Rows of weight 0, and places that a mask leaves out, do not
    count in the statistics; all others count alike, as in Keras.
    """
    if not layers:
        return graph
    b, names = Builder(graph.copy()), graph.parameter_names()
    weight = next(v for v in graph.inputs if v.name == "weight")
    counts = b(ops.Cast(FLOAT32), b(ops.Greater(), weight, 0.0))
    rows = b(ops.Sum((0,)), counts)
    marks = graph.producers()
    b.graph.nodes, made = [], b.graph.nodes
    for layer in layers:
        x = inputs[layer.layer]
        mask = mark.inputs[1] if (mark := marks.get(x)) and isinstance(mark.op, ops.Masked) else None
        with b.at(Origin(layer.layer)):
            moments = _moments(b, x, mask, layer.axis, counts, rows)
            for name, value in zip((layer.mean, layer.variance), moments[:2], strict=True):
                parameter = names[name]
                b.graph.updates[parameter] = value
                made = [_reading(node, parameter, value) for node in made]
            if layer.unbiased:
                b.graph.updates[names[layer.variance]] = _unbiased(b, *moments[1:])
            if layer.counter is not None:
                b.graph.updates[names[layer.counter]] = b.constant(np.ones(1, np.float32))
    b.graph.nodes = in_order_of_use([*made, *b.graph.nodes])
    return b.graph


def following(graph: Graph, layers: Sequence[BatchNorm]) -> Graph:
    """Return the graph, whose updates of moving averages are a batch's statistics, with averages that follow these."""
    b, names = Builder(graph.copy()), graph.parameter_names()
    for layer in layers:
        with b.at(Origin(layer.layer, "", "update")):
            number = None
            if layer.counter is not None:
                counter = names[layer.counter]
                number = b.graph.updates[counter] = b(ops.Add(), counter, graph.updates[counter])
            for average in (names[layer.mean], names[layer.variance]):
                b.graph.updates[average] = _followed(b, average, graph.updates[average], layer.momentum, number)
    return b.graph


def batch_norm_notes(layers: Sequence[BatchNorm], chosen: Sequence[BatchNorm], by_default: bool) -> list[Note]:
    """Return what to say of each layer."""
    fixed = "batch normalization by the moving statistics, which stay as they are"
    more = "; batch_norm='train' trains with those of the batch" if by_default else ": it is not in what trains"
    taking = {layer.layer for layer in chosen}
    return [
        Note(layer.layer, "trains", "batch normalization by the batch in `train`, by the moving averages elsewhere")
        if layer.layer in taking
        else Note(layer.layer, "fixed", fixed + (more if layer.trainable else ": the model freezes it"))
        for layer in layers
    ]


def _followed(b: Builder, average: Value, batch: Value, momentum: float | None, number: Value | None) -> Value:
    """Return what a batch makes of a moving average; `number`: that of the batch, 1, 2, ..."""
    if momentum is None:
        assert number is not None, "the mean of all batches needs their number"
        return b(ops.Add(), average, b(ops.Div(), b(ops.Sub(), batch, average), number))
    return b(ops.Add(), b(ops.Mul(), average, momentum), b(ops.Mul(), batch, 1 - momentum))


def _unbiased(b: Builder, variance: Value, many: Value) -> Value:
    """Return the unbiased variance of so many numbers, of one number 0."""
    fewer = b(ops.Maximum(), b(ops.Sub(), many, 1.0), 1.0)
    return b(ops.Mul(), variance, b.reshape(b(ops.Div(), many, fewer), ()))


def _moments(
    b: Builder, x: Value, mask: Value | None, axis: int, counts: Value, rows: Value
) -> tuple[Value, Value, Value]:
    """Return mean and biased variance of each channel, over the rows and places that count, and their number."""
    axis = axis % len(x.shape)
    others = tuple(i for i in range(len(x.shape)) if i != axis)
    weight = b.reshape(counts, (x.shape[0], *(1,) * (len(x.shape) - 1)))
    if mask is None:
        many = b(ops.Mul(), rows, float(prod(x.shape[i] for i in others if i)))
    else:  # what lies along the last axis is masked together, whichever that of the channels is
        weight = b(ops.Mul(), weight, b.reshape(mask, (*x.shape[:-1], 1)))
        every = weight if axis == len(x.shape) - 1 else b(ops.BroadcastTo(x.shape), weight)
        many = b(ops.Add(), b(ops.Sum(others, keepdims=True), every), _EPSILON)

    def mean(values: Value) -> Value:
        return b(ops.Div(), b(ops.Sum(others, keepdims=True), b(ops.Mul(), values, weight)), many)

    center = mean(x)
    deviation = b(ops.Sub(), x, center)
    channels = (x.shape[axis],)
    return b.reshape(center, channels), b.reshape(mean(b(ops.Mul(), deviation, deviation)), channels), many


def _reading(node: Node, before: Value, after: Value) -> Node:
    """Return the node with another operand, where it reads the one before."""
    if before not in node.inputs:
        return node
    return replace(node, inputs=tuple(after if v is before else v for v in node.inputs))


def _axis_of(graph: Graph, layer: BatchNorm) -> int:
    """Return the axis of a layer's input along which its statistics lie."""
    x, along = _along(graph, layer)
    if along:
        (axis,) = along
        return axis
    ones = [i for i, size in enumerate(x.shape) if size == 1]  # of one channel any axis that has no more
    return layer.axis if not ones or layer.axis % len(x.shape) in ones else ones[-1]


def _along(graph: Graph, layer: BatchNorm) -> tuple[Value, list[int]]:
    """Return a layer's input, and its axes along which the statistics are more than one number."""
    x, statistics = _meeting(graph, layer)
    ahead = len(x.shape) - len(statistics.shape)
    return x, [ahead + i for i, size in enumerate(statistics.shape) if size != 1]


def _input_of(graph: Graph, layer: BatchNorm) -> Value:
    """Return what a layer normalizes: the value that meets its statistics. Raises UnsupportedError, as `_meeting`."""
    return _meeting(graph, layer)[0]


def _meeting(graph: Graph, layer: BatchNorm) -> tuple[Value, Value]:
    """Return what a layer normalizes, and what of its statistics meets it first.

    Raises:
        UnsupportedError: they meet several, or the layer is of a kind that Pocketune does not train.
    """
    names = graph.parameter_names()
    of_statistics = dependents(graph, (names[layer.mean], names[layer.variance]))
    fed = dependents(graph, graph.inputs)
    meetings = [n for n in graph.nodes if n.outputs[0] in fed and any(v in of_statistics - fed for v in n.inputs)]
    contracted = [(v, w) for n in meetings for v, w in _pairs(n) if v in fed and v not in of_statistics]
    reason = layer.problem
    # The scale of the input, and the shift behind it.
    if len(contracted) != 1 or len(meetings) != 2 or contracted[0][0].shape[0] != graph.inputs[0].shape[0]:
        reason = reason or "it is called more than once, or not on rows of the batch"
    if reason is not None:
        advice = (
            "Build with batch_norm='fixed', or freeze the layer: layer.trainable = False in Keras; in PyTorch put it "
            "into eval() and the module around it into train()."
        )
        site = UnsupportedSite("batch normalization in training", layer.layer, "", reason, advice)
        raise UnsupportedError(
            f"{layer.layer}: the statistics of the batch cannot be taken here: {reason}. {advice}",
            [site],
            page="batch-normalization",
        )
    return contracted[0]


def _pairs(node: Node) -> list[tuple[Value, Value]]:
    """Return each of two operands and the other one."""
    return [(x, y) for i, x in enumerate(node.inputs) for j, y in enumerate(node.inputs) if i != j]
