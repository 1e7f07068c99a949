"""Watch over a step: its operations that may be infinite, and whether all that it writes is finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from converter.ir import Builder, Graph, Node, Parameter, Value, dependents, ops, reachable
from converter.ir.extent import Extent, Pole
from converter.ir.finite import Finiteness

#: The output of a watched step.
FINITE = "finite"
#: Of how many poles a program tells.
MOST_POLES = 8


def poles(step: Graph) -> list[Node]:
    """Return the nodes of a step whose value, or whose slope where a gradient passes, may be infinite or NaN.

    Args:
        step: `train`, `accumulate` or `gradients`, of semantic ops, with the output `loss`; or `apply`.
    """
    found = list(_of_loss(step)) if "loss" in step.outputs else []
    return found + list(_of_update(step))


def _of_loss(step: Graph) -> Iterator[Node]:
    """Yield those of the forward pass, of which the backward pass is made."""
    needed = reachable(step, [step.outputs["loss"]])
    active = dependents(step, step.weights()) & needed
    # A session refuses a step in which no row has a weight, so their sum is no pole.
    finite = Finiteness(step, {v: Extent(low=2.0**-126) for v in step.inputs if v.name == "weight"})
    for node in step.nodes:
        if node.origin.is_late or needed.isdisjoint(node.outputs):
            continue
        is_combined = not active.isdisjoint(node.outputs) and not active.isdisjoint(node.inputs)
        if finite.pole(node) is Pole.VALUE or (is_combined and finite.pole(node) is Pole.SLOPE):
            yield from _inside(node)


def _inside(node: Node) -> Iterator[Node]:
    """Yield the nodes in the bodies of a pole, or itself where it has none."""
    bodies = node.op.bodies()
    if not bodies:
        yield node
    for body in bodies:
        finite = Finiteness(body)
        for inner in body.nodes:
            if finite.pole(inner) is not Pole.NONE:
                yield from _inside(inner)


def _of_update(step: Graph) -> Iterator[Node]:
    """Yield those of the optimizer; no derivative is made of it."""
    finite = Finiteness(step, _slots_above_zero(step))
    for node in step.nodes:
        if node.origin.phase == "update" and finite.pole(node) is Pole.VALUE and not _is_chosen_away(node, step):
            yield from _inside(node)


def _is_chosen_away(node: Node, step: Graph) -> bool:
    """Return whether all that reads a value ends in choices by what makes it infinite, as clipping by a norm does."""
    readers, tested = step.consumers(), dependents(step, node.inputs[-1:])
    kept = {*step.outputs.values(), *step.updates.values()}
    waiting = list(node.outputs)
    while waiting:
        value = waiting.pop()
        if value in kept:
            return False
        for reader in readers.get(value, ()):
            chooses = isinstance(reader.op, ops.Select) and reader.inputs[0] in tested
            if not chooses or reader.inputs[0] is value:
                waiting += reader.outputs
    return True


def _slots_above_zero(step: Graph) -> Mapping[Value, Extent]:
    """Return the slots that no step brings below 0: they begin there, and none is if none was before."""
    slots = [v for v, parameter in step.parameters.items() if parameter.kind == "slot" and v in step.updates]
    known = {v: Extent(low=0.0) for v in slots if (_built(step.parameters[v]) >= 0).all()}
    while True:
        finite = Finiteness(step, known)
        kept = {v: extent for v, extent in known.items() if finite.extent(step.updates[v]).low >= 0}
        if len(kept) == len(known):
            return kept
        known = kept


def _built(parameter: Parameter) -> np.ndarray:
    """Return the numbers that a parameter begins with, one for all where it is not laid out."""
    array = parameter.value
    return array if any(array.strides) else array.flat[:1]


def words(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return each of some nodes in words, `Sqrt (dense at model.py:12)`, the first ones."""
    said = dict.fromkeys(f"{node.op.name} ({node.origin})" for node in nodes)
    return tuple(said)[:MOST_POLES]


def watched(step: Graph) -> Graph:
    """Return a step that updates with the output `finite`, float32 [1].

    It is 0 where all that the step writes is finite; where something is not, or its sum leaves float32's range, NaN.
    What begins infinite, as the least loss so far, does not count.
    """
    b = Builder(step.copy())
    written = [
        new
        for value, new in step.updates.items()
        for parameter in [step.parameters[value]]
        if new is not value and new.dtype.kind == "f" and parameter.kind != "accumulator"
        if np.isfinite(_built(parameter)).all()
    ]
    sums = [b.reshape(b.sum(new, tuple(range(len(new.shape)))), (1,)) for new in written]
    whole = b.reshape(b.sum(b(ops.Concat(0), *sums), (0,)), (1,)) if len(sums) > 1 else sums[0]
    b.graph.outputs[FINITE] = b(ops.Mul(), whole, 0.0)
    return b.graph
