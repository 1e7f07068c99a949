"""What an operator costs by the target's table, whatever form of which operation it is a part of."""

from __future__ import annotations

from math import prod

from converter.ir import Graph, Node
from converter.ir.types import RESOURCE
from converter.targets import Target

#: The rows of the table for multiply-accumulates, by the builtin.
_PRODUCTS = {
    "FULLY_CONNECTED": "fully_connected",
    "CONV_2D": "conv",
    "DEPTHWISE_CONV_2D": "depthwise",
    "TRANSPOSE_CONV": "transpose_conv",
}
#: The rows for bytes that are moved, by the builtin; all others are like XNNPACK's elementwise operators.
_MOVES = {
    "TRANSPOSE": "transpose",
    "SPACE_TO_DEPTH": "shuffled",
    "DEPTH_TO_SPACE": "shuffled",
    "SELECT_V2": "select",
    **dict.fromkeys(("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"), "compare"),
}
#: They only hand on memory.
_FREE = ("RESHAPE", "READ_VARIABLE", "ASSIGN_VARIABLE", "VAR_HANDLE", "CALL_ONCE")


def price(graph: Graph, node: Node, target: Target) -> float:
    """Cost of one run of a node of a lowered graph, in the unit of the target's table; of a loop, of one step."""
    if node.op.bodies():
        return sum(price(body, inner, target) for body in node.op.bodies() for inner in body.nodes)
    if node.op.code in _FREE:
        return 0.0
    inputs, outputs = tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs)
    cost = node.op.cost(inputs, outputs)
    if node.op.code == "BATCH_MATMUL":
        columns, matrices = outputs[0].shape[-1], prod(inputs[1].shape[:-2])
        rows = outputs[0].size // (columns * matrices)
        inner = inputs[1].size // (columns * matrices)
        return matrices * target.product(rows, inner, columns, node.inputs[1] in graph.constants)
    if node.op.code in _PRODUCTS:
        return target.macs(_row(graph, node, target), cost.flops // 2)
    moved = sum(t.nbytes for t in (*inputs, *outputs) if t.dtype != RESOURCE)
    return target.moved(_MOVES.get(node.op.code, "delegated"), moved)


def _row(graph: Graph, node: Node, target: Target) -> str:
    """The row of a product: by whether its weights are constant, and which of its operands are integers."""
    kind, weights = _PRODUCTS[node.op.code], node.inputs[1]
    if weights.type.quantization is None:
        how = "constant" if weights in graph.constants else "runtime"
    else:
        how = "dynamic" if node.output.type.quantization is None else "int8"
    # Tables hold what was measured: a depthwise convolution with runtime filters runs on the kernel of all others.
    return next(row for row in (f"{kind}.{how}", f"conv.{how}", f"{kind}.constant") if row in target.per_mac)
