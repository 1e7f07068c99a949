"""Lowering context: the argument of rules, and the tables of rules."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import numpy as np

from converter.backend import builtins as tfl
from converter.backend.lowering.forms import Form, FormChoice, choose, record
from converter.backend.targets import Target
from converter.ir import BOOL, FLOAT32, INT32, Graph, GraphBuilder, Node, Op, Shape, TensorType, Value
from converter.support.registry import Registry

#: Emits the builtins of one op: (context, op, *lowered operands) -> lowered output (a tuple of several).
Rule = Callable[..., Value | tuple[Value, ...]]
#: Lowers a semantic graph for a target and adds the choices between forms: `lower.lower`.
Lowered = Callable[[Graph, Target, "list[FormChoice] | None"], Graph]
#: Elements of the largest constant that only repeats.
MOST_ONES = 4096

R = TypeVar("R", bound=Rule)


class LoweringRules(Registry[type[Op], Rule]):
    """The lowering rules of one subject; its call is a decorator: `@lowers(ops.MatMul)`."""

    def __call__(self, *kinds: type[Op]) -> Callable[[R], R]:
        """Add the decorated function for one or more op classes. Raise ValueError on a second rule for a class."""

        def register(rule: R) -> R:
            for kind in kinds:
                self.add(kind, rule)
            return rule

        return register


def stored_shape(shape: Shape) -> Shape:
    """Lowered graphs hold no rank-0 tensors: one number has shape [1]."""
    return shape or (1,)


class LoweredBuilder(GraphBuilder):
    """Appends TFLite's builtins; no tensor has rank 0."""

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

    def sum(self, x: Value, axes: Shape) -> Value:
        return self(tfl.Sum(axes), x)


class Lowering(LoweredBuilder):
    """What a rule works with: the builder of the lowered graph, and the target.

    Args:
        target: where the graph will run.
        lowered: lowers the graphs of ops that run graphs of their own.
    """

    def __init__(self, target: Target, lowered: Lowered) -> None:
        super().__init__()
        self.target = target
        self._lowered = lowered
        self.op = ""  # name of the op that is being lowered
        self.shared: set[Value] = set()  # constants with several readers
        self.transposed: dict[Value, Value] = {}  # matrices of `shared` that are stored transposed, as which constant
        self.later: set[Value] = set()  # constants that are known at export only
        self.choices: list[FormChoice] = []

    def inner(self) -> Lowering:
        """Return the context of a graph of its own, such as the body of a loop."""
        return Lowering(self.target, self._lowered)

    def lowered(self, graph: Graph) -> Graph:
        """Lower the semantic graph of an op that runs one, noting its choices among those here."""
        return self._lowered(graph, self.target, self.choices)

    def array(self, value: Value) -> np.ndarray | None:
        """Return the array of a constant, None for what is only known at run time."""
        return self.graph.constants.get(value)

    def is_constant(self, value: Value) -> bool:
        """Return whether a value is known at compile time, or will be a constant when the graph is exported."""
        return value in self.graph.constants or value in self.later

    def append(self, node: Node) -> Node:
        """Adds a node that exists already."""
        if any(v in self.later for v in node.inputs) and all(map(self.is_constant, node.inputs)):
            self.later.update(node.outputs)
        return super().append(node)

    def cheapest(self, forms: list[Form]) -> Value:
        """Emits the form with the lowest cost, or one that the target forces, and notes the choice."""
        chosen = choose(forms, self.target)
        result = chosen.emit()
        self.choices.append(record(forms, chosen, self.op, str(result.type), self.origin))
        return result
