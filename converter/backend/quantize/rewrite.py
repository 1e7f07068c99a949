"""Quantizing rewrite: chosen nodes on int8 operands, with conversions between int8 and float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from converter.backend import builtins as tfl
from converter.ir import Builder, Graph, Node, Quantization, Value
from converter.ir.scales import (
    LARGEST_BIAS,
    LARGEST_FACTOR,
    Range,
    least_weight_scales,
    of_bias,
    of_range,
    of_weight,
    weight_scales,
)
from converter.passes import eliminate_dead_code

#: XNNPACK adds numbers whose scales differ from the sum's by at most 2^10; half of that loses nothing.
_FINEST = 2.0**-9


def to_int8(graph: Graph, chosen: set[Node], dense: set[Node], seen: Mapping[Value, Range]) -> Graph:
    """Return a lowered graph in which the chosen nodes work on int8, and dense layers on int8 weights.

    Before: y = CONV_2D(x, w, b).   After: y = DEQUANTIZE(CONV_2D(QUANTIZE(x), w8, b32)); what stays between two
    chosen nodes is never float32.

    Args:
        graph: of float32 builtins.
        chosen: nodes that `choose` found.
        dense: dense layers that keep float32 activations.
        seen: the range of every activation that a chosen node reads or makes.
    """
    return _Rewriting(graph, chosen, dense, _quantizations(graph, chosen, seen)).run()


def _quantizations(graph: Graph, chosen: set[Node], seen: Mapping[Value, Range]) -> dict[Value, Quantization]:
    """Return how int8 stands for each activation; those tied by a builtin that hands integers on share one."""
    tied: dict[Value, Value] = {}

    def group(value: Value) -> Value:
        while value in tied:
            value = tied[value]
        return value

    wide = dict(seen)
    for node in chosen:
        if type(node.op) is tfl.PadV2:  # the number that never wins is not among those to stand for
            wide[node.output] = wide[node.inputs[0]]
    for node in reversed(graph.nodes):
        if node not in chosen:
            continue
        if type(node.op) in (tfl.Add, tfl.Sub):
            low, high = wide[node.output]
            for value in node.inputs:
                if value in wide:
                    wide[value] = wide[value].widened((high - low) * _FINEST)
        if node.op.same_scale or type(node.op) is tfl.PadV2:
            for value in node.inputs:
                if group(value) is not group(node.output):
                    tied[group(value)] = group(node.output)
    joined: dict[Value, Range] = {}
    for value, range_ in wide.items():
        root = group(value)
        joined[root] = joined[root] | range_ if root in joined else range_
    fixed = {group(n.output): n.op.fixed_scale for n in graph.nodes if n in chosen and n.op.fixed_scale is not None}

    def quantization(value: Value) -> Quantization:
        if (array := graph.constants.get(value)) is not None:
            return of_range(float(array.min()), float(array.max()))
        return fixed.get(group(value)) or of_range(*joined[group(value)])

    def step(node: Node) -> float:
        """Return the largest quantisation step among the node's sums or products."""
        if node.op.int8_weights:
            of_x, to = quantization(node.inputs[0]), quantization(node.output)
            weight, bias, axis = _weight_and_bias(graph, node)
            largest = float(weight_scales(weight, axis, least_weight_scales(bias, of_x, to)).max())
            # In steps of the result, too, a bias must fit into int32, where kernels hold it before they cut it off.
            return max(of_x.scale * largest, LARGEST_FACTOR * float(np.abs(bias).max()) / LARGEST_BIAS)
        scales = [quantization(v).scale for v in node.inputs]
        return prod(scales) if node.op.factors else max(scales)

    # What was 0 on all samples, or nearly, gets no finer steps than what it is made of. A wider range may be that of
    # what earlier nodes read, so all are looked at until none is wider. Where a product's operand has the steps of the
    # result, no width helps.
    scaled = [n for n in graph.nodes if n in chosen and (n.op.int8_weights or n.op.rescales)]
    scaled = [n for n in scaled if not n.op.factors or all(group(v) is not group(n.output) for v in n.inputs)]
    for _ in scaled:
        before = dict(joined)
        for node in scaled:
            root = group(node.output)
            joined[root] = joined[root].widened(255 * step(node) / LARGEST_FACTOR)
        if joined == before:
            break
    return {value: quantization(value) for value in wide}


def _weight_and_bias(graph: Graph, node: Node) -> tuple[np.ndarray, np.ndarray, int]:
    """Those of a convolution or dense layer (zeros where it has no bias), and the weight's axis that the bias has."""
    weight, *bias = (graph.constants[v] for v in node.inputs[1:])
    axis = 3 if isinstance(node.op, tfl.DepthwiseConv2D) else 0
    return weight, bias[0] if bias else np.zeros(weight.shape[axis]), axis


class _Rewriting:
    def __init__(
        self, graph: Graph, chosen: set[Node], dense: set[Node], quantizations: Mapping[Value, Quantization]
    ) -> None:
        self.before, self.chosen, self.quantizations = graph, chosen, quantizations
        self.b = Builder(Graph(list(graph.inputs), dict(graph.constants), dict(graph.parameters)))
        self.int8: dict[Value, Value] = {}  # a value before -> as int8
        self.made = {node.output for node in chosen}
        self.dense = {node.output for node in dense}
        self.floats: dict[Value, Value] = {}  # what a chosen node makes -> as float32

    def run(self) -> Graph:
        for node in self.before.nodes:
            with self.b.at(node.origin):
                if node in self.chosen:
                    self.int8[node.output] = self.emit(node)
                    continue
                node = replace(node, inputs=tuple(map(self.as_float, node.inputs)))
                self.b.append(self.with_int8_weights(node) if node.outputs[0] in self.dense else node)
        self.b.graph.outputs = {name: self.as_float(v) for name, v in self.before.outputs.items()}
        return eliminate_dead_code(self.b.graph)

    def as_float(self, value: Value) -> Value:
        if value not in self.made:
            return value
        if value not in self.floats:
            self.floats[value] = self.b(tfl.Dequantize((self.quantizations[value],)), self.int8[value])
        return self.floats[value]

    def as_int8(self, value: Value) -> Value:
        if value not in self.int8:
            if (array := self.before.constants.get(value)) is not None:
                quantization = of_range(float(array.min()), float(array.max()))
                self.int8[value] = self.b.quantized(quantization.stored(array), quantization, value.name)
            else:
                self.int8[value] = self.b(tfl.Quantize(self.quantizations[value]), value)
        return self.int8[value]

    def emit(self, node: Node) -> Value:
        to = self.quantizations[node.output]
        operands = [self.as_int8(node.inputs[0])]
        op = node.op
        if op.int8_weights:
            operands += self.weights(node, operands[0], to)
        else:
            operands += map(self.as_int8, node.inputs[1:])
        if type(op) in (tfl.Relu, tfl.Relu6):  # XNNPACK has them only behind something else
            op = tfl.Add("RELU" if type(op) is tfl.Relu else "RELU6")
            of = self.quantizations[node.inputs[0]]
            operands.append(self.b.quantized(of.stored(np.zeros(1)), of, "zero"))
        if type(op) is tfl.PadV2:
            op = tfl.Pad(op.paddings)
        return self.b(tfl.Int8(tuple(v.type.quantization for v in operands), op, to), *operands)

    def with_int8_weights(self, node: Node) -> Node:
        """Return a dense layer whose weight has one scale a row."""
        x, w, *bias = node.inputs
        of, stored = of_weight(self.before.constants[w], axis=0)
        op = tfl.DynamicRange((None, of, *(None for _ in bias)), node.op)
        return replace(node, op=op, inputs=(x, self.b.quantized(stored, of, w.name), *bias))

    def weights(self, node: Node, x: Value, to: Quantization) -> list[Value]:
        """Return the weight and the bias of a convolution or dense layer."""
        weight, bias, axis = _weight_and_bias(self.before, node)
        of_x = x.type.quantization
        assert of_x is not None
        of_w, stored = of_weight(weight, axis, least_weight_scales(bias, of_x, to))
        values = [self.b.quantized(stored, of_w, node.inputs[1].name)]
        if len(node.inputs) > 2:
            of_b, stored_bias = of_bias(bias, of_x, of_w)
            values.append(self.b.quantized(stored_bias, of_b, node.inputs[2].name))
        return values
