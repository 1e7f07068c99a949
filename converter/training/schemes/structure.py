"""Parameter roles, blocks and order of use, as the graph of a model shows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from converter.ir import Graph, Node, Op, Parameter, Value, ops
from converter.ir.graph import dependents
from converter.ir.paths import layer_of_weight, parts_of
from converter.training.schemes.blocks import named_block, numbered_blocks
from converter.training.schemes.ends import NOWHERE, ends_of
from converter.training.schemes.lora import Contraction, factor_of, find_place

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
        block: the group of layers that it belongs to (see `converter.training.schemes.blocks`).
        channels: input channels that a fraction is taken of; 0 where the weight cannot be cut.
        uses: how the model reads it, in words.
        place: where a low-rank adapter of it would be, or why there is none.
        products: products of two activations (the scores and the mix of an attention) before the model first uses it.
        depthwise: whether it is a weight of a depthwise convolution.
        leads_to: names of the kernels after it: of what they give some is computed with it.
        first_use, last_use: where in the graph the model reads it first and last.
        tied: whether it is a kernel that is looked up too, as an embedding that gives the logits.
        outputs: names of the outputs with a loss that depend on it.
        ends: of these, the ones whose last product with a weight, or distance to each row of a table, is with it.
        follows: of these, the ones on whose way from there it is used.
    """

    value: Value
    parameter: Parameter
    role: str
    layer: str
    block: str
    channels: int
    uses: str
    place: Contraction | str
    products: int
    depthwise: bool
    leads_to: frozenset[str]
    first_use: int
    last_use: int
    tied: bool
    outputs: frozenset[str]
    ends: frozenset[str]
    follows: frozenset[str]

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.parameter.name


def members(graph: Graph, blocks: Sequence[str] | None = None, scored: Collection[str] | None = None) -> list[Member]:
    """Return all parameters in the order in which the model first uses them.

    Args:
        graph: of the model.
        blocks: prefixes that name its blocks; None: the names tell them.
        scored: names of the outputs that the loss reads; None: all.
    """
    readers, results = graph.consumers(), set(graph.results())
    first_use: dict[Value, int] = {}
    for index, node in enumerate(graph.nodes):
        for value in node.inputs:
            first_use.setdefault(value, index)
    ordered = sorted(graph.parameters, key=lambda v: first_use.get(v, len(graph.nodes)))
    producers = graph.producers()
    roles = {v: role_of(v, readers, producers) for v in ordered}
    places = _blocks({graph.parameters[v].name: roles[v] == "kernel" for v in ordered}, blocks)
    products = _products(graph)
    places_of = {node.outputs[0]: index for index, node in enumerate(graph.nodes)}
    leads_to = _leads_to(graph, [v for v in ordered if roles[v] == "kernel"], readers)
    ends = ends_of(graph, graph.outputs if scored is None else scored, _multiplies)
    return [
        Member(
            v,
            p,
            roles[v],
            layer_of_weight(p.name),
            places[p.name],
            0 if v in results else _channels(v, readers.get(v, [])),
            _uses(readers.get(v, [])),
            find_place(v, readers),
            products[first_use.get(v, len(graph.nodes))],
            any(isinstance(node.op, ops.DepthwiseConv2D) for _, node in users(v, readers)),
            leads_to.get(v, frozenset()),
            first_use.get(v, len(graph.nodes)),
            max((places_of[node.outputs[0]] for _, node in users(v, readers)), default=len(graph.nodes)),
            roles[v] == "kernel" and any(isinstance(node.op, ops.Gather) for _, node in users(v, readers)),
            *ends.get(v, NOWHERE),
        )
        for v, p in ((v, graph.parameters[v]) for v in ordered)
    ]


def last_parameters(graph: Graph, output: str) -> list[str]:
    """Return the names of the parameters of an output's last products, and of what is computed after these."""
    found = ends_of(graph, [output], _multiplies)
    return [p.name for v, p in graph.parameters.items() if v in found and output in found[v].ends | found[v].follows]


def _blocks(kernels: Mapping[str, bool], blocks: Sequence[str] | None) -> dict[str, str]:
    """Return the block of each parameter, from the names in order of use and whether they are kernels."""
    outer = _common_path(list(kernels))
    inner = {name: name.removeprefix(outer) for name in kernels}
    numbered = numbered_blocks(list(inner.values()), [inner[name] for name, is_kernel in kernels.items() if is_kernel])
    found = {name: outer + numbered[short] for name, short in inner.items()}
    if blocks is not None:
        return {name: named_block(name, blocks) or block for name, block in found.items()}
    # What has no kernel, as a norm, goes with what stands before it.
    with_kernels = {found[name] for name, is_kernel in kernels.items() if is_kernel}
    before: dict[str, str] = {}
    last = None
    for block in dict.fromkeys(found.values()):
        last = block if block in with_kernels else last
        before[block] = last or block
    return {name: before[block] for name, block in found.items()}


def _leads_to(graph: Graph, kernels: Sequence[Value], readers: dict[Value, list[Node]]) -> dict[Value, frozenset[str]]:
    """Return for each kernel, the names of those that are multiplied with what was computed with it."""
    results = {k: [node.output for _, node in users(k, readers) if not node.op.bodies()] for k in kernels}
    found = {}
    for kernel in kernels:
        reached = dependents(graph, [kernel])
        after = [k for k in kernels if k is not kernel and any(v in reached for v in results[k])]
        found[kernel] = frozenset(graph.parameters[k].name for k in after)
    return found


def _products(graph: Graph) -> list[int]:
    """Return for each place in the graph, its end too, how many products of two activations come before."""
    activations, before = set(graph.inputs), [0]
    for node in graph.nodes:
        computed = [value in activations for value in node.inputs]
        before.append(before[-1] + (isinstance(node.op, ops.MatMul) and all(computed)))
        if any(computed):
            activations |= set(node.outputs)
    return before


def _common_path(names: Sequence[str]) -> str:
    """Return what all names begin with, up to a part's end: the model's own name tells no block from another."""
    paths = [parts_of(name)[:-2] for name in names]  # a weight and its layer say more than the model
    common = 0
    while paths and all(len(p) > common and p[common] == paths[0][common] for p in paths):
        common += 1
    return names[0][: sum(len(part) + 1 for part in paths[0][:common])] if paths else ""


def is_cut_by(node: Node, value: Value) -> bool:
    """Return whether a node reads a value as its weight alone, and can be cut in two along its input channels."""
    return isinstance(node.op, ops.Layer) and node.inputs[1] is value and node.inputs.count(value) == 1


def _channels(value: Value, readers: list[Node]) -> int:
    if len(readers) == 1 and is_cut_by(readers[0], value):
        return readers[0].op.input_channels(readers[0].inputs[0].type, value.type)
    return 0


def _uses(readers: list[Node]) -> str:
    kinds = ", ".join(dict.fromkeys(node.op.name for node in readers)) or "nothing"
    return f"a weight of {kinds}" if len(readers) == 1 else f"a weight used {len(readers)} times ({kinds})"


def users(value: Value, readers: dict[Value, list[Node]]) -> list[tuple[Value, Node]]:
    """Return what reads a parameter, or another view or a multiple of it, and which."""
    found = []
    for node in readers.get(value, []):
        hands_on = isinstance(node.op, _THROUGH) or factor_of(node, value) is not None
        found += users(node.output, readers) if hands_on else [(value, node)]
    return found


def role_of(value: Value, readers: dict[Value, list[Node]], producers: dict[Value, Node]) -> str:
    """Return how the graph uses a parameter."""
    roles: set[str] = set()
    for view, node in users(value, readers):
        if node.op.bodies():
            roles |= _roles_in_bodies(node, view)
        elif isinstance(node.op, ops.Layer):
            roles.add("kernel" if view is node.inputs[1] or isinstance(node.op, ops.MatMul) else "other")
        elif isinstance(node.op, ops.Gather):
            roles.add("embedding")
        elif max(view.shape, default=1) == view.type.size or _is_added_to_product(view, node, producers):
            roles.add(_PER_CHANNEL.get(type(node.op), "other"))
        else:
            roles.add("other")
    if "kernel" in roles:
        return "kernel"
    return roles.pop() if len(roles) == 1 else "other"


def _is_added_to_product(value: Value, node: Node, producers: dict[Value, Node]) -> bool:
    """Return whether it is one number a channel of a product whose channels have several axes (heads)."""
    other = producers.get(next((v for v in node.inputs if v is not value), value))
    while other is not None and isinstance(other.op, ops.Reshape):
        other = producers.get(other.inputs[0])
    return other is not None and isinstance(other.op, ops.Layer) and other.output.shape[-1] == value.type.size


def _multiplies(node: Node, value: Value) -> bool:
    """Return whether a node takes one of its operands as a weight: a product by itself or in a loop, or row by row."""
    if node.op.bodies():
        return "kernel" in _roles_in_bodies(node, value)
    if isinstance(node.op, ops.Layer):
        return value is node.inputs[1] or isinstance(node.op, ops.MatMul)
    return isinstance(node.op, ops.Add | ops.Sub | ops.Mul) and _is_by_row(node, value)


def _is_by_row(node: Node, value: Value) -> bool:
    """Return whether a node takes what it is given with each row of a table, as in a distance to learned centres."""
    given = next((other for other in node.inputs if other is not value), value)
    is_table = max(value.shape, default=1) < value.type.size
    return is_table and given.type.size < node.output.type.size


def _roles_in_bodies(node: Node, value: Value) -> set[str]:
    """Return how the steps of a loop use one of its operands."""
    places = [k for k, operand in enumerate(node.inputs) if operand is value]
    inner = [(body, body.inputs[k], body.consumers()) for body in node.op.bodies() for k in places]
    return {role_of(v, readers, body.producers()) for body, v, readers in inner if v in readers}
