"""`frozen="int8"`: quantization of frozen layers where the target gains by it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from converter.backend.stages import in_order, to_builtins
from converter.driver.compilation import Compilation
from converter.ir import Graph
from converter.training.fisher import without_probes
from converter.training.schemes import join


def quantize_frozen(c: Compilation) -> Compilation:
    """Cut the frozen prefix off, lowered in int8; weights that are frozen after it become int8 too."""
    lower = partial(to_builtins, target=c.once)
    if c.options.frozen != "int8":
        exported = None if c.plain is None else replace(c.plain, graph=lower(c.plain.graph))
        return replace(c.staged(suffix=c.graphs.model), plain=exported)
    from converter.driver.quantization import quantize

    how = c.goal, c.options.calibration, c.graphs.model.inputs[0].shape[0], c.target, lower
    done = quantize(c.graphs.probed if c.offers("fisher") else c.graphs.model, *how)
    exported = None if c.plain is None else replace(c.plain, graph=_plain(c, c.plain.graph))
    suffix = without_probes(done.rest)
    return replace(
        c.staged(prefix=done.prefix, probed=done.rest, suffix=suffix), quantization=done.report, plain=exported
    )


def of_other_rows(c: Compilation, graph: Graph) -> Graph:
    """Return the model for another number of rows as it is exported, scheduled: with the integers that `infer` has."""
    return in_order(_plain(c, graph), c.target)


def _plain(c: Compilation, graph: Graph) -> Graph:
    from converter.driver.quantization import quantize_plain, samples_of

    samples = samples_of(c.graphs.model, c.goal, c.options.calibration)
    rows = graph.inputs[0].shape[0]
    return quantize_plain(graph, samples, rows, c.target, partial(to_builtins, target=c.once))


def join_prefix(c: Compilation) -> Compilation:
    """Put the prefix before every signature."""
    prefix = c.graphs.prefix
    return c if prefix is None else replace(c, program=c.program.mapped(lambda _, graph: join(prefix, graph)))
