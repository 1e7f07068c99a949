"""Interface of a model: its own names of inputs and outputs, beside the program's names for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from converter.ir.graph import Graph, Value


@dataclass(frozen=True)
class Interface:
    """What a model calls its inputs and outputs, by the names in its graph; what is not in it has that name.

    Attributes:
        inputs: names that the user gave, by the name of the graph's input.
        outputs: those of outputs.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)

    def of(self, graph: Graph) -> Graph:
        """Return the graph with inputs and outputs of the model's own names; its values are other ones then.

        A name that C does not hold (empty, or with control characters), or that two would share, is none.
        """
        inputs = _names([value.name for value in graph.inputs], self.inputs)
        own = {value: Value(value.type, name) for value, name in zip(graph.inputs, inputs, strict=True)}
        after = graph.copy()
        after.inputs = list(own.values())
        after.nodes = [
            replace(node, inputs=tuple(own.get(v, v) for v in node.inputs))
            if not own.keys().isdisjoint(node.inputs)
            else node
            for node in graph.nodes
        ]
        results = [own.get(value, value) for value in graph.outputs.values()]
        after.outputs = dict(zip(_names(list(graph.outputs), self.outputs), results, strict=True))
        after.updates = {parameter: own.get(value, value) for parameter, value in graph.updates.items()}
        return after


def _names(given: Sequence[str], own: Mapping[str, str]) -> list[str]:
    """Return own names where there are any, those of the graph where two would be the same."""
    found = [name if (name := own.get(key, "")).isprintable() and name else key for key in given]
    return found if len(set(found)) == len(found) else list(given)
