"""Lowering: every semantic op becomes TFLite builtins, in the form that is cheapest on the target."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import numpy as np

from converter.errors import UnsupportedError, UnsupportedSite
from converter.ir import BOOL, FLOAT32, INT32, Builder, Graph, Node, Op, Shape, TensorType, Value
from converter.ir.op import ShapeError
from converter.targets import Target
from converter.tflite import builtins as tfl
from converter.tflite.forms import Form, FormChoice, choose, record

#: Emits the builtins of one op: (context, op, *lowered operands) -> lowered output (a tuple of several).
Rule = Callable[..., Value | tuple[Value, ...]]
#: Elements of the largest constant that only repeats.
MOST_ONES = 4096

R = TypeVar("R", bound=Rule)
RULES: dict[type[Op], Rule] = {}


def lowers(*kinds: type[Op]) -> Callable[[R], R]:
    """Registers the lowering rule of one or more op classes. Raises ValueError on a second rule for a class."""

    def register(rule: R) -> R:
        for kind in kinds:
            if kind in RULES:
                raise ValueError(f"{kind.__name__} has two lowering rules")
            RULES[kind] = rule
        return rule

    return register


def stored_shape(shape: Shape) -> Shape:
    """Lowered graphs hold no rank-0 tensors: one number has shape [1]."""
    return shape or (1,)


class Lowering(Builder):
    """What a rule works with: the builder of the lowered graph, and the target."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self.op = ""  # name of the op that is being lowered
        self.shared: set[Value] = set()  # constants with several readers
        self.later: set[Value] = set()  # constants that are known at export only
        self.choices: list[FormChoice] = []

    def array(self, value: Value) -> np.ndarray | None:
        """The array of a constant, None for what is only known at run time."""
        return self.graph.constants.get(value)

    def is_constant(self, value: Value) -> bool:
        """Whether a value is known at compile time, or will be a constant when the graph is exported."""
        return value in self.graph.constants or value in self.later

    def append(self, node: Node) -> Node:
        """Adds a node that exists already."""
        if any(v in self.later for v in node.inputs) and all(map(self.is_constant, node.inputs)):
            self.later.update(node.outputs)
        return super().append(node)

    def constant(self, array: Any, dtype: Any = None, name: str = "") -> Value:
        array = np.asarray(array)
        return super().constant(array.reshape(stored_shape(array.shape)), dtype, name)

    def reshape(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == tuple(shape) else self(tfl.Reshape(tuple(shape)), x)

    def broadcast_to(self, x: Value, shape: Shape) -> Value:
        """By a product with ones where they are few: XNNPACK repeats as it multiplies, BROADCAST_TO is slow."""
        if x.shape == tuple(shape):
            return x
        padded = (1,) * (len(shape) - len(x.shape)) + x.shape
        ones = tuple(n if m != n else 1 for m, n in zip(padded, shape, strict=True))
        if x.dtype == FLOAT32 and len(shape) <= 4 and prod(ones) <= MOST_ONES:
            return self(tfl.Mul(), x, self.constant(np.ones(ones, np.float32)))
        return self(tfl.BroadcastTo(tuple(shape)), x)

    def zeros(self, type: TensorType) -> Value:
        """Zeros that take no room in the file."""
        if type.dtype == BOOL:
            return self(tfl.NotEqual(), self.zeros(TensorType(type.shape, INT32)), 0)
        flat = type if type.rank <= 5 else type.with_shape((type.shape[0], prod(type.shape[1:])))
        return self.reshape(self(tfl.Zeros(flat)), type.shape)

    def transpose(self, x: Value, perm: Shape) -> Value:
        return x if tuple(perm) == tuple(range(len(perm))) else self(tfl.Transpose(tuple(perm)), x)

    def cheapest(self, forms: list[Form]) -> Value:
        """Emits the form with the lowest cost, or one that the target forces, and notes the choice."""
        chosen = choose(forms, self.target)
        result = chosen.emit()
        self.choices.append(record(forms, chosen, self.op, str(result.type), self.origin))
        return result


def lower(graph: Graph, target: Target, report: list[FormChoice] | None = None) -> Graph:
    """Semantic graph -> graph of TFLite builtins. Inputs, parameters, outputs and updates keep their names.

    Args:
        graph: what to lower.
        target: where it will run.
        report: takes which form each op got, where there was a choice.

    Raises:
        UnsupportedError: an op has no lowering; names its layer and source line.
    """
    import converter.tflite.lowerings  # noqa: F401  registers the rules

    c = Lowering(target)
    lowered: dict[Value, Value] = {}

    def leaf(value: Value) -> Value:
        return Value(value.type.with_shape(stored_shape(value.shape)), value.name)

    for value in graph.inputs:
        lowered[value] = leaf(value)
        c.graph.inputs.append(lowered[value])
    for value, parameter in graph.parameters.items():
        lowered[value] = leaf(value)
        c.graph.parameters[lowered[value]] = parameter
        if parameter.kind == "merged":
            c.later.add(lowered[value])
    for value, array in graph.constants.items():
        of = value.type.quantization
        lowered[value] = c.constant(array, name=value.name) if of is None else c.quantized(array, of, value.name)
    c.shared = {lowered[v] for v, readers in graph.consumers().items() if v in graph.constants and len(readers) > 1}
    for node in graph.nodes:
        rule = RULES.get(type(node.op))
        if rule is None:
            raise _unsupported(node, f"no TFLite form of {node.op.name} is known")
        try:
            c.op = node.op.name
            with c.at(node.origin):
                result = rule(c, node.op, *(lowered[v] for v in node.inputs))
        except ShapeError as error:
            operands = ", ".join(str(v.type) for v in node.inputs)
            raise _unsupported(node, f"TFLite has no kernel for {node.op.name} of {operands} ({error})") from None
        results = result if isinstance(result, tuple) else (result,)
        for value, made in zip(node.outputs, results, strict=True):
            assert made.shape == stored_shape(value.shape), f"{node!r} was lowered to {made!r}"
            lowered[value] = made
    if report is not None:
        report += c.choices
    c.graph.outputs = {name: lowered[v] for name, v in graph.outputs.items()}
    c.graph.updates = {lowered[p]: lowered[v] for p, v in graph.updates.items()}
    return c.graph


def _unsupported(node: Node, reason: str) -> UnsupportedError:
    origin, advice = node.origin, "Compute it in float32, or outside the model."
    site = UnsupportedSite(node.op.name, origin.layer, origin.source, reason, advice)
    return UnsupportedError(f"{reason}: {origin}. {advice}", [site], page="kernels")
