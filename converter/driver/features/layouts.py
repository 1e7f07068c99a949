"""Layouts of activations: a model written with channels first computes with channels last."""

from __future__ import annotations

from collections.abc import Sequence

from converter.driver.compilation import Compilation
from converter.ir import Graph
from converter.ir.batch_norm import BatchNorm
from converter.passes.canonical import canonicalize
from converter.passes.layout import assign_layouts
from converter.training.batch_norm import have_one_axis, with_independent_inputs


def assign(c: Compilation) -> Compilation:
    """Assign a layout to each value; inputs, outputs and weights keep the user's.

    All stays as it was written where the statistics of a batch could not be taken of what lies otherwise.
    """
    by_batch = c.source.batch_norms if c.options.batch_norm == "train" else ()
    forward = laid(c, c.graphs.model, by_batch)
    if forward is c.graphs.model or (by_batch and not have_one_axis(forward, by_batch)):
        return c
    return c.staged(model=forward, forward=forward)


def laid(c: Compilation, forward: Graph, by_batch: Sequence[BatchNorm]) -> Graph:
    """Return a canonical graph of the model with a layout for each value, canonical again; itself if nothing moves.

    Adapters are of the rows of a matrix as the model has it. What layers read whose statistics may train stays apart.
    """
    after = assign_layouts(forward, matrices=bool(c.request.scheme.adapters))
    return forward if after is forward else with_independent_inputs(after, by_batch, canonicalize)
