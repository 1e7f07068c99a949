"""Affine chains: elementwise arithmetic with one number a channel, as one scale and one shift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from converter.ir import FLOAT32, Builder, Graph, Node, Op, Value, dependents, is_described, ops


@dataclass(frozen=True)
class AffineStep:
    """One link of a chain: `x` plus, minus, times or over what has one number for each channel (the last axis).

    Attributes:
        node: the op.
        x: the operand that depends on the graph's inputs.
        by: the other one, which does not; None for a negation.
    """

    node: Node
    x: Value
    by: Value | None

    @property
    def scales(self) -> bool:
        """Whether x is multiplied by something: `by - x` is x times -1, plus `by`."""
        backwards = isinstance(self.node.op, ops.Sub) and self.node.inputs[0] is self.by
        return backwards or not self.shifts

    @property
    def shifts(self) -> bool:
        """Whether something is added to x."""
        return isinstance(self.node.op, ops.Add | ops.Sub)


@dataclass(frozen=True)
class AffineTerm:
    """A product of vectors of shape [C] or [1]: of its constant factors, which fold into one, and of the trained."""

    constant: Value | None = None
    trained: Value | None = None

    def times(self, b: Builder, factor: AffineTerm) -> AffineTerm:
        """Return the product with another one."""
        return AffineTerm(
            _joined(b, ops.Mul(), self.constant, factor.constant), _joined(b, ops.Mul(), self.trained, factor.trained)
        )

    def value(self, b: Builder) -> Value | None:
        """Return the product; None if there are no factors."""
        return _joined(b, ops.Mul(), self.trained, self.constant)


@dataclass(frozen=True)
class Affine:
    """x * scale + shift, both of shape [C] or [1]; None where there is nothing to multiply by or to add."""

    scale: Value | None = None
    shift: Value | None = None

    def apply(self, b: Builder, x: Value) -> Value:
        """Emit the function as at most two ops."""
        y = x if self.scale is None else b(ops.Mul(), x, self.scale)
        return y if self.shift is None else b(ops.Add(), y, self.shift)


def _joined(b: Builder, op: Op, x: Value | None, y: Value | None) -> Value | None:
    if x is None or y is None:
        return x if y is None else y
    return b(op, x, y)


def length(steps: Sequence[AffineStep]) -> int:
    """Return how many ops on activations `compose` and `apply` takes."""
    return any(s.scales for s in steps) + any(s.shifts for s in steps)


class Chains:
    """The chains of a graph, and what else its structure says about scales.

    Attributes:
        uses: how often each value is read.
        readers: the nodes that read each value.
        made_by: the node that makes each value.
        fed: what depends on the graph's inputs; anything else is known before a step looks at its data.
        trained: what depends on its parameters.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.readers = graph.consumers()
        self.made_by = graph.producers()
        self.uses = Counter(v for node in graph.nodes for v in node.inputs)
        self.uses.update(graph.results())
        self.fed = dependents(graph, graph.inputs)
        self.trained = dependents(graph, graph.parameters)
        self._steps = {n.outputs[0]: step for n in graph.nodes if (step := self._step(n))}
        self._inner = {s.x for s in self._steps.values() if s.x in self._steps and self.uses[s.x] == 1}

    def ending_at(self, value: Value) -> list[AffineStep]:
        """Return the steps that lead to `value`, in order; none unless it is the last of them.

        What is read elsewhere ends a chain.
        """
        if value not in self._steps or value in self._inner:
            return []
        steps = [self._steps[value]]
        while steps[0].x in self._inner:
            steps.insert(0, self._steps[steps[0].x])
        return steps

    def compose(self, b: Builder, steps: Sequence[AffineStep]) -> Affine:
        """Return one scale and one shift for all steps, emitted as ops on vectors."""
        minus = AffineTerm(b.constant([-1.0]))
        scale, shifts = AffineTerm(), list[AffineTerm]()
        for step in steps:
            term = minus if step.by is None else self._term(b, step.by, isinstance(step.node.op, ops.Div))
            if step.scales:
                factor = minus if step.shifts else term
                scale, shifts = scale.times(b, factor), [shift.times(b, factor) for shift in shifts]
            if step.shifts:
                subtracted = isinstance(step.node.op, ops.Sub) and not step.scales
                shifts.append(term.times(b, minus) if subtracted else term)
        shift: Value | None = None
        for term in sorted(shifts, key=lambda t: t.trained is not None):  # the constant ones fold into one
            shift = _joined(b, ops.Add(), shift, term.value(b))
        return Affine(scale.value(b), shift)

    def _term(self, b: Builder, by: Value, divides: bool) -> AffineTerm:
        vector = b.reshape(by, (by.type.size,))
        vector = b(ops.Div(), 1.0, vector) if divides else vector
        return AffineTerm(trained=vector) if by in self.trained else AffineTerm(vector)

    def scale_is_trained(self, steps: Sequence[AffineStep]) -> bool:
        """Return whether a parameter takes part in the scale."""
        return any(not s.shifts and s.by in self.trained for s in steps)

    def shift_is_trained(self, steps: Sequence[AffineStep]) -> bool:
        """Return whether what is added, apart from later scales, is trained."""
        return any(s.shifts and s.by in self.trained for s in steps)

    def _step(self, node: Node) -> AffineStep | None:
        match node.op:
            case ops.Neg() if self._is_activation(node.inputs[0]):
                return AffineStep(node, node.inputs[0], None)
            case ops.Add() | ops.Sub() | ops.Mul() | ops.Div():
                x, y = node.inputs
                if self._fits(y, x, divides=isinstance(node.op, ops.Div)):
                    return AffineStep(node, x, y)
                if not isinstance(node.op, ops.Div) and self._fits(x, y):
                    return AffineStep(node, y, x)
        return None

    def _is_activation(self, x: Value) -> bool:
        return x in self.fed and x.dtype == FLOAT32 and bool(x.shape)

    def _fits(self, by: Value, x: Value, divides: bool = False) -> bool:
        """Return whether `by` has one number for each channel of x, or one for all.

        Infinities would spread in a weight.
        """
        if by in self.fed or not self._is_activation(x) or len(by.shape) > len(x.shape):
            return False
        array = self.graph.constants.get(by)
        with np.errstate(divide="ignore", over="ignore"):
            if array is not None and not (is_described(array) or np.isfinite(1 / array if divides else array).all()):
                return False
        return by.type.size == 1 or by.shape[-1] == by.type.size == x.shape[-1]
