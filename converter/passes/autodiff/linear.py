"""Whether what is made of a value is a multiple of it: what may be multiplied before in place of behind."""

from __future__ import annotations

from collections.abc import Iterable

from converter.ir import Graph, Node, Value, dependents, ops, reachable

#: Linear in all operands together: each has to depend on the value.
_ADDED = (ops.Add, ops.Sub, ops.Concat)
#: Linear in each operand: one of them may depend on it.
_MULTIPLIED = (
    ops.Mul, ops.MatMul, ops.Conv2D, ops.Conv2DInputGrad, ops.Conv2DFilterGrad, ops.DepthwiseConv2D,
    ops.DepthwiseInputGrad, ops.DepthwiseFilterGrad,
)  # fmt: skip
#: Linear in the first operand, whatever the others are.
_FIRST = (
    ops.Neg, ops.Div, ops.Sum, ops.Mean, ops.CumSum, ops.Reshape, ops.Transpose, ops.BroadcastTo, ops.Slice,
    ops.Dilate, ops.Reverse, ops.Gather, ops.SumPool2D,
)  # fmt: skip
#: Linear in the last operand, whatever the others are.
_LAST = (ops.ReluGrad, ops.Relu6Grad, ops.MaxPoolGrad, ops.ScatterAdd)


def is_linear(graph: Graph, source: Value, results: Iterable[Value]) -> bool:
    """Whether each of the results is multiplied by a number where `source` is, as the operators say; if in doubt, not.

    A gradient is so in the cotangent of its loss, unless a person's own derivative does otherwise, as one that clips.
    """
    results = list(results)
    moving, needed = dependents(graph, [source]), reachable(graph, results)
    if not moving.issuperset(results):
        return False
    nodes = (node for node in graph.nodes if not needed.isdisjoint(node.outputs))
    return all(_is_linear(node, [v in moving for v in node.inputs], graph) for node in nodes)


def _is_linear(node: Node, moving: list[bool], graph: Graph) -> bool:
    op = node.op
    if not any(moving):
        return True
    # By the class itself: what derives from one, as its int8 form, may round by the size of its operand.
    if type(op) in _ADDED:
        return all(moved or _is_zero(graph, v) for moved, v in zip(moving, node.inputs, strict=True))
    if type(op) in _MULTIPLIED:
        return sum(moving) == 1
    if type(op) in _FIRST:
        return moving[0] and not any(moving[1:])
    if type(op) in _LAST:
        return moving[-1] and not any(moving[:-1])
    if isinstance(op, ops.Pad):
        return not op.value
    if isinstance(op, ops.Select):
        _, *cases = zip(moving, node.inputs, strict=True)
        return not moving[0] and all(moved or _is_zero(graph, v) for moved, v in cases)
    return False


def _is_zero(graph: Graph, value: Value) -> bool:
    array = graph.constants.get(value)
    return array is not None and not array.any()
