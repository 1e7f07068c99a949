"""Layouts of activations: a model written with channels first computes with channels last."""

from __future__ import annotations

from dataclasses import replace

from converter.driver.compilation import Compilation
from converter.passes.layout import assign_layouts
from converter.training.batch_norm import have_one_axis


def assign(c: Compilation) -> Compilation:
    """Assign a layout to each value; inputs, outputs and weights keep the person's.

    Adapters are of the rows of a matrix as the model has it. All stays as it was written where the statistics of a
    batch could not be taken of what lies otherwise.
    """
    forward = assign_layouts(c.model, matrices=c.request.scheme.adapts)
    by_batch = c.source.batch_norms if c.options.batch_norm == "train" else ()
    if forward is c.model or (by_batch and not have_one_axis(forward, by_batch)):
        return c
    return replace(c, model=forward, forward=forward)
