"""`batch_norm`: normalization by the statistics of the batch in a step."""

from __future__ import annotations

from dataclasses import replace

from converter.driver.compilation import Compilation
from converter.driver.requests import check_batch_norm
from converter.passes.canonical import canonicalize
from converter.training.batch_norm import (
    in_training,
    statistics_of,
    with_independent_inputs,
    with_statistics,
    without_masks,
)
from converter.training.fisher import without_probes


def make_canonical(c: Compilation) -> Compilation:
    """Bring the model into one form; what layers read whose statistics may train stays apart."""
    layers = c.source.batch_norms if c.options.batch_norm == "train" else ()
    forward = with_independent_inputs(c.graphs.model, layers, canonicalize)
    return c.staged(model=forward, forward=forward)


def choose_layers(c: Compilation) -> Compilation:
    """Choose the layers that take the statistics of the batch; masks are kept before these alone."""
    chosen = []
    if c.options.batch_norm == "train":
        trained = {row.parameter for row in c.resolved if row.fraction or row.adapter}
        chosen = in_training(c.graphs.model, c.source.batch_norms, trained)
    forward = without_masks(c.graphs.model, chosen)
    return replace(c.staged(model=forward, forward=forward), by_batch=chosen)


def keep_statistics(c: Compilation) -> Compilation:
    """Make the moving averages state, and what the layers read outputs, so that passes keep both."""
    if c.options.batch_norm == "train":
        check_batch_norm(c.request, c.source.batch_norms, c.by_batch, any(row.adapter for row in c.resolved))
    return c.staged(model=with_statistics(c.graphs.model, c.by_batch))


def take_inputs(c: Compilation) -> Compilation:
    """Take those outputs out again, and the probes of `fisher`."""
    probed, normalized = statistics_of(c.graphs.model, c.by_batch)
    return replace(c.staged(probed=probed, model=without_probes(probed)), normalized=normalized)
