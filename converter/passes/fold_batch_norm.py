"""Folds a per-channel scale behind a convolution or matrix product into its weight."""

from __future__ import annotations

from converter.ir import Graph, Node, Value, dependents, ops
from converter.passes.rewrite import Rewriter, rewrite


def fold_batch_norm(graph: Graph) -> Graph:
    """Moves a scale of the output channels onto the weight, where it is smaller and, if frozen, gone.

    Before: Mul(Conv2D(x, W), scale).   After: Conv2D(x, Mul(W, scale)).
    With W frozen the product is folded away. With W trained it stays in the program as an op on the weight: the trained
    tensor keeps its meaning, and so do its gradient and its optimizer state. A trained scale on a frozen weight is left
    alone: its gradient would need the gradient of the whole weight.
    """
    trained = dependents(graph, graph.parameters)

    def fold(b: Rewriter, node: Node) -> Value | None:
        if not isinstance(node.op, ops.Mul):
            return None
        for product, scale in (node.inputs, node.inputs[::-1]):
            channels = _per_channel(scale, product)
            if channels is not None and _takes_scale(b, product, scale in trained, trained):
                return _scaled(b, product, b.reshape(scale, (channels,)))
        return None

    return rewrite(graph, fold)


def _per_channel(scale: Value, product: Value) -> int | None:
    """The number of channels when `scale` has one number for each element of the last axis of `product`."""
    channels = product.shape[-1] if product.shape else 0
    one_each = scale.shape[-1:] == (channels,) and scale.type.size == channels
    return channels if one_each and channels > 1 and len(scale.shape) <= len(product.shape) else None


def _takes_scale(b: Rewriter, product: Value, scale_trained: bool, trained: set[Value]) -> bool:
    if not b.used_once(product):
        return False
    if node := b.producer(product, ops.Add):  # the two halves of a channel-sparse layer
        return all(v.shape == product.shape and _takes_scale(b, v, scale_trained, trained) for v in node.inputs)
    node = (
        b.producer(product, ops.Conv2D) or b.producer(product, ops.DepthwiseConv2D) or b.producer(product, ops.MatMul)
    )
    if node is None:
        return False
    weight = node.inputs[1]
    is_weight = weight in b.graph.constants or weight in b.graph.parameters
    return is_weight and (weight in trained or not scale_trained)


def _scaled(b: Rewriter, product: Value, scale: Value) -> Value:
    if node := b.producer(product, ops.Add):
        return b(ops.Add(), *(_scaled(b, v, scale) for v in node.inputs))
    node = (
        b.producer(product, ops.Conv2D) or b.producer(product, ops.DepthwiseConv2D) or b.producer(product, ops.MatMul)
    )
    assert node is not None
    x, weight = node.inputs
    axis = _output_axis(node, weight)
    spread = b.reshape(scale, _along(axis, weight))
    with b.at(node.origin):
        return b(node.op, x, b(ops.Mul(), weight, spread))


def _along(axis: int, weight: Value) -> tuple[int, ...]:
    return tuple(size if i == axis else 1 for i, size in enumerate(weight.shape))


def _output_axis(node: Node, weight: Value) -> int:
    """The axis of the weight that runs over output channels."""
    match node.op:
        case ops.Conv2D():
            return 0
        case ops.MatMul(adj_y=True):
            return len(weight.shape) - 2
    return len(weight.shape) - 1
