"""Trainable parameters, and the optimizer's update of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from converter.backend.lowering.weight_layout import better_transposed
from converter.backend.targets import Target
from converter.driver.compilation import Compilation
from converter.ir import Graph
from converter.passes import absorb_layout, eliminate_dead_code, outputs_first
from converter.passes.canonical import specialize
from converter.support.errors import UnsupportedError, UsageError
from converter.training.constraints import constrained
from converter.training.fisher import without_probes
from converter.training.optim import OptimizerProgram
from converter.training.schemes import SchemeRow, select


def select_and_trace(c: Compilation) -> Compilation:
    """Freeze what does not train, and trace the optimizer for the rest."""
    from converter.training.optim.notes import optimizer_notes

    model, rule = with_optimizer(c.graphs.model, c.rows, c.optimizer, c.target, c.transposed)
    notes = optimizer_notes(c.optimizer, rule, {p.name: p.model_value.shape for p in model.weights().values()})
    rule = constrained(rule, c.source.regularization.constraints, model.weights())
    return replace(c.staged(model=model), rule=rule, notes=[*c.notes, *notes])


def with_optimizer(
    forward: Graph, rows: list[SchemeRow], optimizer: Any, target: Target, transposed: Collection[str] | None = None
) -> tuple[Graph, OptimizerProgram]:
    """Return the graph in which only trained weights are parameters, and the update rule of these parameters.

    Weights are stored as their consumers read them, unless the optimizer looks at rows and columns.

    Args:
        forward: canonical.
        rows: the resolved scheme.
        optimizer: an optax.GradientTransformation.
        target: where it will run.
        transposed: names of the matrices that are kept as [outputs, inputs]; None: those that are better so.
    """
    from converter.training.optim.trace import trace_optimizer

    for layout in (absorb_layout, Graph.copy):
        try:
            selected = specialize(select(layout(forward), rows))
        except UnsupportedError as error:
            if layout is absorb_layout:
                raise
            raise UnsupportedError(
                f"{error} The optimizer looks at rows and columns of weights, so they are kept as the model has them; "
                "any that looks at single numbers, as Adam, trains it in part.",
                error.sites,
                page="arguments",
            ) from None
        if layout is absorb_layout:
            selected = outputs_first(
                selected, better_transposed(selected, target) if transposed is None else transposed
            )
        parameters = selected.weights().values()
        rule = trace_optimizer(
            optimizer, {p.name: p.model_value for p in parameters}, {p.name: p.view for p in parameters}
        )
        if rule.layout_invariant:
            break
    return selected, rule


def like(
    selected: Graph,
    forward: Graph,
    rows: list[SchemeRow],
    layout_invariant: bool,
    outputs: Collection[str] | None = None,
) -> Graph:
    """Return the model for another number of rows, with the state of what was selected from it.

    `outputs` are the names of those that are kept; None: of those that `selected` has.

    Raises:
        UsageError: it keeps its weights in another form.
    """
    other = specialize(select((absorb_layout if layout_invariant else Graph.copy)(forward), rows))
    other = without_probes(other)
    transposed = {p.name: p.viewed(("transpose", (1, 0))).view for p in other.parameters.values()}
    views = {p.name: p.view for p in selected.parameters.values()}
    other = outputs_first(other, {name for name, view in transposed.items() if views.get(name) == view})
    other.outputs = {name: value for name, value in other.outputs.items() if name in (outputs or selected.outputs)}
    stored = {p.name: (v.type, p.view) for v, p in selected.parameters.items()}
    for value, parameter in other.parameters.items():
        if stored.get(parameter.name) != (value.type, parameter.view):
            rows_of_it = forward.inputs[0].shape[0]
            raise UsageError(
                f"infer_{rows_of_it}: for so many rows {parameter.name} is kept in another form: leave it out",
                page="arguments",
            )
    return eliminate_dead_code(other)
