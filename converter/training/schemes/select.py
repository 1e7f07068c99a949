"""Scheme application: frozen parameters become constants, partly trained layers are split."""

from __future__ import annotations

from converter.ir import Graph, Node, Parameter, Value
from converter.ir.rewrite import Rewriter, eliminate_dead_code, rewrite
from converter.support.errors import UnsupportedError
from converter.training.schemes.scheme import SchemeRow
from converter.training.schemes.structure import is_cut_by


def select(graph: Graph, rows: list[SchemeRow]) -> Graph:
    """Return the graph in which only trained weights are parameters.

    A weight of which a fraction r trains is cut along its input channels and its op is split:
    conv(x, W) = conv(x[:k], W_trained) + conv(x[k:], W_frozen). The frozen part keeps its constant weight and fast
    kernel, the gradient op is narrow, and only x[:k] is kept for the backward pass.

    Raises:
        UnsupportedError: a fraction is asked for a weight that is used more than once, or not as a weight.
    """
    names = graph.parameter_names()
    selected = graph.copy()
    partly: dict[Value, tuple[Value, Value]] = {}
    for row in rows:
        if row.parameter not in names:
            continue  # it is a constant of integers already
        value = names[row.parameter]
        parameter = graph.parameters[value]
        if row.fraction == 1 or parameter.kind in ("statistic", "base"):
            continue
        del selected.parameters[value]
        if row.fraction == 0:
            selected.constants[value] = parameter.value
        else:
            partly[value] = _split(selected, value, parameter, row)

    def split(b: Rewriter, node: Node) -> Value | None:
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        if weight is None or weight not in partly:
            return None
        return node.op.split(b, *node.inputs, *partly[weight])

    return rewrite(selected, split) if partly else eliminate_dead_code(selected)


def _split(graph: Graph, value: Value, parameter: Parameter, row: SchemeRow) -> tuple[Value, Value]:
    """Adds the trained and the frozen part of a parameter to the graph."""
    users = [n for n in graph.nodes if value in n.inputs]
    if len(users) != 1 or not is_cut_by(users[0], value) or value in set(graph.results()):
        raise UnsupportedError(
            f"{row.parameter}: fraction {row.fraction:g} needs a weight that one dense or convolution layer reads as "
            f"it is; this one goes to {', '.join(str(n.op.name) for n in users)}. Train it whole (1) or not "
            "at all (0).",
            page="update-rules",
        )
    axis = users[0].op.channel_axis(value.type)
    channels = value.shape[axis]
    k = round(row.fraction * channels)
    trained = parameter.viewed(("slice", axis, 0, k))
    frozen = parameter.viewed(("slice", axis, k, channels)).value
    part = Value(value.type.with_shape(trained.value.shape), value.name)
    rest = Value(value.type.with_shape(frozen.shape), value.name)
    graph.parameters[part] = trained
    graph.constants[rest] = frozen
    return part, rest
