"""Choice of int8 layers: whole regions around convolutions, where the target's table says that they pay.

A convolution with int8 weights and float32 activations is slower than a float32 one, so a region takes in all that
stands between its convolutions, and what crosses its border is converted once. Dense layers outside of such regions
get int8 weights only (`dynamic range`), which is nearly as fast for them and follows each row's own range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from converter.backend import builtins as tfl
from converter.backend.targets import Target
from converter.ir import FLOAT32, Graph, Node, TensorType, Value

Form = Literal[
    "int8", "dynamic range", "int4", "int4-dynamic", "int4-blockwise", "int8-blockwise", "float16", "float32"
]

#: Padding below this never wins in a max pool.
NEVER = -1e30


@dataclass(frozen=True)
class FrozenLayer:
    """A frozen layer in the report of a build.

    Attributes:
        layer: its path in the user's model.
        operator: the TFLite builtin that computes it.
        form: `int8` (weights and activations), `dynamic range` (weights), `int4-dynamic` (the same in int4, exact in
            the backward pass), `int4`, `int4-blockwise`, `int8-blockwise` or `float16` (weights, exactly multiplied) or
            `float32`.
        why: in words.
    """

    layer: str
    operator: str
    form: Form
    why: str


def macs(node: Node) -> int:
    """Multiply-accumulates of a node."""
    return node.op.cost(tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs)).flops // 2


def choose(graph: Graph, target: Target) -> tuple[set[Node], dict[Node, str]]:
    """Return the nodes of a lowered forward graph that become int8, and why the other ones with weights do not."""
    takes = {node for node in graph.nodes if _has_int8_kernel(graph, node)}
    chosen: set[Node] = set()
    why = {n: "no int8 kernel" for n in graph.nodes if n.op.int8_weights and n not in takes}
    for region in _regions(graph, takes):
        if not any(type(n.op) in (tfl.Conv2D, tfl.DepthwiseConv2D) for n in region):
            why |= dict.fromkeys(region, "no convolution around it")
        elif _costs_less(graph, region, target):
            chosen |= region
        else:
            why |= dict.fromkeys(region, "converting what goes in and out costs more than it saves")
    return chosen, why


def pays_dynamic_range(kind: str, work: int, x: TensorType, target: Target) -> bool:
    """Return whether int8 weights alone pay: `work` multiply-accumulates with float32 activations x."""
    if f"{kind}.dynamic" not in target.per_mac:
        return False
    converted = target.moved("delegated", x.size * 5)
    return target.macs(f"{kind}.dynamic", work) + converted < target.macs(f"{kind}.constant", work)


def is_dense(graph: Graph, node: Node) -> bool:
    """Return whether a node is a dense layer with a constant weight."""
    return type(node.op) is tfl.FullyConnected and node.inputs[1] in graph.constants


def _has_int8_kernel(graph: Graph, node: Node) -> bool:
    kind, activations = type(node.op), [v for v in node.inputs if v not in graph.constants]
    if any(v.dtype != FLOAT32 for v in (*node.inputs, *node.outputs)) or not activations:
        return False
    if node.op.int8_weights:
        return all(v in graph.constants for v in node.inputs[1:])
    if kind is tfl.PadV2:  # around a max pool: zeros serve as well where nothing is negative
        readers = [n for n in graph.nodes if node.output in n.inputs]
        pooled = node.output not in graph.outputs.values() and all(type(n.op) is tfl.MaxPool2D for n in readers)
        return node.op.value < NEVER and pooled and _is_positive(graph, node.inputs[0])
    maker = graph.producers().get(node.inputs[0])
    if kind is tfl.MaxPool2D and maker is not None and type(maker.op) is tfl.PadV2:
        return _has_int8_kernel(graph, maker)  # no scale holds its padding and the numbers, too
    if node.op.same_scale:
        return len(activations) == len(node.inputs)
    return node.op.rescales or (node.op.fixed_scale is not None and not _is_joined(graph, node.output))


def _is_joined(graph: Graph, value: Value) -> bool:
    """Return whether the integers of a value must have the scale of others: a fixed one may be too small for them."""
    readers = [n for n in graph.nodes if value in n.inputs and n.op.same_scale]
    return any(type(n.op) is tfl.Concatenation or _is_joined(graph, n.output) for n in readers)


def _is_positive(graph: Graph, value: Value) -> bool:
    """Return whether no number is negative, because of the activation before it."""
    maker = graph.producers().get(value)
    if maker is not None and maker.op.same_scale:
        return all(_is_positive(graph, v) for v in maker.inputs)
    activation = getattr(maker.op, "activation", "NONE") if maker is not None else "NONE"
    return activation in ("RELU", "RELU6") or (maker is not None and isinstance(maker.op, (tfl.Relu, tfl.Relu6)))


def _regions(graph: Graph, takes: set[Node]) -> Iterable[set[Node]]:
    """Return the connected parts of a set of nodes."""
    makers, readers, left = graph.producers(), graph.consumers(), dict.fromkeys(n for n in graph.nodes if n in takes)
    while left:
        region, waiting = set(), [next(iter(left))]
        while waiting:
            node = waiting.pop()
            if node not in left:
                continue
            del left[node]
            region.add(node)
            waiting += [makers[v] for v in node.inputs if v in makers]
            waiting += readers.get(node.output, [])
        yield region


def border(graph: Graph, region: set[Node]) -> tuple[list[Value], list[Value]]:
    """Return what goes into a region and what comes out of it."""
    made = dict.fromkeys(n.output for n in graph.nodes if n in region)
    read = dict.fromkeys(v for n in graph.nodes if n in region for v in n.inputs)
    outside = {v for n in graph.nodes if n not in region for v in n.inputs} | set(graph.outputs.values())
    return [v for v in read if v not in made and v not in graph.constants], [v for v in made if v in outside]


def _costs_less(graph: Graph, region: set[Node], target: Target) -> bool:
    elements = sum(v.type.size for side in border(graph, region) for v in side)
    converted = target.moved("delegated", 5 * elements)  # four bytes on one side, one on the other
    return converted + sum(_cost(n, target, "int8") for n in region) < sum(_cost(n, target, "constant") for n in region)


def _cost(node: Node, target: Target, kind: Literal["int8", "constant"]) -> float:
    if node.op.int8_weights:
        return target.macs(f"{node.op.product}.{kind}", macs(node))
    if node.op.keeps_data:
        return 0.0
    moved = sum(v.type.size for v in (*node.inputs, *node.outputs))
    return target.moved("delegated", moved * (1 if kind == "int8" else 4))
