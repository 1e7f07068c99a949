"""Activation masks kept as int8 for the backward pass: a quarter of the bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from converter.backend import builtins as tfl
from converter.backend.builtins.quantized import Dequantize, Quantize
from converter.backend.lowering.rules.elementwise import HUGE
from converter.backend.peephole.masks import BOOST, clamp_of
from converter.ir import Graph, Node, Value
from converter.ir.types import Quantization

#: int8 of masks, which are 0 or 1 / BOOST, or 0 or -1 / BOOST: then the least number stands for what is below, too.
_OF_MASK, _BELOW = Quantization((1 / BOOST,), 0), Quantization((1 / BOOST / 128,), 0)
#: The same of a mask whose cotangent supplies no factor: it is 0 or 1.
_OF_ONES = Quantization((1.0,), 0)
#: Operators that make a mask: of what a ReLU6 gives three, and a RESHAPE.
_MOST = 4


def masks_in_int8(graph: Graph) -> Graph:
    """Return the lowered graph with masks made where their activations are, and kept in place of these.

    Before: y = Relu(x); z = f(y); ...; m = MINIMUM(y, 2^-64); dx = MUL(dy, m).
    After:  y = Relu(x); q = QUANTIZE(MINIMUM(y, 2^-64)); z = f(y); ...; m = DEQUANTIZE(q); dx = MUL(dy, m).

    Only of activations that nothing else after the forward pass reads. A positive mask is clamped first: kernels other
    than XNNPACK's take numbers beyond the range of int32 for negative ones. Negative ones are the least int8 with all
    of them, without a clamp. The same graph when it has no such masks.
    """
    makers, readers, results = graph.producers(), graph.consumers(), set(graph.results())
    place = {node: i for i, node in enumerate(graph.nodes)}
    early: dict[Node, list[Node]] = {}  # by the node that makes an activation, what makes its mask
    late: dict[Node, Node] = {}  # by the node that made a mask, what takes it from int8
    moved: set[Node] = set()
    for mask in (node for node in graph.nodes if node.origin.is_late and _quantization(graph, node) is not None):
        made = sorted(_made_late(mask, makers), key=place.__getitem__)
        activation = _only_read(made, graph)
        if len(made) > _MOST or activation is None or activation not in makers or activation in results:
            continue
        until_mask = {activation, *(node.output for node in made if node is not mask)}
        if any(reader.origin.is_late and reader not in made for value in until_mask for reader in readers[value]):
            continue
        of = _quantization(graph, mask)
        assert of is not None
        nodes, late[mask] = _in_int8(made, of)
        early.setdefault(makers[activation], []).extend(nodes)
        moved.update(made)
    if not late:
        return graph
    after = graph.copy()
    after.nodes = []
    for node in graph.nodes:
        if node in late:
            after.nodes.append(late[node])
        elif node not in moved:
            after.nodes += [node, *early.get(node, [])]
    return after


def _made_late(mask: Node, makers: Mapping[Value, Node]) -> list[Node]:
    """Return the nodes after the forward pass that make a mask, and itself; it ends with too many."""
    made = [mask]
    for node in made:
        before = [makers[v] for v in node.inputs if v in makers and makers[v].origin.is_late]
        made += [n for n in before if n not in made]
        if len(made) > _MOST:
            break
    return made


def _only_read(made: Sequence[Node], graph: Graph) -> Value | None:
    """Return the only value that nodes are made of, beside constants and each other."""
    read = {v for node in made for v in node.inputs} - {node.output for node in made} - graph.constants.keys()
    return read.pop() if len(read) == 1 else None


def _quantization(graph: Graph, node: Node) -> Quantization | None:
    """Return how the mask that a node makes is kept in int8; None where it makes none."""
    if clamp := clamp_of(graph, node):
        return _OF_MASK if clamp > 0 else _BELOW
    if not isinstance(node.op, tfl.Mul | tfl.DepthwiseConv2D) or node.op.activation != "RELU_N1_TO_1":
        return None
    scale, *bias = (graph.constants.get(v) for v in node.inputs[1:])
    scales = scale is not None and (scale == HUGE).all() and not any(b is None or b.any() for b in bias)
    return _OF_ONES if scales else None


def _in_int8(made: Sequence[Node], of: Quantization) -> tuple[list[Node], Node]:
    """Copies in the forward pass of the nodes that make a mask, with it as int8 last; and what takes it from there."""
    mask, copies, nodes = made[-1], dict[Value, Value](), list[Node]()
    is_below = of is _BELOW
    for node in made[:-1] if is_below else made:
        copies[node.output] = Value(node.output.type, node.output.name)
        inputs, origin = tuple(copies.get(v, v) for v in node.inputs), node.origin.in_phase("forward")
        nodes.append(replace(node, inputs=inputs, outputs=(copies[node.output],), origin=origin))
    source = mask.inputs[0] if is_below else mask.output
    kept = Value(Quantize(of).result(mask.output.type), f"{mask.output.name}/int8")
    nodes.append(Node(Quantize(of), (copies.get(source, source),), (kept,), mask.origin.in_phase("forward")))
    return nodes, Node(Dequantize((of,)), (kept,), mask.outputs, mask.origin)
