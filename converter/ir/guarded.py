"""Guarded loop step: one of a conditional loop that may be taken too often."""

from __future__ import annotations

from converter.ir.builder import Builder
from converter.ir.graph import Graph
from converter.ir.ops import Reshape, Select


def guarded(condition: Graph, body: Graph) -> Graph:
    """Return a step that hands on what it gets where the condition does not hold.

    Args:
        condition: of the body's inputs; a bool, or one for each row of all that is handed on.
        body: its last inputs are what it hands on.
    """
    b = Builder()
    inputs = [b.input(f"operand_{k}", v.type) for k, v in enumerate(body.inputs)]
    (goes_on,) = b.inline(condition, inputs).values()
    before = inputs[len(inputs) - len(body.outputs) :]
    for (name, new), old in zip(b.inline(body, inputs).items(), before, strict=True):
        rows = b(Reshape((*goes_on.shape, *(1 for _ in old.shape[len(goes_on.shape) :]))), goes_on)
        b.graph.outputs[name] = b(Select(), rows, new, old)
    return b.graph
