"""What the parameters of a model are to each other: roles, blocks, order of use, as the graph shows them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from converter.ir import Graph, Node, Op, Parameter, Value, ops
from converter.sparse.lora import Place, find_place

CONTRACTIONS = (ops.MatMul, ops.Conv2D, ops.DepthwiseConv2D, ops.Conv2DInputGrad)
_PER_CHANNEL: dict[type[Op], str] = {ops.Add: "bias", ops.Sub: "bias", ops.Mul: "scale"}
#: What hands a parameter on, whole or in parts (the groups of a convolution).
_THROUGH = (ops.Reshape, ops.BroadcastTo, ops.Transpose, ops.Slice)


@dataclass(frozen=True)
class Member:
    """A parameter and its place in the model.

    Attributes:
        role: `kernel` (weight of a product or convolution), `embedding`, `bias` (added, one number a channel),
            `scale` (multiplied, one number a channel) or `other`.
        layer: name of the layer that owns it: the parameter's name without its last part.
        block: the group of layers that it belongs to (see `block_of`).
        channels: input channels that a fraction is taken of; 0 where the weight cannot be cut.
        uses: how the model reads it, in words.
        place: where a low-rank adapter of it would be, or why there is none.
        products: products of two activations (the scores and the mix of an attention) before the model first uses it.
    """

    value: Value
    parameter: Parameter
    role: str
    layer: str
    block: str
    channels: int
    uses: str
    place: Place | str
    products: int

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.parameter.name


def members(graph: Graph, blocks: Sequence[str] | None = None) -> list[Member]:
    """All parameters in the order in which the model first uses them."""
    readers = graph.consumers()
    first_use: dict[Value, int] = {}
    for index, node in enumerate(graph.nodes):
        for value in node.inputs:
            first_use.setdefault(value, index)
    ordered = sorted(graph.parameters, key=lambda v: first_use.get(v, len(graph.nodes)))
    products = _products(graph)
    outer = _common_path([p.name for p in graph.parameters.values()])
    return [
        Member(
            v,
            p,
            role_of(v, readers),
            p.name.rpartition("/")[0] or p.name,
            outer + block_of(p.name.removeprefix(outer)) if blocks is None else block_of(p.name, blocks),
            _channels(v, readers.get(v, [])),
            _uses(readers.get(v, [])),
            find_place(v, readers),
            products[first_use.get(v, len(graph.nodes))],
        )
        for v, p in ((v, graph.parameters[v]) for v in ordered)
    ]


def _products(graph: Graph) -> list[int]:
    """For each place in the graph, its end too, how many products of two activations come before."""
    activations, before = set(graph.inputs), [0]
    for node in graph.nodes:
        computed = [value in activations for value in node.inputs]
        before.append(before[-1] + (isinstance(node.op, ops.MatMul) and all(computed)))
        if any(computed):
            activations |= set(node.outputs)
    return before


def _common_path(names: Sequence[str]) -> str:
    """What all names begin with, up to a "/": the model's own name tells no block from another."""
    paths = [name.split("/")[:-2] for name in names]  # a weight and its layer say more than the model
    common = 0
    while paths and all(len(p) > common and p[common] == paths[0][common] for p in paths):
        common += 1
    return "".join(f"{part}/" for part in paths[0][:common]) if paths else ""


def _channels(value: Value, readers: list[Node]) -> int:
    if len(readers) == 1 and hasattr(readers[0].op, "split") and readers[0].inputs[1] is value:
        return readers[0].op.input_channels(readers[0].inputs[0].type, value.type)
    return 0


def _uses(readers: list[Node]) -> str:
    kinds = ", ".join(dict.fromkeys(node.op.name for node in readers)) or "nothing"
    return f"a weight of {kinds}" if len(readers) == 1 else f"a weight used {len(readers)} times ({kinds})"


def role_of(value: Value, readers: dict[Value, list[Node]]) -> str:
    """How the graph uses a parameter."""
    roles: set[str] = set()
    for node in readers.get(value, []):
        if isinstance(node.op, _THROUGH):
            roles.add(role_of(node.output, readers))
        elif node.op.bodies():
            roles |= _roles_in_bodies(node, value)
        elif isinstance(node.op, CONTRACTIONS):
            roles.add("kernel" if value is node.inputs[1] or isinstance(node.op, ops.MatMul) else "other")
        elif isinstance(node.op, ops.Gather):
            roles.add("embedding")
        elif max(value.shape, default=1) == value.type.size:
            roles.add(_PER_CHANNEL.get(type(node.op), "other"))
        else:
            roles.add("other")
    if "kernel" in roles:
        return "kernel"
    return roles.pop() if len(roles) == 1 else "other"


def _roles_in_bodies(node: Node, value: Value) -> set[str]:
    """How the steps of a loop use one of its operands."""
    places = [k for k, operand in enumerate(node.inputs) if operand is value]
    inner = [(body.inputs[k], body.consumers()) for body in node.op.bodies() for k in places]
    return {role_of(v, readers) for v, readers in inner if v in readers}


def block_of(name: str, blocks: Sequence[str] | None = None) -> str:
    """The block of a parameter: one of the given prefixes, else its name up to the first number, else its layer.

    `block_13_expand/kernel` is in `block_13`, `encoder/layers/3/attention/query` in `encoder/layers/3`,
    `predictions/kernel` in `predictions`.
    """
    for prefix in blocks or ():
        if name == prefix or name.startswith(f"{prefix.rstrip('/')}/"):
            return prefix
    numbered = re.match(r"(.*?\d+)(?=[_/.]|$)", name)
    return numbered.group(1) if numbered else name.rpartition("/")[0] or name
