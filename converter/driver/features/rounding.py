"""What rounding frozen weights (in int4, or `frozen="float16"`) costs, on samples."""

from __future__ import annotations

from dataclasses import replace

from converter.backend.stages import to_builtins
from converter.driver.compilation import Compilation
from converter.driver.features.optimizer import like
from converter.ir import Graph
from converter.passes.read_weights import read_weights
from converter.training.losses import attach_loss


def measure(c: Compilation) -> Compilation:
    """Compare the model with the float32 one on the samples, where there are any."""
    rounds = c.options.is_int4 or c.options.frozen == "float16"
    if not rounds or c.options.calibration is None:
        return c
    from converter.driver.quantization import compare, samples_of

    assert c.quantization is not None
    samples = samples_of(c.graphs.model, c.goal, c.options.calibration)
    before, after = (
        to_builtins(attach_loss(graph, c.goal) if samples.labelled else graph, c.once)
        for graph in (_exact(c), c.graphs.model)
    )
    rows = c.graphs.model.inputs[0].shape[0]
    layers, classifies = c.quantization.layers, c.goal.classifies
    report = compare(before, after, samples, rows, layers, classifies, list(c.graphs.model.outputs))
    return replace(c, quantization=report)


def _exact(c: Compilation) -> Graph:
    """Return the model as it is before anything of it is rounded."""
    if c.options.is_int4:
        return like(c.graphs.model, read_weights(c.graphs.unrounded), c.rows, c.rule.layout_invariant)
    exact = c.graphs.model.copy()
    exact.constants = {v: c.graphs.unrounded.constants.get(v, array) for v, array in c.graphs.model.constants.items()}
    return exact
