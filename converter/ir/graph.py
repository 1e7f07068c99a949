"""Graph, Node, Value and Parameter: one IR for both levels, in static single assignment form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from textwrap import indent
from typing import Any, Literal

import numpy as np

from converter.ir.lazy import LazyArray
from converter.ir.quantization import Integers
from converter.ir.types import NOWHERE, Origin, TensorType
from converter.ir.view import View


class Value:
    """A tensor of the program: the output of one node, an input, a constant or a parameter. Compared by identity."""

    __slots__ = ("name", "type")

    def __init__(self, type: TensorType, name: str = "") -> None:
        self.type = type
        self.name = name

    @property
    def shape(self) -> tuple[int, ...]:
        """The static shape."""
        return self.type.shape

    @property
    def dtype(self) -> np.dtype:
        """The element type."""
        return self.type.dtype

    def __repr__(self) -> str:
        return f"%{self.name or 'value'}: {self.type}"


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an op. Immutable, so graphs share the nodes a pass leaves as they are."""

    op: Any  # an Op; passes read the attributes of the class that they have matched
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    origin: Origin = NOWHERE

    @property
    def output(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value

    def __repr__(self) -> str:
        return f"{', '.join(map(repr, self.outputs))} = {self.op}({', '.join(map(repr, self.inputs))})  # {self.origin}"


@dataclass(frozen=True, eq=False)
class Parameter:
    """A tensor that outlives a run: a weight or statistic of the model, a slot of the optimizer, an accumulator.

    Attributes:
        name: the model's own name (Keras `variable.path`, JAX pytree path), `optimizer/...` for a slot,
            `gradient/...` for an accumulator.
        model_value: initial value in the model's own layout and full shape.
        view: how the stored tensor is cut out of the model's tensor (transposed, reshaped, sliced).
        trainable: False where the model itself says that this weight is not trained.
        idle: no output that has a loss depends on it.
        kind: what it is. A statistic is updated by the step and has no gradient. An accumulator (of gradients) is zero
            between two steps, so it is no part of a saved state. A merged weight is a constant that is known at export
            only. A choice is which channels of a weight train, int32, a base a weight whose channels are redrawn: no
            step changes them, a session may. A loss is that of the last step, which the update reads. A scale is what
            the integers of a weight are multiplied by.
        source: where the initial value is read from when it is needed; `model_value` is described until then.
        integers: how the program stores it in int8; None where it stores the numbers themselves.
    """

    name: str
    model_value: np.ndarray
    view: View = field(default_factory=View)
    trainable: bool = True
    idle: bool = False
    kind: Literal["weight", "statistic", "slot", "accumulator", "loss", "merged", "choice", "base", "scale"] = "weight"
    source: LazyArray | None = None
    integers: Integers | None = None

    @property
    def value(self) -> np.ndarray:
        """Initial value as stored in the program."""
        array = self.view.apply(self.model_value)
        return array if self.integers is None else self.integers.of(array)

    def viewed(self, step: tuple) -> Parameter:
        """Return the same weight after one more view step."""
        return replace(self, view=self.view.then(step))


@dataclass(eq=False)
class Graph:
    """A program: nodes in topological order.

    Attributes:
        inputs: values fed by the caller, in order; their names are the signature's.
        constants: values known at compile time.
        parameters: values that live across steps.
        nodes: in topological order.
        outputs: named results.
        updates: for each parameter that the step changes, the value it has afterwards.
    """

    inputs: list[Value] = field(default_factory=list)
    constants: dict[Value, np.ndarray] = field(default_factory=dict)
    parameters: dict[Value, Parameter] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    outputs: dict[str, Value] = field(default_factory=dict)
    updates: dict[Value, Value] = field(default_factory=dict)

    def producers(self) -> dict[Value, Node]:
        """Return the node that makes each value (none for inputs, constants and parameters)."""
        return {value: node for node in self.nodes for value in node.outputs}

    def consumers(self) -> dict[Value, list[Node]]:
        """Return the nodes that read each value, in order, one entry a node; values nobody reads are absent."""
        readers: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                readers.setdefault(value, []).append(node)
        return readers

    def results(self) -> Iterator[Value]:
        """Yield all values that must be computed: outputs and updates."""
        yield from self.outputs.values()
        yield from self.updates.values()

    def copy(self) -> Graph:
        """Return a graph with containers of its own that shares values and nodes."""
        return Graph(
            list(self.inputs),
            dict(self.constants),
            dict(self.parameters),
            list(self.nodes),
            dict(self.outputs),
            dict(self.updates),
        )

    def weights(self) -> dict[Value, Parameter]:
        """Return the parameters that a gradient trains."""
        return {value: parameter for value, parameter in self.parameters.items() if parameter.kind == "weight"}

    def parameter_names(self) -> dict[str, Value]:
        """Return parameters by name. Raises ValueError when two share one."""
        names: dict[str, Value] = {}
        for value, parameter in self.parameters.items():
            if parameter.name in names:
                raise ValueError(f"two parameters are named {parameter.name!r}")
            names[parameter.name] = value
        return names

    def __str__(self) -> str:
        return to_text(self)


def in_order_of_use(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes in topological order; those that are in it already keep it among themselves."""
    pending = list(nodes)
    made_by = {value: i for i, node in enumerate(pending) for value in node.outputs}
    needs = [{made_by[v] for v in node.inputs if v in made_by} for node in pending]
    readers: dict[int, list[int]] = {}
    for i, before in enumerate(needs):
        for j in before:
            readers.setdefault(j, []).append(i)
    ready = [i for i, before in enumerate(needs) if not before]
    order: list[Node] = []
    while ready:
        i = heappop(ready)
        order.append(pending[i])
        for j in readers.get(i, ()):
            needs[j].discard(i)
            if not needs[j]:
                heappush(ready, j)
    return order


def reachable(graph: Graph, results: Iterable[Value]) -> set[Value]:
    """Return all values that `results` depend on, themselves included."""
    needed = set(results)
    for node in reversed(graph.nodes):
        if any(value in needed for value in node.outputs):
            needed.update(node.inputs)
    return needed


def dependents(graph: Graph, sources: Iterable[Value]) -> set[Value]:
    """Return all values that depend on `sources`, themselves included."""
    reached = set(sources)
    for node in graph.nodes:
        if any(value in reached for value in node.inputs):
            reached.update(node.outputs)
    return reached


def nested(graph: Graph) -> Iterator[Graph]:
    """Yield the graph and the bodies of its nodes, at any depth, each once."""
    found: dict[Graph, None] = {}
    waiting = [graph]
    while waiting:
        inner = waiting.pop()
        if inner not in found:
            found[inner] = None
            waiting += reversed([body for node in inner.nodes for body in node.op.bodies()])
    yield from found


def to_text(graph: Graph) -> str:
    """Readable listing: inputs, parameters, constants, nodes with types and origins and bodies, outputs, updates."""
    labels: dict[Value, str] = {}

    def label(value: Value) -> str:
        if value not in labels:
            labels[value] = f"%{len(labels)}"
        return labels[value]

    lines = [f"input {label(v)}: {v.type}  # {v.name}" for v in graph.inputs]
    lines += [f"parameter {label(v)}: {v.type}  # {p.name}" for v, p in graph.parameters.items()]
    for value, array in graph.constants.items():
        shown = f" = {array.tolist()}" if array.size <= 4 else ""
        lines.append(f"constant {label(value)}: {value.type}{shown}")
    for node in graph.nodes:
        results = ", ".join(f"{label(v)}: {v.type}" for v in node.outputs)
        lines.append(f"{results} = {node.op}({', '.join(map(label, node.inputs))})  # {node.origin}")
        for body in node.op.bodies():
            lines += ["  {", indent(to_text(body), "    "), "  }"]
    lines += [f"output {name} = {label(v)}" for name, v in graph.outputs.items()]
    lines += [f"update {label(p)} <- {label(v)}  # {graph.parameters[p].name}" for p, v in graph.updates.items()]
    return "\n".join(lines)
