"""Operator fusion: biases and activations in the builtin before them, where that kernel has them for free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from converter.backend import builtins as tfl
from converter.ir import Graph, Node, Shape, Value
from converter.ir.rewrite import Rewriter, rewrite

ACTIVATIONS = {tfl.Relu: "RELU", tfl.Relu6: "RELU6"}
WITH_BIAS = (tfl.Conv2D, tfl.DepthwiseConv2D, tfl.FullyConnected)
WITH_ACTIVATION = (*WITH_BIAS, tfl.Add, tfl.Sub, tfl.Mul, tfl.Div)


def fuse(graph: Graph) -> Graph:
    """Before: RELU6(ADD(CONV_2D(x, W, 0), bias)).   After: CONV_2D[RELU6](x, W, bias).

    Before: ADD(RESHAPE(FULLY_CONNECTED(x, W)), bias).   After: RESHAPE(FULLY_CONNECTED(x, W, bias)).
    """
    return rewrite(rewrite(graph, _fuse_bias), _fuse_activation)


def _fuse_bias(b: Rewriter, node: Node) -> Value | None:
    """A constant bias goes into any of these kernels; a trained one only where the weight is trained too.

    It would throw an op with constant weights out of XNNPACK.
    """
    if not isinstance(node.op, tfl.Add) or node.op.activation != "NONE":
        return None
    for product, bias in (node.inputs, node.inputs[::-1]):
        before = _producer(b, product, WITH_BIAS)
        if before is None or kernel(before).activation != "NONE":
            continue
        x, weight, *old = before.inputs
        channels = product.shape[-1]
        per_channel = bias.shape[-1:] == (channels,) and bias.type.size == channels
        same_kind = b.array(bias) is not None or b.array(weight) is None
        no_bias_yet = not old or b.scalar(old[0]) == 0
        if per_channel and same_kind and no_bias_yet and bias is not product:
            array = b.array(bias)
            row = b.constant(np.reshape(array, channels), name=bias.name) if array is not None else bias
            row = _shaped(b, row, (channels,))
            return _shaped(b, _applied(b, before, kernel(before), x, weight, row), node.output.shape)
    return None


def _fuse_activation(b: Rewriter, node: Node) -> Value | None:
    activation = ACTIVATIONS.get(type(node.op))
    if activation is None:
        return None
    before = _producer(b, node.inputs[0], WITH_ACTIVATION)
    if before is None or kernel(before).activation != "NONE":
        return None
    made = _applied(b, before, replace(kernel(before), activation=activation), *before.inputs)
    return _shaped(b, made, node.output.shape)


def _shaped(b: Rewriter, value: Value, shape: Shape) -> Value:
    return value if value.shape == shape else b(tfl.Reshape(shape), value)


def _producer(b: Rewriter, value: Value, kinds: tuple) -> Node | None:
    """The node of such a kind that makes what nothing else reads, also where its rows are reshaped in between."""
    if not b.used_once(value):
        return None
    node = b.producer(value, tfl.Builtin)
    if node is not None and isinstance(node.op, tfl.Reshape) and value.shape[-1:] == node.inputs[0].shape[-1:]:
        return _producer(b, node.inputs[0], kinds)
    return node if node is not None and isinstance(kernel(node), kinds) else None


def kernel(node: Node) -> Any:
    """The builtin of a node, also where its weights are int8."""
    return node.op.op if isinstance(node.op, tfl.DynamicRange) else node.op


def _applied(b: Rewriter, before: Node, op: Any, *operands: Value) -> Value:
    """`op` in place of the builtin of a node."""
    if isinstance(before.op, tfl.DynamicRange):
        op = tfl.DynamicRange(tuple(v.type.quantization for v in operands), op)
    return b(op, *operands)
