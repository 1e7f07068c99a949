"""Lowering: every semantic op becomes TFLite builtins, in the form that is cheapest on the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from converter.backend import builtins as tfl
from converter.backend.lowering.context import Lowering, stored_shape
from converter.backend.lowering.forms import FormChoice
from converter.backend.lowering.rules import (
    conv,
    conv_filter_grad,
    depthwise,
    elementwise,
    labels,
    linear,
    loop,
    movement,
    normalize,
    pool,
    stored,
)
from converter.backend.targets import Target
from converter.ir import Graph, Node, Value, ops
from converter.ir.op import ShapeError
from converter.support.errors import UnsupportedError, UnsupportedSite
from converter.support.registry import collect

#: The rule of each semantic op.
RULES = collect(
    conv.lowers,
    conv_filter_grad.lowers,
    depthwise.lowers,
    elementwise.lowers,
    labels.lowers,
    linear.lowers,
    loop.lowers,
    movement.lowers,
    normalize.lowers,
    pool.lowers,
    stored.lowers,
)


def lower(graph: Graph, target: Target, report: list[FormChoice] | None = None) -> Graph:
    """Semantic graph -> graph of TFLite builtins. Inputs, parameters, outputs and updates keep their names.

    Args:
        graph: what to lower.
        target: where it will run.
        report: takes which form each op got, where there was a choice.

    Raises:
        UnsupportedError: an op has no lowering; names its layer and source line.
    """
    c = Lowering(target, lower)
    lowered: dict[Value, Value] = {}

    def leaf(value: Value) -> Value:
        return Value(value.type.with_shape(stored_shape(value.shape)), value.name)

    for value in graph.inputs:
        lowered[value] = leaf(value)
        c.graph.inputs.append(lowered[value])
    for value, parameter in graph.parameters.items():
        lowered[value] = leaf(value)
        c.graph.parameters[lowered[value]] = parameter
        if parameter.kind == "merged":
            c.later.add(lowered[value])
    readers = graph.consumers()
    for value, array in graph.constants.items():
        if value in readers and all(isinstance(node.op, tfl.Carried) for node in readers[value]):
            lowered[value] = Value(value.type, value.name)
            c.graph.constants[lowered[value]] = array
            continue
        of = value.type.quantization
        lowered[value] = c.constant(array, name=value.name) if of is None else c.quantized(array, of, value.name)
    c.shared = {lowered[v] for v, nodes in readers.items() if v in graph.constants and len(nodes) > 1}
    if target.reads_as_stored:
        _store_transposed(c, {lowered[v]: (v, nodes) for v, nodes in readers.items() if v in graph.constants})
    for node in graph.nodes:
        rule = RULES.get(type(node.op))
        if rule is None:
            raise _unsupported(node, f"no TFLite form of {node.op.name} is known")
        try:
            c.op = node.op.name
            with c.at(node.origin):
                result = rule(c, node.op, *(lowered[v] for v in node.inputs))
        except ShapeError as error:
            operands = ", ".join(str(v.type) for v in node.inputs)
            raise _unsupported(node, f"TFLite has no kernel for {node.op.name} of {operands} ({error})") from None
        results = result if isinstance(result, tuple) else (result,)
        for value, made in zip(node.outputs, results, strict=True):
            wanted = value.shape if isinstance(node.op, tfl.Carried) else stored_shape(value.shape)
            # A scalar is stored as [1], and that axis is in what a rule made of it.
            if () in [v.shape for v in node.inputs] and _longer(made.shape) == _longer(wanted):
                made = c.reshape(made, wanted)
            assert made.shape == wanted, f"{node!r} was lowered to {made!r}"
            lowered[value] = made
    if report is not None:
        report += c.choices
    c.graph.outputs = {name: lowered[v] for name, v in graph.outputs.items()}
    c.graph.updates = {lowered[p]: lowered[v] for p, v in graph.updates.items()}
    return c.graph


def _longer(shape: Sequence[int]) -> list[int]:
    """Return the sizes of the axes that are longer than one."""
    return [size for size in shape if size != 1]


def _store_transposed(c: Lowering, readers: Mapping[Value, tuple[Value, Sequence[Node]]]) -> None:
    """Transpose shared matrices that FULLY_CONNECTED of the forward pass reads so; `readers` by what they became."""
    for w, (value, nodes) in readers.items():
        products = w in c.shared and w.type.rank == 2 and all(_multiplies_by(node, value) for node in nodes)
        if products and any(not node.origin.is_late and node.op == ops.MatMul() for node in nodes):
            c.transposed[w] = linear.swapped(c, w)
    c.shared.update(c.transposed.values())


def _multiplies_by(node: Node, w: Value) -> bool:
    """Return whether an op is a product of rows with the matrix, either way round."""
    return isinstance(node.op, ops.MatMul) and not node.op.adj_x and node.inputs[1] is w is not node.inputs[0]


def _unsupported(node: Node, reason: str) -> UnsupportedError:
    origin, advice = node.origin, "Compute it in float32, or outside the model."
    site = UnsupportedSite(node.op.name, origin.layer, origin.source, reason, advice)
    return UnsupportedError(f"{reason}: {origin}. {advice}", [site], page="kernels")
