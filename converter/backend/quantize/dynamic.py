"""Dynamic range quantization of frozen layers among trained ones: int8 weights, forward and backward.

What they read changes as training goes on, so no range is fixed beforehand: the kernels find each row's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from converter.backend.quantize.choose import FrozenLayer, pays_dynamic_range
from converter.backend.targets import Target
from converter.ir import Graph, Node, Value, nested, ops
from converter.ir.rewrite import Rewriter, rewrite
from converter.ir.scales import of_weight

#: Ops with weights: what the targets' tables call them, and the builtin that computes them.
KINDS = {
    ops.MatMul: ("fully_connected", "FULLY_CONNECTED"),
    ops.Conv2D: ("conv", "CONV_2D"),
    ops.DepthwiseConv2D: ("depthwise", "DEPTHWISE_CONV_2D"),
}


def quantize_weights(graph: Graph, target: Target) -> tuple[Graph, tuple[FrozenLayer, ...]]:
    """Return a forward graph whose products and convolutions with constant weights have int8 ones where that pays.

    Before: MatMul(x, W), Conv2D(x, W).   After: Int8MatMul(x, W8), Int8Conv2D(x, W8), whose derivatives read the same
    integers.

    Returns:
        The graph, and what became of each of its frozen layers.
    """
    layers: list[FrozenLayer] = []

    def rule(b: Rewriter, node: Node) -> Value | None:
        kind, builtin = KINDS.get(type(node.op), ("", ""))
        if not kind or b.array(node.inputs[0]) is not None:
            return None
        x, w = node.inputs
        weight = b.array(w)
        if weight is None:
            return None
        takes = weight.ndim == 2 and not node.op.adj_x if kind == "fully_connected" else node.op.dilation == (1, 1)
        work = node.op.cost((x.type, w.type), (node.output.type,)).flops // 2
        if not takes or not pays_dynamic_range(kind, work, x.type, target):
            why = "among trained layers; int8 weights alone cost more than they save" if takes else "no int8 kernel"
            layers.append(FrozenLayer(node.origin.layer, builtin, "float32", why))
            return None
        layers.append(FrozenLayer(node.origin.layer, builtin, "dynamic range", "weights; among trained layers"))
        if kind == "fully_connected" and not node.op.adj_y:
            weight = np.ascontiguousarray(weight.T)
        of, stored = of_weight(weight, axis=0)
        operands = x, b.quantized(stored, of, w.name)
        if kind == "fully_connected":
            return b(ops.Int8MatMul(of), *operands)
        return b(ops.Int8Conv2D(node.op.strides, node.op.padding, node.op.dilation, of), *operands)

    return rewrite(graph, rule), tuple(layers)


def within_loops(model: Graph) -> Iterator[FrozenLayer]:
    """Yield the frozen layers in the bodies of loops, which stay as they are."""
    for graph in nested(model):
        for node in graph.nodes if graph is not model else ():
            if type(node.op) in KINDS and node.inputs[1] in graph.constants:
                yield FrozenLayer(node.origin.layer, KINDS[type(node.op)][1], "float32", "within a loop")
