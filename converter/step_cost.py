"""What a training step costs by the table of its target: every operator in the form that it has; and its traffic."""

from __future__ import annotations

from math import prod

from converter.ir import Graph, Node
from converter.schedule import how
from converter.targets import Target
from converter.tflite import builtins as tfl
from converter.tflite.builtins.quantized import DynamicRange, Int8

#: Builtins whose movement of data has figures of its own; others that the delegate leaves cost what shuffling does.
_MOVED = {
    "TRANSPOSE": "transpose",
    "SELECT_V2": "select",
    **dict.fromkeys(("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"), "compare"),
}
_WEIGHTED: dict[type, str] = {
    tfl.FullyConnected: "fully_connected",
    tfl.Conv2D: "conv",
    tfl.DepthwiseConv2D: "depthwise",
    tfl.TransposeConv: "transpose_conv",
}


def step_cost(graph: Graph, target: Target) -> int:
    """The cost of running a lowered graph once, in the unit of the target's table."""
    return round(sum(operator_cost(graph, node, target) for node in graph.nodes))


def step_traffic(graph: Graph, target: Target) -> int:
    """Bytes that operators of a lowered graph read and write in a run, of those whose operands outgrow the cache.

    No table of instructions sees them. What a larger cache than a core's own still holds is counted, too.
    """
    return sum(_traffic(graph, node, target) for node in graph.nodes)


def _traffic(graph: Graph, node: Node, target: Target) -> int:
    match node.op:
        case tfl.VarHandle() | tfl.ReadVariable() | tfl.AssignVariable() | tfl.CallOnce():
            return 0
        case tfl.While() as loop:
            return loop.steps * sum(step_traffic(body, target) for body in loop.bodies())
        case tfl.Reshape() if how(graph, node, target.lanes) is not None:
            return 0
    touched = sum(v.type.nbytes for v in (*node.inputs, *node.outputs))
    return touched if touched > target.cache_bytes else 0


def operator_cost(graph: Graph, node: Node, target: Target) -> float:
    """The cost of running one operator of a lowered graph once; of a loop, of all its steps."""
    op, inputs, outputs = node.op, [v.type for v in node.inputs], [v.type for v in node.outputs]
    delegated = how(graph, node, target.lanes) is not None
    match op:
        case tfl.VarHandle() | tfl.ReadVariable() | tfl.AssignVariable() | tfl.CallOnce():
            return 0.0
        case tfl.While():
            return op.steps * sum(step_cost(body, target) for body in op.bodies())
        case tfl.Reshape() if delegated:
            return 0.0
        case tfl.BatchMatmul():
            k, n = inputs[0].shape[-2 if op.adj_x else -1], outputs[0].shape[-1]
            m = outputs[0].shape[-2]
            products = prod(inputs[1].shape[:-2])
            times = max(outputs[0].size // (m * n * products), 1)
            return products * target.product(m, k, n, node.inputs[1] in graph.constants, times=times)
        case Int8() | DynamicRange():
            form = f"{_WEIGHTED.get(type(op.op))}.{'int8' if isinstance(op, Int8) else 'dynamic'}"
            if form in target.per_mac:
                return target.macs(form, _macs(node))
        case tfl.FullyConnected():
            rows = inputs[0].size // inputs[0].shape[-1]
            form = "fully_connected.constant" if delegated else "fully_connected.runtime"
            return target.macs(form, _macs(node) // rows * target.tiled(rows))
        case tfl.DepthwiseConv2D() if (
            not delegated
        ):  # no table has a figure: at best as quick as the other convolutions
            return max(target.macs(form, _macs(node)) for form in ("depthwise.constant", "conv.runtime"))
        case tfl.Conv2D() | tfl.TransposeConv():
            return target.macs(f"{_WEIGHTED[type(op)]}.{'constant' if delegated else 'runtime'}", _macs(node))
    form = _MOVED.get(op.code, "delegated" if delegated else "shuffled")
    return target.moved(form, sum(t.nbytes for t in (*inputs, *outputs)))


def _macs(node: Node) -> int:
    return node.op.cost(tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs)).flops // 2
