"""`frozen="float16"`, and files that have such weights: half the bytes for frozen weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from converter.backend.quantize.round_to_float16 import rounded_to_float16
from converter.backend.quantize.store_as_float16 import stored_as_float16
from converter.backend.schedule import how
from converter.driver import entries
from converter.driver.compilation import Compilation
from converter.ir import FLOAT16, Graph, Node
from converter.support.notes import Note


def round_weights(c: Compilation) -> Compilation:
    """Round what is frozen whole to float16."""
    if c.options.frozen != "float16":
        return c
    from converter.driver.quantization import NothingToQuantizeError, QuantizationReport

    model, layers = rounded_to_float16(c.graphs.model)
    if all(layer.form == "float32" for layer in layers):
        reasons = "; ".join(dict.fromkeys(layer.why for layer in layers)) or "there is none with weights"
        raise NothingToQuantizeError(f"frozen='float16' changes nothing: no frozen layer becomes float16 ({reasons})")
    return replace(c.staged(model=model, unrounded=c.graphs.model), quantization=QuantizationReport(layers))


def rounded(c: Compilation, forward: Graph) -> Graph:
    """Return a forward graph of other rows with the same weights."""
    return rounded_to_float16(forward)[0] if c.options.frozen == "float16" else forward


def store_contracted(c: Compilation) -> Compilation:
    """Store constants in float16 that operators meet as they lie in the file: matrices, and tables of rows."""
    return _stored(c, filters=False) if _is_wanted(c) else c


def store(c: Compilation) -> Compilation:
    """Store constants in float16 that have no other numbers, where that is asked for or the file has them so."""
    if not _is_wanted(c):
        return c
    c = _stored(c, filters=True)
    if c.options.frozen == "float16" or not any(v.dtype == FLOAT16 for g in c.program.values() for v in g.constants):
        return c
    note = Note("frozen weights", "float16, as in the file", "the runtime unpacks them when it loads them")
    return replace(c, notes=[*c.notes, note])


def _is_wanted(c: Compilation) -> bool:
    in_file = c.source.file is not None and c.source.file.has_float16
    return ((in_file and c.target.is_cpu) or c.options.frozen == "float16") and c.target.reads("float16")


def _stored(c: Compilation, filters: bool) -> Compilation:
    suffix = None if c.grafted is None else c.grafted.suffix
    graphs = [*c.program.values(), *([] if c.plain is None else [c.plain.graph]), *([] if suffix is None else [suffix])]

    def is_delegated(graph: Graph, node: Node) -> bool:
        return not c.target.is_cpu or how(graph.constants, node, c.target.lanes) is not None

    stored = stored_as_float16(graphs, is_delegated, list(_in_float32(c)), filters, not c.target.is_cpu)
    return replace(
        c,
        program=c.program.mapped(lambda _, graph: stored(graph)),
        plain=None if c.plain is None else replace(c.plain, graph=stored(c.plain.graph)),
        grafted=None if c.grafted is None else replace(c.grafted, suffix=suffix and stored(suffix)),
    )


def _in_float32(c: Compilation) -> Iterator[np.ndarray]:
    """Yield what the file holds in float32 besides: weights that are merged, and the rest of what trains in part."""
    if c.plain is not None:
        yield from (p.value for p in c.plain.graph.parameters.values() if p.kind == "merged")
    cut = {row.parameter for row in c.rows if 0 < row.fraction < 1}
    yield from (entries.frozen_rest(p) for p in c.graphs.model.parameters.values() if p.name in cut)
