"""Constraints: projections of a weight after each step, as Keras' `kernel_constraint`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from converter.ir import Builder, Graph, Parameter, Shape, Value, View
from converter.support.notes import Note
from converter.training.optim import PARAMETER, OptimizerProgram, is_elementwise, with_shapes


@dataclass(frozen=True)
class Constraint:
    """The constraint of a weight.

    Attributes:
        said: what reports call it.
        graph: from the weight in the model's layout, whole, to what stays of it.
    """

    said: str
    graph: Graph

    def holds(self, weight: Parameter) -> bool:
        """Return whether it can be computed of what trains of a weight: not where it looks at the rest, too."""
        return is_elementwise(self.graph) or not weight.view.is_cut


def constrained(
    rule: OptimizerProgram, constraints: Mapping[str, Constraint], weights: Mapping[Value, Parameter]
) -> OptimizerProgram:
    """Return the rule with the constraints, of those that can be computed, after all else that it does to the weights.

    Args:
        rule: for these weights as they are stored.
        constraints: by the name of the weight.
        weights: what trains.
    """
    wanted = {p.name: (v.shape, p) for v, p in weights.items() if p.name in constraints}
    held = {name: found for name, found in wanted.items() if constraints[name].holds(found[1])}
    if not held:
        return rule
    b = Builder(Graph())
    if rule.finish is not None:
        inputs = [b.input(v.name, v.type) for v in rule.finish.inputs]
        made = b.inline(rule.finish, inputs)
    else:
        made = {v.name: b.input(v.name, v.type) for v in rule.graph.inputs if v.name.startswith(PARAMETER)}
    for name, (shape, weight) in held.items():
        made[PARAMETER + name] = _projected(b, constraints[name].graph, made[PARAMETER + name], weight.view, shape)
    b.graph.outputs = dict(made)
    return replace(rule, finish=b.graph)


def constraint_notes(constraints: Mapping[str, Constraint], weights: Mapping[Value, Parameter]) -> list[Note]:
    """Return what to say of each."""
    trained, notes = {p.name: p for p in weights.values()}, []
    for name, constraint in constraints.items():
        if name not in trained:
            continue
        if constraint.holds(trained[name]):
            notes.append(
                Note(name, "as compiled", f"the constraint {constraint.said}, which is applied after each step")
            )
        else:
            why = "it looks at the whole weight, of which a part trains: train all of it, or none"
            notes.append(Note(name, "left out", f"the constraint {constraint.said}: {why}"))
    return notes


def _projected(b: Builder, constraint: Graph, stored: Value, view: View, shape: Shape) -> Value:
    """Return what stays of a weight as it is stored."""
    if is_elementwise(constraint):
        (kept,) = b.inline(with_shapes(constraint, {constraint.inputs[0].name: shape}), [stored]).values()
        return kept
    shapes = [constraint.inputs[0].shape]
    for step in view.steps:
        shapes.append(View((step,)).of(np.broadcast_to(np.float32(0), shapes[-1])).shape)
    for (kind, how), before in zip(reversed(view.steps), reversed(shapes[:-1]), strict=True):
        transposed = kind == "transpose"
        stored = b.transpose(stored, tuple(np.argsort(how).tolist())) if transposed else b.reshape(stored, before)
    (kept,) = b.inline(constraint, [stored]).values()
    for kind, how in view.steps:
        kept = b.transpose(kept, how) if kind == "transpose" else b.reshape(kept, how)
    return kept
