"""In-place hazards: keeps the runtime from overwriting values that are still to be read.

TFLite's planner lets an operator compute in the place of an operand that nobody else reads. It asks that of the operand
and of the first tensor that lay there, not of those between (arena_planner.cc, IdentifyInPlaceTensors).

XNNPACK leaves out a copy that only one operator reads, so what reads a variable reads it where it lies, and its new
value is computed there. It also leaves out zeros around the rows and columns that a convolution reads (subgraph.c,
fusion of pads): the convolution then reads the variable itself, at its own place in the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from converter.backend import builtins as tfl
from converter.backend.lowering.state import with_state_as_arguments, with_variables
from converter.backend.schedule.memory import shared_buffers
from converter.ir import Graph, Node, Value


def without_overwriting(graph: Graph, stateless: bool = False) -> Graph:
    """Take copies of what would be overwritten before it is read.

    Reshapes on whose result something would be computed in place, while others read their operand:

        Before: dy = SUB(a, b), in place of a; r = RESHAPE(dy); z = MUL(r, c), in place of a, too; dw = x' @ dy.
        After:  r = RESHAPE(SLICE(dy)).

    Zeros around a parameter for a convolution that runs when that has its new value:

        Before: p = PAD(w); w <- SUB(w, dw); y = CONV_2D(p, v).
        After:  p = PAD(SLICE(w)).

    Args:
        graph: lowered, scheduled; a loop's body as well. Its state may become variables or arguments.
        stateless: whether it becomes arguments.
    """
    exported = [with_state_as_arguments(graph)] if stateless else [graph, with_variables(graph)]
    in_place = {node for each in exported for node in _shared_and_overwritten(each)} | set(_padded_too_late(graph))
    after = graph.copy()
    after.nodes = []
    for node in graph.nodes:
        if node in in_place:
            (x,) = node.inputs
            copy, whole = Value(x.type, x.name), tfl.Slice((0,) * len(x.shape), x.shape)
            slicing = replace(node.op, op=whole) if isinstance(node.op, tfl.Int8) else whole
            after.nodes.append(Node(slicing, (x,), (copy,), node.origin))
            node = Node(node.op, (copy,), node.outputs, node.origin)
        after.nodes.append(node)
    return after


def _shared_and_overwritten(graph: Graph) -> Iterator[Node]:
    """Reshapes whose operand others may read after its place was taken."""
    owners, readers = shared_buffers(graph), graph.consumers()
    maker = {value: node for node in graph.nodes for value in node.outputs}
    for node in graph.nodes:
        if node.op.keeps_data or not node.outputs or node.outputs[0] not in owners:
            continue
        root = owners[node.outputs[0]]
        value = next(v for v in node.inputs if owners.get(v, v) is root)
        earlier: set[Node] | None = None
        while value is not root:
            made = maker[value]
            value = next(v for v in made.inputs if owners.get(v, v) is root)
            others = set(_readers(value, readers)) - {made, node}
            if len(readers[value]) > 1:
                earlier = _before(node, maker) if earlier is None else earlier
                # Where nothing keeps the order of the file, a delegate may turn round what does not depend.
                if not others <= earlier:
                    yield made


def _padded_too_late(graph: Graph) -> Iterator[Node]:
    """Yield zeros around a parameter, of which something that runs after the update of the parameter reads."""
    makers, readers = graph.producers(), graph.consumers()
    position = {node: i for i, node in enumerate(graph.nodes)}
    updated = {parameter: position[makers[new]] for parameter, new in graph.updates.items() if new in makers}
    for node in graph.nodes:
        writer = updated.get(node.inputs[0]) if isinstance(node.op, tfl.Pad) else None
        if writer is not None and any(position[reader] > writer for reader in readers.get(node.output, ())):
            yield node


def _readers(value: Value, readers: Mapping[Value, list[Node]]) -> Iterator[Node]:
    """Yield all that read a tensor, or reshaped where it lies."""
    for node in readers.get(value, ()):
        yield node
        if node.op.keeps_data:
            yield from _readers(node.outputs[0], readers)


def _before(node: Node, maker: dict[Value, Node]) -> set[Node]:
    """Return the nodes that a node depends on."""
    found: set[Node] = set()
    left = [node]
    while left:
        new = {maker[v] for v in left.pop().inputs if v in maker} - found
        found |= new
        left += new
    return found
