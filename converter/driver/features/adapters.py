"""LoRA, Channels and Skip-LoRA: adapters, and the plain model that is exported without those of weights."""

from __future__ import annotations

from dataclasses import replace

from converter.backend.lowering.weight_layout import better_transposed
from converter.backend.stages import in_order
from converter.driver.compilation import Compilation
from converter.ir import Graph
from converter.passes import absorb_layout
from converter.passes.canonical import specialize
from converter.support.errors import UsageError
from converter.training.batch_dependence import mixing
from converter.training.dropout import without_dropout
from converter.training.schemes import adapt, plain, select
from converter.training.schemes.shortcuts import values_read


def add_adapters(c: Compilation) -> Compilation:
    """Put adapters beside the weights that have one; what trains beside them is kept as without adapters."""
    _check_rows(c)
    model, rows, adapters = adapt(c.graphs.model, c.resolved)
    transposed = c.transposed
    if adapters and transposed is None:
        transposed = better_transposed(specialize(select(absorb_layout(c.graphs.model), c.resolved)), c.target)
    return replace(c.staged(model=model), rows=rows, adapters=adapters, transposed=transposed)


def _check_rows(c: Compilation) -> None:
    """Raise UsageError where a way to the logits would read numbers of another row."""
    read = values_read(c.graphs.model, c.resolved)
    if read and (place := mixing(c.graphs.model, read)) is not None:
        raise UsageError(
            "Skip-LoRA reads what frozen layers give for each row, along the first axis, and that is not so here: "
            f"{place}. Let the batch be the first axis of the model's layers, or choose 'lora' or 'head'",
            page="adapters",
        )


def make_plain(c: Compilation) -> Compilation:
    """Make the model that is exported, without adapters."""
    if not (c.adapters and c.offers("infer")):
        return c
    if c.source.file is None and (c.options.is_int4 or c.options.frozen == "float16"):
        return c  # a weight with its adapter in it is neither any more
    forward = without_dropout(c.graphs.forward)
    made = plain(forward, c.resolved, c.adapters, c.rule.layout_invariant, c.transposed or ())
    if c.source.file is not None:  # the file itself is exported: what is merged is all that is asked of this
        made = replace(
            made, graph=Graph(parameters={v: p for v, p in made.graph.parameters.items() if p.kind == "merged"})
        )
    return replace(c, plain=made)


def order_plain(c: Compilation) -> Compilation:
    """Schedule the model that is exported."""
    return c if c.plain is None else replace(c, plain=replace(c.plain, graph=in_order(c.plain.graph, c.target)))
