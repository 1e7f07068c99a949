"""Reverse-mode differentiation of a Graph, pruned by construction.

A cotangent is built only for values that lie on a path from a wanted value to the loss, so nothing below the earliest
trained layer is differentiated and no residual is kept for it (sparse backpropagation, PockEngine, arXiv 2310.17752).

Where a cotangent may be infinite or NaN though all that is fed in is finite (`converter.ir.finite`), after a root of 0
for example, ops take the form of their derivative that cuts off by selecting (`Op.exact_vjp`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from converter.ir import Builder, Graph, Node, Op, Value, dependents, ops, reachable
from converter.ir.extent import Extent
from converter.ir.finite import Finiteness
from converter.support.errors import UnsupportedError, UnsupportedSite

_NOTHING: Mapping[Value, Extent] = MappingProxyType({})

#: By the class of an op whose derivative needs more than its operands and results: makes of the op, for each operand
#: whether its cotangent is asked for, and for each result whether it may get one, the op with more results for `vjp`.
#: The last argument says whether a cotangent may be infinite or NaN.
RESIDUALS: dict[type[Op], Callable[[Any, tuple[bool, ...], tuple[bool, ...], bool], Op]] = {}


def differentiate(
    graph: Graph,
    loss: Value,
    wanted: Iterable[Value],
    scale: float | Value = 1.0,
    extents: Mapping[Value, Extent] = _NOTHING,
) -> tuple[Graph, dict[Value, Value]]:
    """Appends the backward pass of a scalar to a graph.

    Args:
        graph: forward graph; it is not changed.
        loss: the scalar to differentiate.
        wanted: values whose gradient is asked for, usually the trained parameters.
        scale: what the gradients are multiplied by, from the beginning of the backward pass on; a number, or a scalar
            of the graph.
        extents: what is known of the graph's inputs.

    Returns:
        The graph with backward nodes after the forward ones, and the gradient of each wanted value. A wanted value
        that the loss does not depend on is absent.

    Raises:
        UnsupportedError: an op on the path has no derivative; names its layer and the user's source line.
    """
    b = Builder(graph.copy())
    return pull_back(b.graph, {loss: scale if isinstance(scale, Value) else b.constant(scale)}, wanted, extents=extents)


def pull_back(
    graph: Graph,
    cotangents: Mapping[Value, Value],
    wanted: Iterable[Value],
    infinite: bool = False,
    extents: Mapping[Value, Extent] = _NOTHING,
) -> tuple[Graph, dict[Value, Value]]:
    """Appends the backward pass of any results to a graph.

    Args:
        graph: forward graph; it is not changed.
        cotangents: for each result the value, of the same type, with which the backward pass begins.
        wanted: values whose cotangent is asked for.
        infinite: whether those that it begins with may be infinite or NaN.
        extents: what is known of the graph's inputs.

    Returns:
        The graph with backward nodes after the forward ones, and the cotangent of each wanted value on which a result
        depends.

    Raises:
        UnsupportedError: an op on the path has no derivative; names its layer and the user's source line.
    """
    wanted = list(wanted)
    active = dependents(graph, wanted) & reachable(graph, cotangents)
    b = Builder(graph.copy())
    finite = Finiteness(graph, extents)
    b.graph.nodes = forward = [_with_residuals(node, active, infinite, finite) for node in graph.nodes]
    known = {value: cotangent for value, cotangent in cotangents.items() if value in active}
    unsure = set(known) if infinite else set()  # whose cotangents may be infinite or NaN
    for node in reversed(forward.copy()):
        if not any(v in known for v in node.outputs) or not any(v in active for v in node.inputs):
            continue
        exactly = not unsure.isdisjoint(node.outputs) or any(map(finite.may_be_infinite, node.inputs))
        with b.at(node.origin.in_phase("backward")):
            for value, cotangent in _of_operands(b, node, known, active, exactly):
                before = known.get(value)
                known[value] = cotangent if before is None else b(ops.Add(), before, cotangent)
        if not (unsure.isdisjoint(node.outputs) and finite.has_finite_slope(node)):
            unsure.update(node.inputs)
    return b.graph, {value: known[value] for value in wanted if value in known}


def _with_residuals(node: Node, active: set[Value], infinite: bool, finite: Finiteness) -> Node:
    """Return the node with what its derivative needs as further results.

    A loop's cotangents may be infinite where anything in the graph may be: they are not known yet.
    """
    masks = tuple(v in active for v in node.inputs), tuple(v in active for v in node.outputs)
    add = RESIDUALS.get(type(node.op))
    if add is None or not any(masks[0]) or not any(masks[1]):
        return node
    op = add(node.op, *masks, infinite or finite.has_poles())
    if op is node.op:
        return node
    made = op.infer(*(v.type for v in node.inputs))
    types = made if isinstance(made, tuple) else (made,)
    more = tuple(Value(t, f"{node.origin.layer}/kept") for t in types[len(node.outputs) :])
    return replace(node, op=op, outputs=(*node.outputs, *more))


def _of_operands(
    b: Builder, node: Node, cotangents: dict[Value, Value], active: set[Value], exactly: bool
) -> Iterable[tuple[Value, Value]]:
    """Return the cotangents of a node's active operands."""
    single = len(node.outputs) == 1
    y = node.output if single else node.outputs
    dy = cotangents[node.output] if single else tuple(cotangents.get(v) for v in node.outputs)
    try:
        derivative = node.op.exact_vjp if exactly else node.op.vjp
        thunks = derivative(b, *node.inputs, y=y, dy=dy)
    except NotImplementedError as error:
        reason = f"{error}, and a trained weight's gradient flows through it"
        advice = "Freeze what lies before it, or write the layer with another operation."
        origin = node.origin
        site = UnsupportedSite(node.op.name, origin.layer, origin.source, reason, advice)
        raise UnsupportedError(f"{reason}: {origin}. {advice}", [site], page="gradients") from None
    for value, thunk in zip(node.inputs, thunks, strict=True):
        if value in active and thunk is not None:
            yield value, thunk()
