"""Quantization-aware scaling (Lin et al. 2022): trained weights in int8 with their scales, updated in that grid.

A step computes with w = s q. Its update u of w, which plain descent makes of the gradient by w, moves q by u / s: the
gradient by q is s times that by w, and is scaled by s^-2, so that integers move as far as the numbers that they stand
for. Rounded to nearest, updates of less than half a step would be lost; what is below a step is rounded up as often as
it is large, by noise that is new in each step and has no part in what the model computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from converter.ir import INT8, UNSCALED, Builder, Graph, Node, Origin, Parameter, Shape, TensorType, Value, View, ops
from converter.ir.described import described, is_described
from converter.ir.quantization import Integers
from converter.ir.random_numbers import call_key, random_bits, uniform
from converter.ir.rewrite import eliminate_dead_code
from converter.training.optim import layer_of

#: The integer that stands for the largest number that a channel is built with: a weight may become a third larger.
BUILT = 96
#: What is less is 0: float32 holds no number by which the scale could be divided.
LEAST = 1e-30
#: A channel of less beside the largest one counts as zeros: decay left it, and by its own scale it could not grow.
DEAD = 2.0**-40
#: What the state tensor of a weight's scales is called: its name, and this.
SCALES = "/scales"
#: The state tensor that counts updates, exact up to 2^24 of them.
UPDATES = "random/update"
#: Who draws the noise; a model's own draws have small numbers.
_SITE = 1 << 20


def in_integers(graph: Graph) -> tuple[dict[str, Integers], dict[str, str]]:
    """Return how trained weights of a forward graph are stored in int8; and of the others why they are not.

    Scales are those of output channels: of the rows of a table, of the last axis where no layer reads the weight.
    """
    made, others = dict[str, Integers](), dict[str, str]()
    for value, parameter in graph.weights().items():
        axis = _channels(graph, value)
        if axis is None or value.type.size + 4 * value.shape[axis] >= value.type.nbytes:
            others[parameter.name] = "one number a channel, or few"
            continue
        stored = parameter.value.reshape(value.shape)
        count = value.shape[axis] if _in_model(parameter, value.shape, axis) else 1
        if is_described(stored):
            made[parameter.name] = Integers(described((count,), parameter.name + SCALES), axis, known=False)
        elif np.abs(stored).max() <= LEAST:
            others[parameter.name] = "built as zeros, which have no range"
        elif count > 1:
            made[parameter.name] = Integers(_scales(stored, axis), axis)
        else:
            made[parameter.name] = Integers(_scales(stored.reshape(1, -1), 0), axis)
    return made, others


def _scales(stored: np.ndarray, axis: int) -> np.ndarray:
    """Return the scales of a weight, float32 [n]; a channel of zeros has the largest of the others."""
    largest = np.abs(stored).max(tuple(i for i in range(stored.ndim) if i != axis))
    least = max(LEAST, largest.max() * DEAD)
    return (np.where(largest > least, largest, largest.max()) / BUILT).astype(np.float32)


def _channels(graph: Graph, value: Value) -> int | None:
    """Return the axis of a weight that runs over output channels; None of a vector."""
    if value.type.rank < 2:
        return None
    for node in (n for n in graph.nodes if value in n.inputs):
        if isinstance(node.op, ops.Gather) and node.inputs[0] is value:
            return int(node.op.axis)
        if isinstance(node.op, ops.Layer) and node.inputs[1] is value:
            return node.op.output_axis(value.type)
    return value.type.rank - 1


def with_integers(graph: Graph, made: Mapping[str, Integers], counter: tuple[Value, Parameter]) -> Graph:
    """Return a signature that keeps weights in int8.

    Before: y = f(x, w);              w' = w + u.
    After:  y = f(x, s * Real(q));    q' = Nearest(q + floor(u / s + noise)), from -128 to 127.

    Where an update is not finite, the scales of a weight become NaN, as the weight itself would.

    Args:
        graph: semantic; its parameters are stored as where `made` was found.
        made: how weights are stored, by name.
        counter: of updates; its parameter is in the state of what updates.
    """
    kept = {v: made[p.name] for v, p in graph.weights().items() if p.name in made}
    b = Builder(Graph(list(graph.inputs), dict(graph.constants)))
    stored = _stored(b, graph, kept)
    real = dict[Value, Value]()

    def numbers(value: Value, origin: Origin) -> Value:
        """Return a weight as the model computes with it."""
        if value in kept and value not in real:
            integers, scales = stored[value]
            with b.at(origin):
                real[value] = b(ops.Mul(), b(ops.Real(UNSCALED), integers), scales)
        return real.get(value, value)

    for node in graph.nodes:
        inputs = tuple(numbers(v, node.origin) for v in node.inputs)
        b.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    b.graph.outputs = {name: numbers(v, Origin()) for name, v in graph.outputs.items()}
    # The order of draws is a part of the definition.
    moved = [v for v, new in graph.updates.items() if v in kept and new is not v]
    moved.sort(key=lambda v: graph.parameters[v].name)
    b.graph.updates = {v: numbers(new, Origin(phase="update")) for v, new in graph.updates.items() if v not in kept}
    if moved:
        b.graph.parameters[counter[0]] = counter[1]
        _update(b, graph, moved, stored, real, counter[0])
    return eliminate_dead_code(b.graph)


def _stored(b: Builder, graph: Graph, kept: Mapping[Value, Integers]) -> dict[Value, tuple[Value, Value]]:
    """Adds the parameters of a graph, integers and scales in the place of weights; returns these by the weight."""
    stored = dict[Value, tuple[Value, Value]]()
    for value, parameter in graph.parameters.items():
        if value not in kept:
            b.graph.parameters[value] = parameter
            continue
        form = kept[value]
        name, against = parameter.name + SCALES, form.against(value.type.rank)
        shape = _in_model(parameter, value.shape, form.axis) if len(form.scales) > 1 else (1,)
        assert shape is not None
        integers = Value(TensorType(value.shape, INT8, UNSCALED), value.name)
        scales = Value(TensorType(against), value.name + SCALES)
        view = View((("reshape", against),))
        b.graph.parameters[integers] = replace(parameter, integers=form)
        b.graph.parameters[scales] = Parameter(name, form.scales.reshape(shape), view, kind="scale")
        stored[value] = integers, scales
    return stored


def _in_model(parameter: Parameter, stored: Shape, axis: int) -> Shape | None:
    """Return the shape of the scales of an axis of a stored weight beside the model's own layout: 1 where they repeat.

    None where they would lie there in another order.
    """
    places = np.arange(stored[axis], dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(len(stored))])
    whole = np.full(parameter.model_value.shape, -1, np.int32)
    parameter.view.scatter(whole, np.broadcast_to(places, stored))
    for i in range(whole.ndim):
        whole = np.compress((whole >= 0).any(tuple(j for j in range(whole.ndim) if j != i)), whole, i)
        first = np.take(whole, [0], i)
        whole = first if (whole == first).all() else whole
    return whole.shape if np.array_equal(whole.reshape(-1), np.arange(stored[axis])) else None


def _update(
    b: Builder,
    graph: Graph,
    moved: Sequence[Value],
    stored: Mapping[Value, tuple[Value, Value]],
    real: Mapping[Value, Value],
    counter: Value,
) -> None:
    """Adds what integers become where their weights move, and what says that an update was not finite."""
    made, sums = graph.producers(), list[Value]()
    with b.at(Origin("optimizer", "", "update")):
        b.graph.updates[counter] = b(ops.Add(), counter, 1.0)
        noises = _noises(b, counter, [v.shape for v in moved])
    for value, noise in zip(moved, noises, strict=True):
        integers, scales = stored[value]
        with b.at(Origin(layer_of(graph, value), "", "update")):
            adds, update = _moved_by(b, value, graph.updates[value], made, real)
            steps = b(ops.Div(), update, scales)
            ticks = b(ops.Floor(), b(ops.Add() if adds else ops.Sub(), noise, steps))
            b.graph.updates[integers] = b(ops.Nearest(UNSCALED), b(ops.Add(), b(ops.Real(UNSCALED), integers), ticks))
            sums.append(b.reshape(b.sum(steps, tuple(range(value.type.rank))), (1,)))
    with b.at(Origin("optimizer", "", "update")):
        total = sums[0] if len(sums) == 1 else b.reshape(b.sum(b(ops.Concat(0), *sums), (0,)), (1,))
        _, scales = stored[moved[0]]
        b.graph.updates[scales] = b(ops.Add(), scales, b(ops.Mul(), total, 0.0))


def _moved_by(
    b: Builder, value: Value, new: Value, made: Mapping[Value, Node], real: Mapping[Value, Value]
) -> tuple[bool, Value]:
    """Return what is added to a weight (True), or taken from it; the difference where a signature does neither."""
    node = made.get(new)
    if node is not None and isinstance(node.op, ops.Add | ops.Sub) and value in node.inputs:
        first, second = node.inputs
        other = second if first is value else first
        other = real.get(other, other)
        if other.shape == value.shape and (isinstance(node.op, ops.Add) or first is value):
            return isinstance(node.op, ops.Add), other
    return True, b(ops.Sub(), real.get(new, new), real[value])


def _noises(b: Builder, counter: Value, shapes: Sequence[Shape]) -> list[Value]:
    """Return noise of some shapes, each number in 0..1, 1 excluded, independent of any other one of its tensor.

    A number is the fraction of the sum of two that are drawn: one for its place on the first axes, and one for that on
    the others. So a tensor takes far fewer draws than it has numbers.
    """
    cuts = [min(range(1, len(s)), key=lambda k, s=s: prod(s[:k]) + prod(s[k:])) for s in shapes]  # type: ignore[misc]
    halves = [half for s, k in zip(shapes, cuts, strict=True) for half in ((*s[:k], *(1,) * len(s[k:])), s[k:])]
    bits = random_bits(b, b.reshape(call_key(b, counter, _SITE), ()), (sum(map(prod, halves)),))
    drawn, start, parts = uniform(b, bits), 0, list[Value]()
    for half in halves:
        parts.append(b.reshape(b.part(drawn, start, start + prod(half)), half))
        start += prod(half)
    sums = [b(ops.Add(), one, other) for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return [b(ops.Sub(), total, b(ops.Floor(), total)) for total in sums]
