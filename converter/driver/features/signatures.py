"""The signatures that a program offers, as semantic graphs."""

from __future__ import annotations

from dataclasses import replace

from converter.backend.prepare import absorb_projections, attend_in_blocks, with_independent_groups
from converter.backend.prepare.tiling import tile_batch
from converter.driver.compilation import Compilation
from converter.driver.features import frozen_float16, frozen_int4, frozen_int8
from converter.driver.features.blocks import contracted_as_stored, with_few_inner_features
from converter.driver.features.dora import with_norms
from converter.driver.features.layouts import laid
from converter.driver.features.optimizer import like
from converter.driver.options import INT4_BLOCKS
from converter.ir import Graph
from converter.passes import eliminate_dead_code
from converter.passes.canonical import canonicalize
from converter.program.manifest import INFER
from converter.training.batch_norm import with_independent_inputs, with_statistics, without_masks
from converter.training.dropout import dropouts, without_dropout
from converter.training.fisher import fisher
from converter.training.losses import attach_loss
from converter.training.schemes import adapt


def prepared(c: Compilation, graph: Graph) -> Graph:
    """Return a forward graph with early layers in parts of the batch, and attention by fewer products, on a CPU."""
    if not c.target.is_cpu:
        return graph.copy()
    tiled = tile_batch(graph, c.target)
    in_blocks = attend_in_blocks(with_independent_groups(tiled, c.target), c.target)
    with_fewer_products = absorb_projections(in_blocks, c.target)
    return with_few_inner_features(c, contracted_as_stored(c, with_fewer_products))


def score(c: Compilation) -> Compilation:
    """Join the loss with the model, for `evaluate`."""
    return c.staged(scored=scored_of(c, c.graphs.inference))


def scored_of(c: Compilation, inference: Graph) -> Graph:
    """Return a forward graph without what is random, joined with the loss: it gives the figures of its rows."""
    scored = attach_loss(prepared(c, inference), c.goal)
    scored.outputs = {name: v for name, v in scored.outputs.items() if name not in inference.outputs}
    return scored


def build_step(c: Compilation) -> Compilation:
    """Build the graphs of the step: forward, pruned backward and update."""
    return replace(c, program=c.program.including(**c.step.graphs(prepared(c, c.graphs.suffix), c.step_goal, c.rule)))


def add_evaluate_and_infer(c: Compilation) -> Compilation:
    """Add `evaluate` and `infer`, where they are asked for."""
    program = c.program
    if c.offers("evaluate"):
        program = program.including(evaluate=eliminate_dead_code(c.graphs.scored))
    if c.offers("infer"):
        program = program.including(infer=stored_alike(c, c.graphs.inference))
    return replace(c, program=program)


def add_other_rows(c: Compilation) -> Compilation:
    """Add the model for other numbers of rows, `infer_<rows>`, and what writes a text on, with the same state."""
    program = c.program
    for name, graph in [*((f"{INFER}{many}", graph) for many, graph in c.other_rows.items()), *c.generating.items()]:
        plainly = with_independent_inputs(without_dropout(graph), c.by_batch, canonicalize)
        plainly = laid(c, plainly, c.by_batch)
        other, _, _ = adapt(without_masks(plainly, c.by_batch), c.resolved)
        other = without_dropout(other)
        if c.options.is_int4:
            other, _ = frozen_int4.stored(c, other)
        other = with_norms(c, other)
        given = graph.outputs.keys() if name in c.generating else None
        made = like(c.graphs.model, with_statistics(other, c.by_batch), c.rows, c.rule.layout_invariant, given)
        if c.options.frozen == "int8":  # what is exported alone: no signature of other rows goes together with it
            c = c.staged(exported=frozen_int8.of_other_rows(c, made))
        else:
            program = program.including(**{name: stored_alike(c, frozen_float16.rounded(c, made))})
    return replace(c, program=program)


def stored_alike(c: Compilation, graph: Graph) -> Graph:
    """Return a graph that infers with the int4 matrices that the step has, which the file then holds once."""
    return with_few_inner_features(c, graph) if c.options.is_int4 and INT4_BLOCKS[c.options.frozen] is None else graph


def add_fisher(c: Compilation) -> Compilation:
    """Add `fisher`, which weighs channels."""
    if not c.offers("fisher"):
        return c
    inference = canonicalize(without_dropout(c.graphs.probed)) if dropouts(c.graphs.probed) else c.graphs.probed
    return replace(c, program=c.program.including(fisher=fisher(inference, c.goal)))
